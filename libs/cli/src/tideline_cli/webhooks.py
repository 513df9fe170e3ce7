"""`tideline webhooks`: check a file of subscriptions, try an endpoint, send events of a table again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tideline_cli.failure import EXIT_BAD_INPUT
from tideline_cli.report import print_facts, print_line, print_listing
from tideline_table.clock import SystemClock

app = typer.Typer()
webhooks = typer.Typer(help="Check and try subscriptions of events, and send events again (docs/webhooks.md).")
app.add_typer(webhooks, name="webhooks")

File = Annotated[Path, typer.Argument(metavar="FILE", help="File of subscriptions (YAML or JSON).", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a subscription.", show_default=False)]
# ruff: noqa: PLC0415 - other commands start without importing the services


@webhooks.command(epilog="Example: tideline webhooks check subscriptions.yaml")
def check(file: File) -> None:
    """Check a file of subscriptions and the secrets that it names. Exit code 2 if anything is wrong."""
    from tideline_webhooks.subscriptions import SubscriptionsRefused, read_subscriptions

    try:
        found = read_subscriptions(file)
    except SubscriptionsRefused as error:
        for problem in error.problems:
            print_line(f"{file}, {problem}")
        raise typer.Exit(EXIT_BAD_INPUT) from None
    rows = [
        (one.name, one.endpoint, ", ".join(one.kinds), one.format, "yes" if one.secret else "no", one.on_failure) for one in found
    ]
    print_listing(("name", "endpoint", "events", "format", "secret", "on failure"), rows)


@webhooks.command(epilog="Example: tideline webhooks test subscriptions.yaml reports")
def test(file: File, name: Name) -> None:
    """Send an example event to the endpoint of a subscription, once. Exit code 1 if it is not taken."""
    from tideline_webhooks.replay import example
    from tideline_webhooks.subscriptions import named, read_subscriptions

    subscription = named(read_subscriptions(file), name, str(file))
    attempt = example(subscription, SystemClock())
    print_facts([("endpoint", subscription.endpoint), ("outcome", attempt.outcome.value), ("reason", attempt.reason or "-")])
    if attempt.outcome.value != "taken":
        raise typer.Exit(1)


@webhooks.command(epilog="Example: tideline webhooks replay subscriptions.yaml reports --table s3://lake/sales/orders --since 120")
def replay(
    file: File,
    name: Name,
    *,
    table: Annotated[str, typer.Option(help="Base path of the table.", show_default=False)],
    since: Annotated[int, typer.Option(help="First sequence that is sent.", min=1, show_default=False)],
) -> None:
    """Send transitions of a table again, in order, from its log. They have the same ids as before; positions do not move."""
    from tideline_webhooks.replay import replay as send_again
    from tideline_webhooks.subscriptions import named, read_subscriptions

    subscription = named(read_subscriptions(file), name, str(file))
    sent, last = 0, 0
    for event in send_again(subscription, table, since, SystemClock()):
        sent, last = sent + 1, event.sequence
    print_facts([("endpoint", subscription.endpoint), ("events sent", sent), ("last sequence", last or "-")])
