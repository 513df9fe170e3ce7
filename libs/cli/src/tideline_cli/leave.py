"""`tideline leave`: return a table to the writers of Apache Hudi."""

from __future__ import annotations

import typer

from tideline_cli.arguments import AsJson, LockUrl, TablePath
from tideline_cli.opening import open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_locks import open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_table.action import leave as leave_table

app = typer.Typer()


@app.command(epilog="Example: tideline leave ./trips")
def leave(path: TablePath, *, locks: LockUrl = "", as_json: AsJson = False) -> None:
    """Return a table to the writers of Apache Hudi: no file and no pending plan of Tideline stays. No row changes.

    Writes of dead processes are rolled back; pending plans are cancelled or, if Apache Hudi's writers may have read them, run. A
    metadata table that Tideline keeps is dropped. Stop Tideline's services of the table before: while a writer of Tideline is
    alive, and for what Apache Hudi would read otherwise, the command refuses by name. After a failure, run it again.
    """
    with Progress("files", None) as progress:
        progress.describe("returning the table")
        table = open_readable(path, {}, progress, every=True)
        if table.capabilities.keeps_log:
            attach_lock(table, locks)
        left = leave_table(table, open_hudi_lock)
    document = {
        "base_path": table.storage.root,
        "rolled_back": left.rolled_back,
        "cancelled": left.cancelled,
        "run": left.run,
        "dropped_metadata": left.dropped_metadata,
    }
    done = [f"{word} {', '.join(found)}" for word, found in _done(left.rolled_back, left.cancelled, left.run) if found]
    done += ["dropped the metadata table"] if left.dropped_metadata else []
    print_result(document, "; ".join([f"only Apache Hudi writes {path} now", *done]), as_json=as_json)


def _done(rolled_back: list[str], cancelled: list[str], run: list[str]) -> list[tuple[str, list[str]]]:
    return [("rolled back", rolled_back), ("cancelled", cancelled), ("ran", run)]
