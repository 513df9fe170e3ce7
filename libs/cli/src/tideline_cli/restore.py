"""`tideline restore`: restore a table to a savepoint, after printing what is lost."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, TablePath, option
from tideline_cli.history import instant_document
from tideline_cli.opening import open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_line, print_listing, print_result
from tideline_table.action import preview_restore, restore_to_savepoint
from tideline_table.errors import InvalidOption
from tideline_table.table import Table

app = typer.Typer()


@app.command(epilog="Example: tideline restore ./trips --to 20260101120000000 --dry-run")
def restore(
    path: TablePath,
    *,
    to: Annotated[str, option("--to", metavar="INSTANT", help="Instant of the savepoint, see tideline savepoint list.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be lost.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation. Required with --json and without a terminal.")
    ] = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Restore a table to a savepoint. Every newer write is undone permanently, newest first, and its files are deleted.

    Writes under way fail. Newer plans, savepoints and ingest progress are removed: applications ingest again from the progress of
    the savepoint. No writes are possible meanwhile. Finish an interrupted restore by repeating it or by tideline run rollback PATH.
    """
    progress = Progress("files deleted", None)
    table = open_writable(path, {}, locks, progress)
    document = _losses(table, to)
    if not as_json:
        _print_losses(document, to)
    if dry_run:
        text = "nothing was changed; run without --dry-run to restore"
        print_result({**document, "restore": None, "files_deleted": None}, text, as_json=as_json)
        return
    if not yes and not _agreed(as_json=as_json):
        print_line("nothing was changed")
        return
    progress.describe("undoing writes")
    with progress:
        done = restore_to_savepoint(table, to)
    text = f"restore {done.instant} completed: {len(done.undone)} write(s) undone, {done.files_deleted} files deleted"
    print_result({**document, "restore": done.instant, "files_deleted": done.files_deleted}, text, as_json=as_json)


def _agreed(*, as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        raise InvalidOption(
            "a restore without confirmation",
            expected="--yes with --json and without a terminal, because a restore cannot be reverted",
            remedy="check with --dry-run what would be lost, then add --yes",
        )
    return typer.confirm("Restore the table?")


def _losses(table: Table, to: str) -> dict[str, Any]:
    back = preview_restore(table, to)
    actions = table.state.actions
    progress, kept = table.state.progress, table.state.savepoints[to].progress
    return {
        "savepoint": to,
        "undone": [instant_document(table, actions[instant]) for instant, _ in back.undone],
        "ended": [
            {"instant": instant, "action": action.value, "writer": actions[instant].writer_id} for instant, action in back.fenced
        ],
        "savepoints_lost": list(back.savepoints),
        "progress": {
            key: {"now": held.value, "then": kept[key].value if key in kept else None}
            for key, held in sorted(progress.items())
            if held != kept.get(key)
        },
    }


def _print_losses(document: dict[str, Any], to: str) -> None:
    undone = document["undone"]
    print_line(f"restore to savepoint {to}: {len(undone)} completed write(s) will be lost" + (":" if undone else ""))
    if undone:
        names = ("instant", "action", "operation", "rows_inserted", "rows_updated", "rows_deleted", "writer")
        heads = ("INSTANT", "ACTION", "OPERATION", "INSERTED", "UPDATED", "DELETED", "WRITER")
        print_listing(heads, [[write[name] for name in names] for write in undone], right=heads[3:6])
    for ended in document["ended"]:
        print_line(f"{ended['action']} {ended['instant']} of {ended['writer']} is inflight or planned and will be rolled back")
    for saved in document["savepoints_lost"]:
        print_line(f"savepoint {saved} will be lost")
    for key, moved in document["progress"].items():
        print_line(f"progress {key} is reset from {moved['now']} to {moved['then'] or 'no value'}")
