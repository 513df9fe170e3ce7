"""`tideline savepoint`: protect what a table was as of a completed write."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, TablePath
from tideline_cli.opening import open_writable
from tideline_cli.report import print_json, print_line, print_listing
from tideline_table.file_group.savepoint import Savepoint
from tideline_table.table import Table, create_savepoint, delete_savepoint

app = typer.Typer()
savepoint = typer.Typer(help="Protect what a table was as of a completed write, from cleaning and against mistakes.")
app.add_typer(savepoint, name="savepoint")


def savepoint_document(saved: Savepoint) -> dict[str, Any]:
    """A savepoint for programs."""
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
    instant: Annotated[
        str, typer.Option(metavar="INSTANT", help="The completed write to protect; the newest one without it.", show_default=False)
    ] = "",
    comment: Annotated[str, typer.Option(help="Why.", show_default=False)] = "",
    user: Annotated[str, typer.Option(help="Who; the user of this process without it.", show_default=False)] = "",
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Protect a completed write: cleaning leaves its files alone, and the table can be read as of it and brought back to it.

    It costs the storage of the files that later writes replace, until it is deleted.
    """
    made = create_savepoint(open_writable(path, {}, locks), instant, comment=comment, user=user)
    if as_json:
        print_json(savepoint_document(made))
    else:
        print_line(f"savepoint {made.instant} made; read it: tideline read {path} --as-of {made.instant}")


@savepoint.command(epilog="Example: tideline savepoint delete ./trips 20260101120000000")
def delete(
    path: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="The savepoint.", show_default=False)],
    *,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Give a savepoint up: the next clean may delete the files that only it kept. The write itself stays."""
    delete_savepoint(open_writable(path, {}, locks), instant)
    if as_json:
        print_json({"instant": instant, "deleted": True})
    else:
        print_line(f"savepoint {instant} deleted")


@savepoint.command(name="list", epilog="Example: tideline savepoint list ./trips")
def list_(path: TablePath, *, as_json: AsJson = False) -> None:
    """List the savepoints of a table, latest first; of a table that Apache Hudi writes, too, only which writes have one."""
    table = Table.open(path)
    documents = savepoint_documents(table)
    if as_json:
        print_json({"base_path": table.storage.root, "savepoints": documents})
        return
    if not documents:
        print_line(f"no savepoints; make one: tideline savepoint create {path}")
        return
    columns = ("INSTANT", "CREATED", "USER", "COMMENT")
    print_listing(columns, [[d[name.lower()] for name in columns] for d in documents])


def savepoint_documents(table: Table) -> list[dict[str, Any]]:
    """The savepoints of a table for programs, latest first."""
    known = table.timeline.state.savepoints if table.is_exclusive else {}
    found = []
    for instant in sorted(table.saved_instants(), reverse=True):
        saved = known.get(instant)
        found.append(savepoint_document(saved or Savepoint(instant, 0, "")))
    return found
