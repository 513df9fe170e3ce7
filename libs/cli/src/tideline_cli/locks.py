"""`tideline lock`: who holds which lock, and the end of a lease whose holder is known to be gone."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, option
from tideline_cli.report import print_json, print_line, print_listing, print_result
from tideline_locks import LeaseState, LockProvider, check_lock_url, open_lock_provider
from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_table.clock import SystemClock
from tideline_table.errors import InvalidOption

app = typer.Typer()
lock = typer.Typer(help="Show leases, and end a lease whose holder is gone.")
app.add_typer(lock, name="lock")

_COLUMNS = ("NAME", "OWNER", "ACQUIRED", "EXPIRES", "STATE")


@lock.command(name="list", epilog="Example: tideline lock list --locks https://locks.example:8080")
def list_(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only locks whose name begins with this text.", show_default=False)
    ] = "",
    *,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """List the leases that are held, by the name of their lock. The lock of a table is called table:UID."""
    with closing(_provider(locks)) as provider:
        documents = [_document(state) for state in provider.list(prefix)]
    if as_json:
        print_json({"leases": documents})
    elif not documents:
        print_line("no lease is held")
    else:
        print_listing(_COLUMNS, [[d[name.lower()] for name in _COLUMNS] for d in documents])


@lock.command(name="break", epilog="Example: tideline lock break table:0b9c… --reason 'host 7 was switched off'")
def break_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the lock, as `tideline lock list` shows it.", show_default=False)
    ],
    *,
    reason: Annotated[str, option(help="Why the holder must lose its lease. The lock service publishes it.")] = "",
    by: Annotated[str, option(envvar="USER", help="User who ends the lease. Default: the user of this process.")] = "unknown",
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """End a lease, with --reason also one that has not expired.

    The holder finds out when it renews the lease. Its commit stays safe: the table log decides. Only a lock service ends leases by
    force, because it publishes who did it.
    """
    with closing(_provider(locks)) as provider:
        from tideline_locks.http import HttpLockProvider

        if not reason:
            ended = provider.break_expired(name)
        elif isinstance(provider, HttpLockProvider):
            ended = provider.force_break(name, by=by, reason=reason)
        else:
            raise InvalidOption(
                "a forced end of a lease without a lock service",
                expected="--locks with the http: or https: URL of one",
                remedy="wait until the lease has expired, or ask the lock service",
            )
    text = (
        f"lease of {ended.owner} on {name} ended" if ended else f"nothing ended: {name} has no {'' if reason else 'expired '}lease"
    )
    print_result({"name": name, "ended": _document(ended) if ended else None}, text, as_json=as_json)


def _provider(url: str) -> LockProvider:
    if not url:
        raise InvalidOption("no lock URL", expected=f"--locks or {LOCKS_VARIABLE}")
    check_lock_url(url)
    return open_lock_provider(url, clock=SystemClock())


def _document(state: LeaseState) -> dict[str, Any]:
    return {
        "name": state.name,
        "owner": state.owner,
        "token": state.token,
        "acquired": state.acquired.isoformat(timespec="milliseconds"),
        "expires": state.expires.isoformat(timespec="milliseconds"),
        "state": "expired" if state.expired else "held",
    }
