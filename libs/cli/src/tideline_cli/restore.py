"""`tideline restore`: back to a savepoint, after saying what that costs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, TablePath
from tideline_cli.history import instant_document
from tideline_cli.opening import open_writable
from tideline_cli.report import print_json, print_line, print_listing
from tideline_table.errors import InvalidOption
from tideline_table.table import Table, preview_restore, restore_to_savepoint

app = typer.Typer()


@app.command(epilog="Example: tideline restore ./trips --to 20260101120000000 --dry-run")
def restore(
    path: TablePath,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="INSTANT", help="The savepoint, see tideline savepoint list.", show_default=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed with --json and where there is no terminal.")] = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Bring a table back to a savepoint. Every write that is newer is undone for good, newest first, and its files are deleted.

    Writes under way fail, newer plans and savepoints go, and so does the progress that feeders of the table committed since: they feed again from where they stood
    then. Nobody can write until it is done; one that died is finished by asking again, or by tideline run rollback PATH.
    """
    table = open_writable(path, {}, locks)
    document = _losses(table, to)
    if not as_json:
        _print_losses(document, to)
    if dry_run:
        if as_json:
            print_json({**document, "restore": None, "files_deleted": None})
        else:
            print_line("nothing was changed; without --dry-run it is done")
        return
    if not yes and not _agreed(as_json=as_json):
        print_line("nothing was changed")
        return
    done = restore_to_savepoint(table, to)
    if as_json:
        print_json({**document, "restore": done.instant, "files_deleted": done.files_deleted})
    else:
        print_line(f"restore {done.instant} completed: {len(done.undone)} write(s) undone, {done.files_deleted} files deleted")


def _agreed(*, as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        raise InvalidOption(
            "a restore that nobody can be asked about",
            expected="--yes with --json, and where there is no terminal: what is undone cannot be had again",
            remedy="look at what would be lost with --dry-run, then add --yes",
        )
    return typer.confirm("Go back?")


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
    print_line(f"back to savepoint {to}: {len(undone)} completed write(s) will be lost" + (":" if undone else ""))
    if undone:
        names = ("instant", "action", "operation", "rows_inserted", "rows_updated", "rows_deleted", "writer")
        heads = ("INSTANT", "ACTION", "OPERATION", "INSERTED", "UPDATED", "DELETED", "WRITER")
        print_listing(heads, [[write[name] for name in names] for write in undone], right=heads[3:6])
    for ended in document["ended"]:
        print_line(f"{ended['action']} {ended['instant']} of {ended['writer']} is under way, or planned, and will be ended")
    for saved in document["savepoints_lost"]:
        print_line(f"savepoint {saved} will be lost")
    for key, moved in document["progress"].items():
        print_line(f"progress {key} goes back from {moved['now']} to {moved['then'] or 'nothing: it was never set'}")
