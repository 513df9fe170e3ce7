"""`tideline reappend`: append rows again that a compaction or a clustering hides."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, TablePath, option
from tideline_cli.opening import open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_locks.table_lock import attach_lock
from tideline_table.action import reappend_hidden

app = typer.Typer()


@app.command(epilog="Example: tideline reappend ./trips")
def reappend(
    path: TablePath,
    *,
    written: Annotated[
        list[str] | None,
        option(metavar="INSTANT", help="A hidden write whose rows its job wrote again: nothing of it is appended. Repeatable."),
    ] = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Append the rows of hidden writes again: those that a finding hidden_commit of `tideline status` names.

    A job without the lock of a shared table left them behind a compaction or a clustering that had not seen it. Each write becomes
    one commit. Rows that were written again since stay as they are. Where it cannot be known what readers would see, nothing of
    that write is appended and the error says why. Nothing is cleaned before.
    """
    with Progress("files", None) as progress:
        table = open_readable(path, {}, progress)
        attach_lock(table, locks)
        done = reappend_hidden(table, written or ())
    said = [
        f"{d.rows} row(s) of hidden write {d.instant} by commit {d.commit}, {d.older} are older than visible ones" for d in done
    ]
    document = {"base_path": table.storage.root, "reappended": [asdict(d) for d in done]}
    print_result(document, "; ".join(said) or "no completed rewrite hides a write", as_json=as_json)
