"""`tideline write`: write the rows of files as one commit."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import pyarrow as pa
import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, choice, option, settings_from
from tideline_cli.opening import open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_facts, print_json, print_result
from tideline_cli.sources import read_rows
from tideline_cli.tables import committed_document
from tideline_table.action import InlineService, RoutedWrite, ThisProcess, delete_partitions, run_inline, write_rows
from tideline_table.coordination import Committed
from tideline_table.schema import named_field
from tideline_table.table import Table
from tideline_table.writer import ROW_OPERATIONS, FileGroupResult, Operation

app = typer.Typer()

_EXAMPLES = """Examples:

tideline write ./trips --from monday.parquet --from tuesday.csv

tail -n 100 trips.jsonl | tideline write ./trips --from - --operation insert

tideline write ./trips --from gone.csv --operation delete

tideline write ./trips --from may.parquet --operation insert_overwrite"""


@dataclass(frozen=True, slots=True)
class _Counted(ThisProcess):
    """An executor that advances `progress` with each file of a write."""

    progress: Progress

    def write(self, work: RoutedWrite) -> list[FileGroupResult]:
        self.progress.expect(len(work.tasks))

        def written(result: FileGroupResult) -> None:
            work.written(result)
            self.progress.advance()

        return super(_Counted, self).write(replace(work, written=written))


@app.command(epilog=_EXAMPLES)
def write(
    path: TablePath,
    *,
    files: Annotated[
        list[str],
        option(
            "--from",
            metavar="FILE",
            help="A .parquet, .csv, .json, .jsonl, .ndjson, .arrow or .feather file, or - for JSON lines on stdin. Repeatable.",
        ),
    ],
    operation: Annotated[
        str, typer.Option(metavar="|".join(ROW_OPERATIONS), help="Operation on the rows. delete needs only their key columns.")
    ] = Operation.UPSERT.value,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Also commit an input without rows.")] = False,
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Write the rows of all files as one atomic commit. Without any row, nothing is committed unless --allow-empty is given.

    Text in CSV and JSON is parsed to the table's types: dates and timestamps in ISO 8601 (UTC if no zone is given), decimals
    exactly, bytes in base64. In CSV an empty field is null. A write that conflicts with another one is repeated on the new state.
    """
    chosen = choice("--operation", operation, Operation)
    table = open_writable(path, settings_from(option), locks)
    with Progress("files", None) as progress:
        progress.describe("reading rows")
        rows = read_rows(progress.over(files), _columns(table, chosen))
    if not rows.num_rows and not allow_empty:
        reason = f"no rows in {', '.join(files)}"
        text = f"nothing to do: {reason}; no commit was made (--allow-empty makes one)"
        print_result({"operation": chosen.value, "instant": None, "reason": reason}, text, as_json=as_json)
        return
    with Progress("files", None) as progress:
        progress.describe(f"{chosen} of {rows.num_rows} rows")
        committed = write_rows(table, rows, chosen, executor=_Counted(os.cpu_count() or 1, progress))
        inline = run_inline(table)
    _report(chosen, committed, inline, as_json=as_json)


@app.command(epilog="Example:\n\ntideline delete-partition ./trips 2024-05-01 2024-05-02")
def delete_partition(
    path: TablePath,
    partitions: Annotated[
        list[str], typer.Argument(metavar="PARTITION...", help="Partition path, as in _hoodie_partition_path.", show_default=False)
    ],
    *,
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete all rows of whole partitions as one commit. Cleaning deletes the files later; until then old instants are readable."""
    with Progress("files", None) as progress:
        progress.describe(f"{Operation.DELETE_PARTITION.value} of {len(partitions)} partition(s)")
        table = open_writable(path, settings_from(option), locks, progress, every=True)
        committed = delete_partitions(table, partitions)
        inline = run_inline(table)
    _report(Operation.DELETE_PARTITION, committed, inline, as_json=as_json)


def _columns(table: Table, operation: Operation) -> pa.Schema:
    """Return the columns that files of rows can have. For a delete, also key fields in structs, as columns with dotted names."""
    if operation is not Operation.DELETE:
        return table.schema
    keygen = table.definition.keygen
    inside = [n for n in dict.fromkeys((*keygen.key_fields, *keygen.partition_fields)) if n not in table.schema.names]
    return pa.schema([*table.schema, *(named_field(table.schema, name) for name in inside)])


def _report(operation: Operation, committed: Committed, inline: tuple[InlineService, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"operation": operation.value, **committed_document(committed), "inline": [asdict(done) for done in inline]})
        return
    outcomes = [(f"inline {done.service}", f"{done.instant} {_outcome(done)}".strip()) for done in inline]
    print_facts(
        [
            ("instant", committed.instant),
            ("sequence", committed.sequence),
            ("rows inserted", committed.rows_inserted),
            ("rows updated", committed.rows_updated),
            ("rows deleted", "unknown" if committed.rows_deleted < 0 else committed.rows_deleted),
            ("conflicts retried", committed.attempts - 1),
            *outcomes,
        ]
    )


def _outcome(done: InlineService) -> str:
    return f"failed: {done.error}" if done.error else "completed" if done.is_run else "planned"
