"""`tideline read`: snapshot, time-travel, read-optimized, point and incremental queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer

from tideline_cli.arguments import AsJson, TablePath, choice, column_names, option
from tideline_cli.opening import expect_files, open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result, print_warning, stdout_bytes
from tideline_cli.sinks import JsonDocument, RowFormat, RowSink, file_sink, format_of, stdout_sink
from tideline_table.errors import InvalidOption
from tideline_table.hudi import WRITE_ACTIONS, State, is_sequence
from tideline_table.reader import parse_where
from tideline_table.schema import with_meta_fields
from tideline_table.table import HeldLease, Table

app = typer.Typer()

_EXAMPLES = """Examples:

tideline read ./trips --columns trip_id,fare --where "city = 'Paris' AND fare > 20" --limit 10

tideline read ./trips --key trip-000017 --key trip-000042

tideline read ./trips --as-of "2024-12-31 12:00:00" --output new-year.parquet

tideline read ./trips --since 1207 --changes"""
_TIMES = "--since, --until and --changes"

_Columns = Annotated[
    list[str] | None,
    option(
        metavar="COLUMNS",
        help="Only these columns, in this order; address.city is a field of a struct. Repeatable or a,b. Default: all.",
    ),
]
_Where = Annotated[
    str,
    option(
        metavar="EXPRESSION",
        help="Only rows for which this condition is true: comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE over columns "
        "and literals.",
    ),
]
_Keys = Annotated[
    list[str] | None,
    option("--key", metavar="KEY", help="Only the row with this record key. Reads only files that can contain it. Repeatable."),
]
_AsOf = Annotated[str, option(metavar="POINT", help="Read the table as of this instant, date, time in UTC, or sequence number.")]
_Op = Annotated[
    str, option(metavar="inserted,updated,deleted", help="Only changes of these operations (also i,u,d); implies --changes.")
]
_Since = Annotated[
    str,
    option(
        metavar="POINT",
        help="Only rows written after this point: a sequence number of the table log (see tideline timeline), an instant, or a "
        "date and time in UTC. With a sequence number, writes that completed late are included.",
    ),
]


@app.command(epilog=_EXAMPLES)
def read(
    path: TablePath,
    *,
    columns: _Columns = None,
    where: _Where = "",
    keys: _Keys = None,
    as_of: _AsOf = "",
    read_optimized: Annotated[
        bool,
        typer.Option(
            "--read-optimized",
            help="Read base files only, without log files: faster, as of the last compaction of each file group.",
        ),
    ] = False,
    since: _Since = "",
    until: Annotated[str, option(metavar="POINT", help="Only rows written up to this point, as of this point. Default: now.")] = "",
    changes: Annotated[
        bool,
        typer.Option(
            "--changes",
            help="Return the changes between the two points, including deletions: op (i, u, d), the row before and the row after.",
        ),
    ] = False,
    op: _Op = "",
    limit: Annotated[int | None, option(min=0, help="At most this many rows.")] = None,
    output: Annotated[
        str, option(metavar="FILE", help="Write the rows to this .parquet, .csv, .jsonl or .arrow file instead of stdout.")
    ] = "",
    lease: Annotated[
        bool,
        typer.Option(
            "--lease", help="Hold a reader lease while the rows are read: cleaning and archival keep what the query needs."
        ),
    ] = False,
    row_format: Annotated[
        str, option("--format", metavar="|".join(RowFormat), help="Format of the rows. Default: by the ending of FILE, else jsonl.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Read rows as JSON lines, with the five meta fields first unless columns are chosen.

    Reads all committed rows, including those in log files. Dates and timestamps are ISO 8601 (UTC with Z), decimals are numbers
    with all their digits, bytes are base64, and NaN and the infinities are the texts "NaN", "Infinity" and "-Infinity". The write
    command reads this format. Rows are streamed, so a table may be larger than memory.
    """
    query = _Query(
        columns=column_names(columns) or None,
        keys=tuple(keys or ()),
        as_of=as_of,
        read_optimized=read_optimized,
        since=since,
        until=until,
        changes=changes or bool(op),
        op=op,
    )
    query.check()
    progress = Progress("files", None)
    table = open_readable(path, progress=progress)
    query = query.on(table)
    if query.as_of:
        _warn_before_the_first_write(table, query.as_of)
    condition = parse_where(where, with_meta_fields(table.schema_at(query.as_of))) if where.strip() else None
    chosen = choice("--format", row_format, RowFormat) if row_format else None
    progress.describe("reading")
    if not (query.is_incremental or query.keys or query.as_of):
        expect_files(table, progress)
    # Rows on a terminal show by themselves how far the command is.
    shown = progress if output or not sys.stdout.isatty() else nullcontext()
    with query.leased(table) if lease else nullcontext(), shown:
        print_rows(*query.run(table, condition), output, chosen, limit, as_json=as_json)


def print_rows(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], output: str, chosen: RowFormat | None, limit: int | None, *, as_json: bool
) -> None:
    """Write rows to the file `output`, or to stdout if it is empty."""
    if output:
        with file_sink(output, chosen or format_of(output), schema) as sink:
            rows = _copy(batches, sink, limit)
        print_result({"output": output, "row_count": rows}, f"{rows} rows written to {output}", as_json=as_json)
        return
    stream = stdout_bytes()
    sink = JsonDocument(stream, schema) if as_json else stdout_sink(chosen or RowFormat.JSONL, stream, schema)
    _copy(batches, sink, limit)
    sink.close()


def _warn_before_the_first_write(table: Table, as_of: str) -> None:
    """Print a warning if no write was completed by `as_of`, because the empty result looks like that of an empty table."""
    done = [a.instant for a in table.state.actions.values() if a.state is State.COMPLETED and a.action in WRITE_ACTIONS]
    if table.slices(as_of) or is_sequence(as_of) or any(instant <= as_of for instant in done):
        return
    if table.state.archived_sequence:
        print_warning(f"the table has no rows as of {as_of}; its instants before {table.state.archived_before} are archived")
    elif done:
        print_warning(f"the table had no write yet as of {as_of}; its first one is {min(done)}")


@dataclass(frozen=True, slots=True)
class _Query:
    columns: Sequence[str] | None
    keys: tuple[str, ...]
    as_of: str
    read_optimized: bool
    since: str
    until: str
    changes: bool
    op: str

    @property
    def is_incremental(self) -> bool:
        return bool(self.since or self.until or self.changes)

    def check(self) -> None:
        """Raise `InvalidOption` if options of different kinds of queries are combined."""
        others = [
            name
            for name, given in (("--as-of", self.as_of), ("--read-optimized", self.read_optimized), ("--key", self.keys))
            if given
        ]
        if self.is_incremental and others:
            raise InvalidOption(f"{others[0]} together with {_TIMES}", expected="options of one kind of query")
        if self.read_optimized and self.keys:
            raise InvalidOption("--key together with --read-optimized", expected="options of one kind of query")

    def on(self, table: Table) -> _Query:
        """Return the query with its points as the table's own. Raises `InvalidOption` for text that is no point."""
        as_of, since, until = table.instant_of(self.as_of), table.point_of(self.since), table.point_of(self.until)
        return replace(self, as_of=as_of, since=since, until=until)

    def leased(self, table: Table) -> HeldLease:
        """Return a lease, to be held as a context, on the oldest state that the query reads. Raises the errors of `take_lease`."""
        return HeldLease(table, self.as_of, after=self.since, reads="tideline read")

    def run(self, table: Table, where: pc.Expression | None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema of the rows and the rows."""
        if self.changes:
            found = table.changes(self.since, self.until, self.op)
            return found.output(self.columns), found.scan(self.columns, where)
        if self.is_incremental:
            rows = table.incremental(self.since, self.until)
            return rows.output(self.columns), rows.scan(self.columns, where)
        if self.keys:
            located = table.look_up(self.keys, self.columns, self.as_of, where)
            return located.schema, iter(located.to_batches())
        return table.scan(self.columns, where, self.as_of, read_optimized=self.read_optimized)


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
