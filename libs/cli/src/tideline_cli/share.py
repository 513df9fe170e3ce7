"""`tideline share`: one table for Apache Hudi's writers and ours."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, TablePath, choice
from tideline_cli.report import print_facts, print_json, print_line
from tideline_locks import open_peer_lock
from tideline_table.table import Table, share_table
from tideline_table.timeline.sharing import DEFAULT_EXPIRE_MIN, PeerLockKind, Sharing

app = typer.Typer()


@app.command(epilog="Example: tideline share ./trips --lock-provider filesystem")
def share(
    path: TablePath,
    *,
    lock_provider: Annotated[
        str,
        typer.Option(
            metavar="filesystem|storage",
            help="The lock that both sides take: a file on a local disk, or an object in the store of the table. Not given: what fits.",
            show_default=False,
        ),
    ] = "",
    lock_expiry: Annotated[
        int, typer.Option(metavar="MINUTES", help="Age at which a lock file counts as left behind, for both sides.")
    ] = DEFAULT_EXPIRE_MIN,
    as_json: AsJson = False,
) -> None:
    """Let Apache Hudi's writers and Tideline's write one table from now on, under one lock.

    The table may be Tideline's or one that Apache Hudi made (version 6). Its metadata table is turned off. Prints the options that every Hudi
    writer of the table has to be given; asking again prints them again.
    """
    table = Table.open(path)
    if table.sharing is not None and not lock_provider:
        shared = table
    else:
        fitting = PeerLockKind.FILE_SYSTEM if table.storage.root.startswith("file:") else PeerLockKind.STORAGE
        kind = choice("--lock-provider", lock_provider, PeerLockKind) if lock_provider else fitting
        shared = share_table(table, Sharing(kind, lock_expiry), open_peer_lock)
    assert shared.sharing is not None
    options = shared.sharing.hudi_options()
    if as_json:
        print_json({"uid": shared.uid, "base_path": shared.storage.root, **shared.sharing.to_json(), "hudi_options": options})
        return
    print_line(
        f"table {shared.definition.name} is shared: Apache Hudi's writers and Tideline's take one lock ({shared.sharing.lock})"
    )
    print_line("Give every Apache Hudi writer of this table these options, and a JVM in UTC (-Duser.timezone=UTC):")
    print_facts(list(options.items()))
