"""`tideline metadata` and `tideline check`: the metadata table of Apache Hudi's readers, compared with the table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, column_names, option, settings_from
from tideline_cli.failure import EXIT_FAILED
from tideline_cli.opening import expect_files, open_readable, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_json, print_line, print_listing, print_result
from tideline_table.action import METADATA_TYPES, check_table, create_metadata, drop_metadata, has_metadata_table, repair_metadata
from tideline_table.table import Table

app = typer.Typer()
metadata = typer.Typer(
    help="Keep a metadata table, from which Apache Hudi's readers take the files of the table without listing folders."
)
app.add_typer(metadata, name="metadata")
_SHOWN = ("type", "created", "file_groups", "compacted", "delta_commits")
"""The fields of a partition that `tideline metadata list` shows as they are."""


def metadata_document(table: Table) -> dict[str, Any] | None:
    """Return the JSON document of the metadata table, None if there is none."""
    known = table.state.metadata
    if known is None:
        return None
    return {
        "types": list(known.names),
        "partitions": [
            {
                "type": part.name,
                "created": part.created,
                "file_groups": part.file_groups,
                "compacted": part.base,
                "delta_commits": len(part.deltas),
                **({"columns": list(part.columns)} if part.columns else {}),
            }
            for part in known.partitions
        ],
        "created": known.files.created,
        "compacted": known.files.base,
        "delta_commits": len(known.files.deltas),
        "max_delta_commits": known.max_deltas,
    }


@metadata.command(epilog="Example: tideline metadata create ./trips --type files")
def create(
    path: TablePath,
    *,
    kinds: Annotated[
        list[str],
        option("--type", metavar="TYPES", help=f"Parts of the metadata table: {', '.join(METADATA_TYPES)}. Repeatable or a,b."),
    ],
    columns: Annotated[
        list[str] | None, option("--columns", help="Columns with statistics, for column_stats; by default all that writers record.")
    ] = None,
    settings: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Create the metadata table, or add to it.

    From this commit on, each commit updates it before Apache Hudi's readers see the commit.

    files: the list of files. column_stats: bounds of columns in each file, by which readers leave out files. bloom_filters: the
    Bloom filter of each base file, for writers of Apache Hudi that take the table over. record_index: where each record key is;
    for tables whose keys are unique in the whole table. Only for tables that Apache Hudi does not write.
    """
    progress = Progress("files", None)
    table = open_writable(path, settings_from(settings), locks, progress)
    expect_files(table, progress)
    progress.describe("reading")
    with progress:
        create_metadata(table, column_names(kinds), column_names(columns or []))
    print_result(
        metadata_document(table), f"metadata table created; compare it with the table: tideline check {path}", as_json=as_json
    )


@metadata.command(epilog="Example: tideline metadata drop ./trips")
def drop(
    path: TablePath,
    *,
    kinds: Annotated[
        list[str] | None,
        option("--type", metavar="TYPES", help="What to drop. Default: files, and with it everything. Repeatable or a,b."),
    ] = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete the metadata table, or parts of it. Without files, Apache Hudi's readers list folders again."""
    types = column_names(kinds) or METADATA_TYPES[:1]
    dropped = drop_metadata(open_writable(path, {}, locks), types)
    gone = list(dropped.names) if METADATA_TYPES[0] in types else [*types]
    print_result({"types": gone, "dropped": True}, f"dropped from the metadata table: {', '.join(gone)}", as_json=as_json)


@metadata.command(name="list", epilog="Example: tideline metadata list ./trips")
def list_(path: TablePath, *, as_json: AsJson = False) -> None:
    """Show the metadata table: its parts, since when, and how many delta commits its next compaction merges."""
    table = Table.open(path)
    document = metadata_document(table)
    if as_json:
        print_json({"base_path": table.storage.root, "metadata_table": document})
        return
    if document is None:
        print_line(f"no metadata table; create one: tideline metadata create {path} --type files")
        return
    columns = ("TYPE", "CREATED", "FILE GROUPS", "COMPACTED", "DELTA COMMITS", "COLUMNS")
    print_listing(columns, [[*map(part.get, _SHOWN), ", ".join(part.get("columns", ()))] for part in document["partitions"]])


@app.command(epilog="Example: tideline check ./trips --repair")
def check(
    path: TablePath,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the metadata table again if it differs from the table log.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read all bytes of the data files.")] = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Compare the data files with what their commits recorded, and the metadata table with both. Exit code 1 if they differ.

    Sizes, the footers of base files and the blocks of log files are compared, with --deep all bytes of base files too. Missing,
    extra and outdated entries, wrong sizes and damaged files are printed. A repair deletes the metadata table and makes it anew
    from the table log; meanwhile Apache Hudi's readers list folders. It does not bring back data files that are gone or
    damaged.
    """
    progress = Progress("files", None)
    table = open_writable(path, {}, locks, progress) if repair else open_readable(path, progress=progress)
    expect_files(table, progress)
    progress.describe("comparing")
    with progress:
        findings = check_table(table, deep=deep)
        repaired = repair and any(finding.is_repairable for finding in findings)
        if repaired:
            progress.describe("repairing")
            repair_metadata(table)
        left = check_table(table, deep=deep) if repaired else findings
    documents = [{"kind": found.kind.value, "path": found.path, "found": found.found} for found in findings]
    if as_json:
        print_json({"base_path": table.storage.root, "findings": documents, "repaired": repaired, "is_sound": not left})
    elif not findings:
        print_line(_sound(table))
    else:
        print_listing(("KIND", "PATH", "FOUND"), [list(document.values()) for document in documents])
        if repaired:
            print_line("the metadata table was written again" + (f"; {len(left)} difference(s) remain" if left else ""))
    if left:
        raise typer.Exit(EXIT_FAILED)


def _sound(table: Table) -> str:
    if not has_metadata_table(table):
        return "the data files are as committed; no metadata table"
    truth = "table" if table.capabilities.log_is_truth else "timeline"
    return f"the data files are as committed; the metadata table agrees with the {truth}"
