"""The tables of the demo, and the writers with their work.

The result does not depend on the order of commits: rows carry an ordering value, corrections carry a larger one, and only the
writer that inserted a flight deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from examples.demo import source

from tideline_table.table import TableRequest
from tideline_table.writer import Operation

TABLES = {
    "flights": TableRequest("flights", source.FLIGHTS, ("flight_id",), ("month",), "revision", hive_style=True),
    "weather": TableRequest("weather", source.WEATHER, ("weather_id",), ("origin",)),
    "aircraft": TableRequest("aircraft", source.AIRCRAFT, ("tailnum",), (), "seen"),
}
SPARK_FROM = (12, 25)
"""The PySpark writer inserts the flights from this day on."""
AIRCRAFT_FROM_MONTH = 9
EARLY_MODULUS, EARLY_MINUTES, EARLY_REVISION = 40, 1, 2
LATE_MODULUS, LATE_MINUTES, LATE_REVISION = 50, 2, 3
EARLY_DAYS = 3
"""The early corrector revises flights of every third day."""
LATE_DAY = 15
"""The late corrector revises flights of this day of each month, with PySpark."""
DELETE_EVERY = 7


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one commit."""

    operation: Operation
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer process. `batches` yields its batches in order."""

    name: str
    table: str
    uses_spark: bool
    batches: Callable[[], Iterator[Batch]]
    options: tuple[tuple[str, str], ...] = ()


def _flights(first: tuple[int, int], last: tuple[int, int]) -> Iterator[Batch]:
    """Yield inserts day by day, and every `DELETE_EVERY` days deletes of the cancelled flights of these days."""
    cancelled: list[pa.Table] = []
    for count, (month, day, rows) in enumerate(source.days(source.read_flights()), 1):
        if not first <= (month, day) <= last:
            continue
        yield Batch(Operation.UPSERT, rows)
        cancelled.append(rows.filter(pc.is_null(rows.column("dep_time"))))
        if count % DELETE_EVERY == 0 or (month, day) == last:
            doomed = pa.concat_tables(cancelled).select(["flight_id", "month"])
            cancelled = []
            if doomed.num_rows:
                yield Batch(Operation.DELETE, doomed)


def _corrections(*, late: bool) -> Iterator[Batch]:
    """Yield upserts with revised arrival delays of some flights that took place."""
    modulus, minutes, revision = (
        (LATE_MODULUS, LATE_MINUTES, LATE_REVISION) if late else (EARLY_MODULUS, EARLY_MINUTES, EARLY_REVISION)
    )
    for _, day, rows in source.days(source.read_flights()):
        if (day != LATE_DAY) if late else (day % EARLY_DAYS != 0):
            continue
        number = pc.add(rows.column("flight"), rows.column("day"))
        chosen = pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, modulus), modulus)), 0)
        flown = pc.and_(pc.is_valid(rows.column("dep_time")), pc.is_valid(rows.column("arr_delay")))
        part = rows.filter(pc.and_(chosen, flown))
        if not part.num_rows:
            continue
        delay = pc.add(part.column("arr_delay"), pa.scalar(minutes, pa.int32()))
        part = part.set_column(part.schema.get_field_index("arr_delay"), part.schema.field("arr_delay"), delay)
        stamp = pa.chunked_array([pa.repeat(pa.scalar(revision, pa.int64()), part.num_rows)])
        yield Batch(
            Operation.UPSERT, part.set_column(part.schema.get_field_index("revision"), part.schema.field("revision"), stamp)
        )


def _weather() -> Iterator[Batch]:
    for _, _, rows in source.days(source.read_weather()):
        yield Batch(Operation.INSERT, rows)


def _aircraft(parity: int) -> Iterator[Batch]:
    for month, day, rows in source.days(source.read_flights()):
        if month >= AIRCRAFT_FROM_MONTH and day % 2 == parity:
            yield Batch(Operation.UPSERT, source.aircraft_of(rows))


_NEW_FILES = (("hoodie.parquet.small.file.limit", "0"),)
WRITERS = (
    Writer("flights-1", "flights", uses_spark=False, batches=lambda: _flights((1, 1), (6, 30)), options=_NEW_FILES),
    Writer("flights-2", "flights", uses_spark=False, batches=lambda: _flights((7, 1), (12, 24)), options=_NEW_FILES),
    Writer("flights-spark", "flights", uses_spark=True, batches=lambda: _flights(SPARK_FROM, (12, 31)), options=_NEW_FILES),
    Writer("corrections", "flights", uses_spark=False, batches=lambda: _corrections(late=False), options=_NEW_FILES),
    Writer("corrections-spark", "flights", uses_spark=True, batches=lambda: _corrections(late=True), options=_NEW_FILES),
    Writer("weather", "weather", uses_spark=False, batches=_weather),
    Writer("aircraft-1", "aircraft", uses_spark=False, batches=lambda: _aircraft(0)),
    Writer("aircraft-2", "aircraft", uses_spark=False, batches=lambda: _aircraft(1)),
)


def writer_named(name: str) -> Writer:
    """Return the writer with that name."""
    return next(w for w in WRITERS if w.name == name)
