"""`tideline show` and `tideline timeline`: print the state and the history of a table. These commands never write to the table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, Settings, TablePath, column_names, settings_from
from tideline_cli.arguments import option as text_option
from tideline_cli.history import instant_documents
from tideline_cli.opening import open_readable
from tideline_cli.picture_facts import picture_facts
from tideline_cli.pictures import write_page
from tideline_cli.progress import Progress
from tideline_cli.report import print_facts, print_json, print_line, print_listing, print_result, size_text
from tideline_cli.savepoints import savepoint_documents
from tideline_cli.tables import column_documents, known_rows, slice_document
from tideline_table.errors import InvalidOption
from tideline_table.file_group import FileSlice
from tideline_table.table import Table, TableSummary, summarise, why_unsharable

app = typer.Typer()

SHOWN_PARTITIONS = 20
"""Number of partitions printed as text; JSON lists all."""


@app.command(epilog="Example: tideline show ./trips --files")
def show(
    path: TablePath,
    *,
    files: Annotated[bool, typer.Option("--files", help="Also list the file slices that queries read.")] = False,
    page: Annotated[
        str, text_option("--html", metavar="FILE", help="Write pictures of files, column ranges and timeline to this file.")
    ] = "",
    columns: Annotated[
        list[str] | None,
        text_option("--columns", metavar="COLUMNS", help="With --html: the columns whose ranges are drawn. Repeatable or a,b."),
    ] = None,
    option: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show a table: keys, columns, partitions, file groups, sizes, pending actions, and remedies if an action is stuck."""
    if columns and not page:
        raise InvalidOption("--columns without --html", expected="both")
    with Progress("files", None) as progress:
        progress.describe("reading metadata")
        table = open_readable(path, settings_from(option), progress, every=True)
        if page:
            progress.describe("reading footers")
            size_bytes = write_page(page, picture_facts(table, column_names(columns), progress.expect))
        else:
            summary, slices = summarise(table), table.slices()
    if page:
        print_result({"html": page, "size_bytes": size_bytes}, f"{size_text(size_bytes)} written to {page}", as_json=as_json)
        return
    if as_json:
        print_json(_show_document(table, summary, slices, files=files))
        return
    _print_summary(table, summary)
    partitions = _partitions(slices)
    if summary.partition_fields and partitions:
        print_line("")
        shown = partitions[:SHOWN_PARTITIONS]
        rows = [(p["partition"], p["file_groups"], p["rows"], size_text(p["size_bytes"])) for p in shown]
        print_listing(("PARTITION", "FILE GROUPS", "ROWS", "SIZE"), rows, right=("FILE GROUPS", "ROWS", "SIZE"))
        if len(partitions) > len(shown):
            print_line(f"… and {len(partitions) - len(shown)} more; --json lists all")
    if files:
        print_line("")
        print_listing(
            ("FILE", "INSTANT", "ROWS", "SIZE"),
            [(s.path, s.base_instant, known_rows(s.rows), size_text(s.size_bytes)) for s in slices],
            right=("ROWS", "SIZE"),
        )


def _show_document(table: Table, summary: TableSummary, slices: list[FileSlice], *, files: bool) -> dict[str, Any]:
    document = asdict(summary)
    health = document.pop("health")
    document |= {
        "base_path": table.storage.root,
        "is_exclusive": table.capabilities.log_is_truth,
        "mode": mode_of(table),
        "sharing": table.sharing.to_json() if table.sharing else None,
        "columns": column_documents(table.schema) if table.schema_json else [],
        "rows": known_rows(summary.rows),
        "partitions": _partitions(slices),
        "progress": {key: held.value for key, held in sorted(table.state.progress.items())},
        "savepoints": savepoint_documents(table),
        "pending": health["pending"],
        "is_healthy": summary.health.is_healthy,
        "problems": health["problems"],
    }
    if files:
        document["file_slices"] = [slice_document(s) for s in slices]
    return document


def mode_of(table: Table) -> str:
    """Return which engines write a table: exclusive (Tideline), shared (both) or foreign (Apache Hudi)."""
    return "shared" if table.sharing is not None else "exclusive" if table.capabilities.keeps_log else "foreign"


def _writers(table: Table, summary: TableSummary) -> str:
    if table.sharing is not None:
        return f"Tideline and Apache Hudi (shared, lock provider {table.sharing.lock}), uid {summary.uid}"
    if table.capabilities.keeps_log:
        return f"Tideline only, uid {summary.uid}"
    why = why_unsharable(table)
    more = f", but not write it: {why}" if why else "; to share it: tideline share PATH --check"
    return f"Apache Hudi only; Tideline can read it{more}"


def _print_summary(table: Table, summary: TableSummary) -> None:
    older = summary.files - summary.latest_files
    of_files = f"{summary.latest_files} file(s), {size_text(summary.latest_bytes)}"
    facts: list[tuple[str, object]] = [
        ("table", f"{summary.name} ({summary.type}, version {summary.version})"),
        ("base path", summary.base_path),
        ("written by", _writers(table, summary)),
        ("record key", ", ".join(summary.key_fields) or "-"),
        ("partitioned by", ", ".join(summary.partition_fields) or "-"),
        ("ordering", summary.ordering_field or "the later write wins"),
        ("last instant", summary.last_instant or "-"),
        ("completed writes", summary.commits),
        ("rows", "unknown" if known_rows(summary.rows) is None else summary.rows),
        ("partitions", summary.partitions),
        ("file groups", f"{summary.file_groups}, {of_files}, mean {size_text(summary.mean_file_bytes)} per group"),
        ("savepoints", "\n".join(_savepoint_lines(table)) or "-"),
        ("older files", f"{older}, {size_text(summary.total_bytes - summary.latest_bytes)}"),
        ("pending", "\n".join(summary.health.pending) or "-"),
        ("health", "good" if summary.health.is_healthy else "\n".join(summary.health.problems)),
    ]
    for name, value in facts:
        for number, line in enumerate(str(value).split("\n")):
            print_facts([(name.ljust(16) if not number else " " * 16, line)])


def _savepoint_lines(table: Table) -> list[str]:
    found = savepoint_documents(table)
    return [" ".join(text for text in (s["instant"], s["user"] and f"by {s['user']}", s["comment"]) if text) for s in found]


def _partitions(slices: list[FileSlice]) -> list[dict[str, Any]]:
    found: dict[str, list[FileSlice]] = {}
    for file_slice in slices:
        found.setdefault(file_slice.group.partition_path, []).append(file_slice)
    return [
        {
            "partition": name,
            "file_groups": len(members),
            "rows": None if any(s.rows < 0 for s in members) else sum(s.rows for s in members),
            "size_bytes": sum(s.size_bytes for s in members),
        }
        for name, members in sorted(found.items())
    ]


@app.command(epilog="Example: tideline timeline ./trips --limit 50")
def timeline(
    path: TablePath,
    *,
    limit: Annotated[int, typer.Option(min=1, help="At most this many instants.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest instants of a table, latest first: action, state, operation, writer, rows and files.

    Also works for tables that Tideline did not create. SEQUENCE is the position in the order of completion. It differs from the
    order of instants if writes overlapped.
    """
    with Progress("instants", None) as progress:
        progress.describe("reading the timeline")
        table = open_readable(path)
        instants = instant_documents(table, limit, progress)
    if as_json:
        archived = {"archived_before": table.state.archived_before} if table.state.archived_sequence else {}
        print_json({"base_path": table.storage.root, "total": len(table.state.actions), **archived, "instants": instants})
        return
    columns = ("INSTANT", "ACTION", "STATE", "OPERATION", "SEQUENCE", "INSERTED", "UPDATED", "DELETED", "FILES", "WRITER")
    counts = ("rows_inserted", "rows_updated", "rows_deleted")
    names = ("instant", "action", "state", "operation", "sequence", *counts, "files", "writer")
    shown = [{**i, "state": f"{i['state']}, savepoint" if i["has_savepoint"] else i["state"]} for i in instants]
    print_listing(columns, [[i[n] for n in names] for i in shown], right=columns[4:9])
    if len(table.state.actions) > len(instants):
        print_line(f"… and {len(table.state.actions) - len(instants)} older; see --limit")
    if table.state.archived_sequence:
        print_line(f"instants before {table.state.archived_before} are archived")
