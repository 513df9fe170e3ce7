"""`tideline read`: a snapshot or time-travel query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from tideline_cli.arguments import AsJson, TablePath, choice, column_names
from tideline_cli.predicate import parse_where
from tideline_cli.report import print_json, print_line, stdout_bytes
from tideline_cli.sinks import JsonDocument, RowFormat, RowSink, file_sink, format_of, stdout_sink
from tideline_table.schema import with_meta_fields
from tideline_table.table import Table
from tideline_table.timeline.instant import parse_as_of

app = typer.Typer()

_EXAMPLES = """Examples:

tideline read ./trips --columns trip_id,fare --where "city = 'Paris' AND fare > 20" --limit 10

tideline read ./trips --as-of "2024-12-31 12:00:00" --output new-year.parquet"""


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
    as_of: Annotated[
        str,
        typer.Option(
            metavar="INSTANT", help="As the table was then: an instant, a date or a date and time in UTC.", show_default=False
        ),
    ] = "",
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

    Dates and timestamps are ISO 8601 (UTC with Z), decimals are numbers with all their digits, bytes are base64, and NaN and the infinities are the texts
    "NaN", "Infinity" and "-Infinity": what write reads back. Rows stream; a table larger than memory is fine.
    """
    instant = parse_as_of(as_of) if as_of else ""
    table = Table.open(path)
    condition = parse_where(where, with_meta_fields(table.schema)) if where.strip() else None
    schema, batches = table.scan(column_names(columns) or None, condition, instant)
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
