"""`tideline savepoint`: protect the state of a table as of a completed write."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, TablePath, option
from tideline_cli.opening import open_readable, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_json, print_line, print_listing, print_result
from tideline_table.action import create_savepoint, delete_savepoint
from tideline_table.log import Savepoint
from tideline_table.table import Table

app = typer.Typer()
savepoint = typer.Typer(help="Keep the state of a table as of a completed write, so that it can be read and restored later.")
app.add_typer(savepoint, name="savepoint")


def savepoint_document(saved: Savepoint) -> dict[str, Any]:
    """Return the JSON document of a savepoint."""
    return {
        "instant": saved.instant,
        "sequence": saved.sequence,
        "created": saved.created,
        "user": saved.user,
        "comment": saved.comment,
        "progress": {key: held.value for key, held in sorted(saved.progress.items())},
    }


@savepoint.command(epilog="Example: tideline savepoint create ./trips --comment 'before the import of May'")
def create(
    path: TablePath,
    *,
    instant: Annotated[str, option(metavar="INSTANT", help="The completed write to protect. Default: the newest one.")] = "",
    comment: Annotated[str, option(help="Reason of the savepoint.")] = "",
    user: Annotated[str, option(help="User who creates the savepoint. Default: the user of this process.")] = "",
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Protect a completed write: cleaning keeps its files, and the table can be read as of it and restored to it.

    Until it is deleted, a savepoint needs storage for the files that later writes replace.
    """
    with Progress("files", None) as progress:
        progress.describe("creating the savepoint")
        made = create_savepoint(open_writable(path, {}, locks, progress, every=True), instant, comment=comment, user=user)
    text = f"savepoint {made.instant} created; read it: tideline read {path} --as-of {made.instant}"
    print_result(savepoint_document(made), text, as_json=as_json)


@savepoint.command(epilog="Example: tideline savepoint delete ./trips 20260101120000000")
def delete(
    path: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="Instant of the savepoint.", show_default=False)],
    *,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete a savepoint: the next clean may delete the files that only it kept. The write itself stays."""
    with Progress("files", None) as progress:
        progress.describe("deleting the savepoint")
        delete_savepoint(open_writable(path, {}, locks, progress, every=True), instant)
    print_result({"instant": instant, "deleted": True}, f"savepoint {instant} deleted", as_json=as_json)


@savepoint.command(name="list", epilog="Example: tideline savepoint list ./trips")
def list_(path: TablePath, *, as_json: AsJson = False) -> None:
    """List the savepoints of a table, latest first. If Apache Hudi also writes the table, only the instants are known."""
    with Progress("files", None) as progress:
        progress.describe("reading metadata")
        table = open_readable(path, progress=progress, every=True)
        documents = savepoint_documents(table)
    if as_json:
        print_json({"base_path": table.storage.root, "savepoints": documents})
        return
    if not documents:
        print_line(f"no savepoints; create one: tideline savepoint create {path}")
        return
    columns = ("INSTANT", "CREATED", "USER", "COMMENT")
    print_listing(columns, [[d[name.lower()] for name in columns] for d in documents])


def savepoint_documents(table: Table) -> list[dict[str, Any]]:
    """Return the JSON documents of the savepoints of a table, latest first."""
    return [savepoint_document(saved) for _, saved in sorted(table.timeline.savepoints().items(), reverse=True)]
