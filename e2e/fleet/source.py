"""The rows: flights of New York in 2013 and the aircraft seen in them, a month for each round, split into batches of two
writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from examples.demo.source import AIRCRAFT, FLIGHTS, aircraft_of, read_flights

WRITERS = 2
"""Writers of each table."""
BATCHES = 3
"""Commits of each writer in a round."""
LAST_DAY = 31
CORRECTED_DAYS = 5
CORRECTION_MIN = 60


@dataclass(frozen=True)
class TableKind:
    """A table of the run. `options` are those of its writers."""

    name: str
    type: str
    schema: pa.Schema
    key: str
    ordering: str
    partition: str = ""
    options: dict[str, str] = field(default_factory=dict)


# A writer that is killed counts as dead soon.
_OPTIONS = {"hoodie.client.heartbeat.interval_in_ms": "5000"}
TABLES = {
    kind.name: kind
    for kind in (
        # Every commit makes new small files, which clustering rewrites.
        TableKind(
            "flights", "cow", FLIGHTS, "flight_id", "revision", "month", {**_OPTIONS, "hoodie.parquet.small.file.limit": "0"}
        ),
        # Both writers update the same keys again and again: log files, which compaction merges. New keys are added to them, too.
        TableKind("aircraft", "mor", AIRCRAFT, "tailnum", "seen", options={**_OPTIONS, "tideline.insert.to.log": "true"}),
    )
}


UPDATED = ("aircraft",)
"""Tables whose rows the writers update all the time."""


@dataclass(frozen=True)
class Batch:
    """The rows of one commit, in a file of the bucket of incoming rows."""

    table: str
    writer: int
    file: str
    rows: pa.Table


def round_of(month: int) -> Iterator[Batch]:
    """Yield the batches of a round: the flights of a month and the aircraft in them. Each day is in one batch of each table."""
    flights = _flights()
    flights = flights.filter(pc.equal(flights.column("month"), month))
    for writer, number, first, last in _spans():
        day = flights.column("day")
        rows = flights.filter(pc.and_(pc.greater_equal(day, first), pc.less_equal(day, last)))
        for table, content in (("flights", rows), ("aircraft", aircraft_of(rows))):
            yield Batch(table, writer, f"month-{month:02}/{table}-{writer}-{number}.parquet", content)


def corrections(month: int) -> Iterator[Batch]:
    """Yield one batch for each writer with flights of `month` again, in a newer revision."""
    flights = _flights()
    for writer in range(WRITERS):
        day = flights.column("day").to_numpy()
        chosen = (flights.column("month").to_numpy() == month) & (day % CORRECTED_DAYS == 0) & (day % WRITERS == writer)
        rows = flights.filter(pa.array(chosen))
        delay = pc.add(rows.column("arr_delay"), pa.scalar(CORRECTION_MIN, pa.int32()))
        rows = rows.set_column(rows.column_names.index("arr_delay"), FLIGHTS.field("arr_delay"), delay)
        newer = pc.add(rows.column("revision"), pa.scalar(1, pa.int64()))
        rows = rows.set_column(rows.column_names.index("revision"), FLIGHTS.field("revision"), newer)
        yield Batch("flights", writer, f"corrections-{month:02}/flights-{writer}.parquet", rows)


def expected_rows(kind: TableKind, written: Sequence[pa.Table]) -> pa.Table:
    """Return the rows that a table must have after these batches in any order: of each key the one with the largest ordering
    value."""
    with duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        database.register("written", pa.concat_tables(written))
        chosen = f"from written qualify row_number() over (partition by {kind.key} order by {kind.ordering} desc) = 1"
        return database.sql(chosen).to_arrow_table().select(kind.schema.names).cast(kind.schema)


def _spans() -> Iterator[tuple[int, int, int, int]]:
    """Yield (writer, number, first day, last day) of each batch of a month."""
    count = WRITERS * BATCHES
    bounds = [round(LAST_DAY * i / count) for i in range(count + 1)]
    for i in range(count):
        # Neighbouring days belong to different writers, so that both write the same partitions and keys at once.
        yield i % WRITERS, i // WRITERS, bounds[i] + 1, bounds[i + 1]


@lru_cache(maxsize=1)
def _flights() -> pa.Table:
    return read_flights()
