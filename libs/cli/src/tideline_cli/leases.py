"""`tideline lease`: register a reader, so that cleaning and archival keep the files and instants that it reads."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, TablePath, option
from tideline_cli.report import print_json, print_line, print_listing, print_result
from tideline_table.table import Table, known_lease, leases_of, release_lease, renew_lease, take_lease

app = typer.Typer()
lease = typer.Typer(
    help="Register a reader of a table: cleaning and archival keep what it reads until it ends or its lease expires."
)
app.add_typer(lease, name="lease")

LeaseId = Annotated[str, typer.Argument(metavar="LEASE", help="Id of the lease.", show_default=False)]


@lease.command(epilog="Example: tideline lease take ./trips --ttl 3600 --holder nightly-report")
def take(
    path: TablePath,
    *,
    as_of: Annotated[str, option(metavar="INSTANT", help="Keep the table readable as of this instant or time. Default: now.")] = "",
    ttl: Annotated[float | None, option(min=1, help="Seconds until the lease expires. Default: tideline.lease.ttl.")] = None,
    holder: Annotated[str, option(help="Name of the reader. Default: the user, host and process.")] = "",
    reads: Annotated[str, option(help="Purpose of the read; tideline lease list shows it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Take a lease for a reader outside of Tideline, such as a Spark job. Renew it before it expires, and release it at the end."""
    table = Table.open(path)
    taken = take_lease(table, as_of, holder=holder, reads=reads, ttl_s=ttl)
    text = f"lease {taken.lease_id} keeps instant {taken.instant} until {taken.expires:%Y-%m-%d %H:%M:%S} UTC"
    print_result(taken.to_json(), f"{text}; end it: tideline lease release {path} {taken.lease_id}", as_json=as_json)


@lease.command(epilog="Example: tideline lease renew ./trips 0a1b2c3d4e5f60718293a4b5c6d7e8f9")
def renew(path: TablePath, lease_id: LeaseId, *, as_json: AsJson = False) -> None:
    """Restart the time of a lease. An expired lease can be renewed if nothing that it kept was cleaned meanwhile."""
    table = Table.open(path)
    known = known_lease(table, lease_id)
    table.slices(known.instant)  # raises if cleaning deleted files after the lease had expired
    renewed = renew_lease(table, known)
    text = f"lease {renewed.lease_id} keeps instant {renewed.instant} until {renewed.expires:%Y-%m-%d %H:%M:%S} UTC"
    print_result(renewed.to_json(), text, as_json=as_json)


@lease.command(name="list", epilog="Example: tideline lease list ./trips")
def list_(
    path: TablePath,
    *,
    expired: Annotated[bool, typer.Option("--expired", help="Also list leases that their holders did not renew.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the leases of a table, the one that holds cleaning and archival back furthest first."""
    table = Table.open(path)
    found = leases_of(table, expired=expired)
    if as_json:
        print_json({"base_path": table.storage.root, "leases": [one.to_json() for one in found]})
        return
    if not found:
        print_line("no reader leases")
        return
    columns = ("LEASE", "HOLDER", "INSTANT", "SINCE", "EXPIRES", "READS")
    rows = [(f.lease_id, f.holder, f.instant, f.since, f"{f.expires:%Y-%m-%dT%H:%M:%S}", f.reads or "-") for f in found]
    print_listing(columns, rows)


@lease.command(epilog="Example: tideline lease release ./trips 0a1b2c3d4e5f60718293a4b5c6d7e8f9")
def release(path: TablePath, lease_id: LeaseId, *, as_json: AsJson = False) -> None:
    """End a lease. The next clean and archival no longer wait for its reader, whose query fails if it still runs."""
    released = release_lease(Table.open(path), lease_id)
    print_result({**released.to_json(), "released": True}, f"lease {lease_id} of {released.holder} released", as_json=as_json)
