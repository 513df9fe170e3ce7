"""`tideline expire`: deletes the partitions that no write has changed for long."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, settings_from
from tideline_cli.opening import open_readable, open_writable
from tideline_cli.report import print_json, print_line
from tideline_table.action import expire_partitions, expired_partitions
from tideline_table.config import PARTITION_TTL_DAYS

app = typer.Typer()


@app.command(epilog="Example: tideline expire ./trips --option hoodie.partition.ttl.strategy.days.retain=90 --dry-run")
def expire(
    path: TablePath,
    *,
    option: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which partitions would be deleted; change nothing.", show_default=False)
    ] = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete partitions that no write has changed for `hoodie.partition.ttl.strategy.days.retain` days, as one commit.

    The cleaner does the same if the policy file gives the option. Cleaning deletes the files later; until then old instants are
    readable.
    """
    table = open_readable(path, settings_from(option)) if dry_run else open_writable(path, settings_from(option), locks)
    instant = None
    if dry_run:
        found = expired_partitions(table.refresh(), table.options, table.clock.now(), table.zone)
    else:
        done, found = expire_partitions(table)
        instant = None if done is None else done.instant
    if as_json:
        print_json({"instant": instant, "partitions": [{"path": one, "last_write": last} for one, last in found.items()]})
        return
    days = table.options[PARTITION_TTL_DAYS]
    if not found:
        set_days = f"{PARTITION_TTL_DAYS.key} is not set"
        print_line("nothing to do: " + (f"every partition was written within {days} days" if days > 0 else set_days))
        return
    for one, last in found.items():
        print_line(f"{one}: last written by {last}")
    print_line(
        f"{len(found)} partition(s) would be deleted" if dry_run else f"deleted {len(found)} partition(s) by commit {instant}"
    )
