"""Verifies every table: DuckDB computes the expected rows from the CSV files, this engine and hudi-rs read the actual ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from examples.demo import fleet, source
from hudi import HudiTable

from tideline_table.table import Table

_FLIGHTS = f"""
select strftime(make_date(year, month, day), '%Y%m%d') || '-' || carrier || '-' || flight || '-' || origin as flight_id,
       year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time,
       arr_delay + case when late then {fleet.LATE_MINUTES} when early then {fleet.EARLY_MINUTES} else 0 end as arr_delay,
       carrier, flight, tailnum, origin, dest, air_time, distance, hour, minute, time_hour,
       case when late then {fleet.LATE_REVISION} when early then {fleet.EARLY_REVISION} else 1 end as revision
from (select *,
             arr_delay is not null and day = {fleet.LATE_DAY} and (flight + day) % {fleet.LATE_MODULUS} = 0 as late,
             arr_delay is not null and day % {fleet.EARLY_DAYS} = 0 and (flight + day) % {fleet.EARLY_MODULUS} = 0 as early
      from flights_csv)
where dep_time is not null
"""
_WEATHER = "select origin || '-' || strftime(time_hour, '%Y%m%dT%H') as weather_id, * from weather_csv"
_AIRCRAFT = f"""
with sightings as (
  select tailnum, carrier as last_carrier, flight as last_flight, origin as last_origin, dest as last_dest, time_hour as last_departure,
         (epoch(time_hour)::bigint // 60 + minute) * 10000 + flight as seen
  from flights_csv where tailnum is not null and month >= {fleet.AIRCRAFT_FROM_MONTH})
select * from sightings qualify row_number() over (partition by tailnum order by seen desc) = 1
"""
EXPECTED = {"flights": (_FLIGHTS, source.FLIGHTS), "weather": (_WEATHER, source.WEATHER), "aircraft": (_AIRCRAFT, source.AIRCRAFT)}


@dataclass(frozen=True, slots=True)
class Check:
    """One table read by one reader. `difference` is empty if the rows are those that the CSV files define."""

    table: str
    reader: str
    rows: int
    difference: str


def verify(root: Path) -> list[Check]:
    """Check every table of the fleet with both readers."""
    checks = []
    with _database() as database:
        for name in fleet.TABLES:
            query, schema = EXPECTED[name]
            base_path = str(root / name)
            expected = database.sql(query).to_arrow_table().select(schema.names).cast(schema)
            by_tideline = Table.open(base_path).read(columns=schema.names)
            by_hudi_rs = pa.Table.from_batches(HudiTable(base_path).read())
            for reader, found in (("tideline", by_tideline), ("hudi-rs", by_hudi_rs)):
                rows = found.select(schema.names).cast(schema)
                checks.append(Check(name, reader, rows.num_rows, _difference(database, expected, rows)))
    return checks


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    with tempfile.TemporaryDirectory(prefix="tideline-verify-") as folder, duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        flights = Path(folder) / "flights.csv"
        flights.write_bytes(source.flights_csv())
        for name, path in (("flights_csv", flights), ("weather_csv", source.source_folder() / "weather.csv")):
            # DuckDB accepts no parameters in this statement, and the paths are not user input.
            database.execute(f"create table {name} as select * from read_csv('{path}', nullstr = 'NA')")
        yield database


def _difference(database: duckdb.DuckDBPyConnection, expected: pa.Table, found: pa.Table) -> str:
    """Return some of the differing rows, or empty text if both tables have the same rows."""
    database.register("expected", expected)
    database.register("found", found)
    missing = database.sql("from expected except all from found limit 3").fetchall()
    extra = database.sql("from found except all from expected limit 3").fetchall()
    return "; ".join([*(f"missing: {row}" for row in missing), *(f"not expected: {row}" for row in extra)])
