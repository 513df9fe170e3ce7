"""`tideline read`: snapshot, time-travel, read-optimized, point and incremental queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer

from tideline_cli.arguments import AsJson, TablePath, choice, column_names
from tideline_cli.predicate import parse_where
from tideline_cli.report import print_json, print_line, stdout_bytes
from tideline_cli.sinks import JsonDocument, RowFormat, RowSink, file_sink, format_of, stdout_sink
from tideline_table.errors import InvalidOption
from tideline_table.schema import with_meta_fields
from tideline_table.table import Table
from tideline_table.table.changes import is_sequence
from tideline_table.timeline.instant import parse_as_of

app = typer.Typer()

_EXAMPLES = """Examples:

tideline read ./trips --columns trip_id,fare --where "city = 'Paris' AND fare > 20" --limit 10

tideline read ./trips --key trip-000017 --key trip-000042

tideline read ./trips --as-of "2024-12-31 12:00:00" --output new-year.parquet

tideline read ./trips --since 1207 --changes"""
_TIMES = "--since, --until and --changes"


@app.command(epilog=_EXAMPLES)
def read(
    path: TablePath,
    *,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMNS", help="Only these, in this order. Repeatable or a,b; all without it.", show_default=False),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            metavar="EXPRESSION",
            help="Only rows for which this is true: comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE over columns and literals.",
            show_default=False,
        ),
    ] = "",
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Only the row with this record key; opens only files that can hold it. Repeatable.",
            show_default=False,
        ),
    ] = None,
    as_of: Annotated[
        str,
        typer.Option(
            metavar="INSTANT", help="As the table was then: an instant, a date or a date and time in UTC.", show_default=False
        ),
    ] = "",
    read_optimized: Annotated[
        bool,
        typer.Option(
            "--read-optimized", help="Base files only, without the log files on top: faster, as of each file's last compaction."
        ),
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            metavar="POINT",
            help="Only rows written after this point: a sequence number of the table log (see tideline timeline), an instant, or a "
            "date and time in UTC. By sequence no write is missed, whatever finished late.",
            show_default=False,
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            metavar="POINT", help="With the writes up to this point, as the rows were then; now without it.", show_default=False
        ),
    ] = "",
    changes: Annotated[
        bool,
        typer.Option(
            "--changes",
            help="What changed between the two points: op (i, u, d) with the row before and the row after, deletions too.",
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="At most this many rows.", show_default=False)] = None,
    output: Annotated[
        str, typer.Option(metavar="FILE", help="Write a .parquet, .csv, .jsonl or .arrow file instead.", show_default=False)
    ] = "",
    row_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="|".join(RowFormat), help="Format of the rows; jsonl, or what FILE ends in.", show_default=False
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Read rows as JSON lines, with the five meta fields in front unless columns are chosen.

    All committed rows are seen, log files merged in. Dates and timestamps are ISO 8601 (UTC with Z), decimals are numbers with all their
    digits, bytes are base64, and NaN and the infinities are the texts "NaN", "Infinity" and "-Infinity": what write reads back. Rows
    stream; a table larger than memory is fine.
    """
    query = _Query(
        columns=column_names(columns) or None,
        keys=tuple(keys or ()),
        as_of=parse_as_of(as_of) if as_of else "",
        read_optimized=read_optimized,
        since=_point(since),
        until=_point(until),
        changes=changes,
    )
    query.check()
    table = Table.open(path)
    condition = parse_where(where, with_meta_fields(table.schema_at(query.as_of))) if where.strip() else None
    schema, batches = query.run(table, condition)
    chosen = choice("--format", row_format, RowFormat) if row_format else None
    if output:
        with file_sink(output, chosen or format_of(output), schema) as sink:
            rows = _copy(batches, sink, limit)
        if as_json:
            print_json({"output": output, "row_count": rows})
        else:
            print_line(f"{rows} rows written to {output}")
        return
    stream = stdout_bytes()
    sink = JsonDocument(stream, schema) if as_json else stdout_sink(chosen or RowFormat.JSONL, stream, schema)
    _copy(batches, sink, limit)
    sink.close()


@dataclass(frozen=True, slots=True)
class _Query:
    columns: Sequence[str] | None
    keys: tuple[str, ...]
    as_of: str
    read_optimized: bool
    since: str
    until: str
    changes: bool

    @property
    def is_incremental(self) -> bool:
        return bool(self.since or self.until or self.changes)

    def check(self) -> None:
        """Raise `InvalidOption` for options of different kinds of queries."""
        others = [
            name
            for name, given in (("--as-of", self.as_of), ("--read-optimized", self.read_optimized), ("--key", self.keys))
            if given
        ]
        if self.is_incremental and others:
            raise InvalidOption(f"{others[0]} together with {_TIMES}", expected="options of one kind of query")
        if self.read_optimized and self.keys:
            raise InvalidOption("--key together with --read-optimized", expected="options of one kind of query")

    def run(self, table: Table, where: pc.Expression | None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema of the rows and the rows."""
        if self.changes:
            found = table.changes(self.since, self.until)
            return found.output(self.columns), found.scan(self.columns, where)
        if self.is_incremental:
            rows = table.incremental(self.since, self.until)
            return rows.output(self.columns), rows.scan(self.columns, where)
        if self.keys:
            located = table.look_up(self.keys, self.columns, self.as_of, where)
            return located.schema, iter(located.to_batches())
        return table.scan(self.columns, where, self.as_of, read_optimized=self.read_optimized)


def _point(text: str) -> str:
    """A sequence as it is, everything else as an instant."""
    return text if not text or is_sequence(text) else parse_as_of(text)


def _copy(batches: Iterator[pa.RecordBatch], sink: RowSink, limit: int | None) -> int:
    rows = 0
    if limit == 0:
        return rows
    for batch in batches:
        wanted = batch if limit is None else batch.slice(0, limit - rows)
        sink.write(wanted)
        rows += wanted.num_rows
        if rows == limit:
            break
    return rows
