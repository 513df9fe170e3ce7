"""Is every table what it should be? Computed from the CSV files by DuckDB, read by this engine and by hudi-rs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from hudi import HudiTable

from tideline_cli.demo import fleet, source
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
"""  # noqa: S608 - numbers of our own
_WEATHER = "select origin || '-' || strftime(time_hour, '%Y%m%dT%H') as weather_id, * from weather_csv"
_AIRCRAFT = f"""
with sightings as (
  select tailnum, carrier as last_carrier, flight as last_flight, origin as last_origin, dest as last_dest, time_hour as last_departure,
         (epoch(time_hour)::bigint // 60 + minute) * 10000 + flight as seen
  from flights_csv where tailnum is not null and month >= {fleet.AIRCRAFT_FROM_MONTH})
select * from sightings qualify row_number() over (partition by tailnum order by seen desc) = 1
"""  # noqa: S608 - as above
EXPECTED = {"flights": (_FLIGHTS, source.FLIGHTS), "weather": (_WEATHER, source.WEATHER), "aircraft": (_AIRCRAFT, source.AIRCRAFT)}


@dataclass(frozen=True, slots=True)
class Check:
    """One table read by one reader. `difference` is empty when it equals what the CSV files say."""

    table: str
    reader: str
    rows: int
    difference: str


def verify(root: Path) -> list[Check]:
    """Check every table of the fleet with both readers."""
    checks = []
    with _database() as database:
        for name, request in fleet.TABLES.items():
            query, schema = EXPECTED[name]
            base_path = str(root / name)
            expected = _ordered(database.sql(query).to_arrow_table().select(schema.names).cast(schema), request.key_fields[0])
            ours = Table.open(base_path).read(columns=schema.names)
            theirs = pa.Table.from_batches(HudiTable(base_path).read())
            for reader, found in (("tideline", ours), ("hudi-rs", theirs)):
                rows = _ordered(found.select(schema.names).cast(schema), request.key_fields[0])
                checks.append(Check(name, reader, rows.num_rows, difference(expected, rows, request.key_fields[0])))
    return checks


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    with tempfile.TemporaryDirectory(prefix="tideline-verify-") as folder, duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        flights = Path(folder) / "flights.csv"
        flights.write_bytes(source.flights_csv())
        for name, path in (("flights_csv", flights), ("weather_csv", source.source_folder() / "weather.csv")):
            # DuckDB takes no parameters in a view's definition; the paths are ours.
            database.execute(f"create table {name} as select * from read_csv('{path}', nullstr = 'NA')")  # noqa: S608
        yield database


def _ordered(rows: pa.Table, key: str) -> pa.Table:
    return rows.sort_by(key).combine_chunks()


def difference(expected: pa.Table, found: pa.Table, key: str) -> str:
    """Empty for equal tables, otherwise the first rows that differ, by key."""
    if expected.equals(found):
        return ""
    want = {row[key]: row for row in expected.to_pylist()}
    have: dict[object, dict[str, object]] = {}
    lines: list[str] = []
    for row in found.to_pylist():
        if row[key] in have:
            lines.append(f"key {row[key]!r} stands twice")
        have[row[key]] = row
    lines += [f"{k!r} is missing" for k in want.keys() - have.keys()]
    lines += [f"{k!r} should not be there" for k in have.keys() - want.keys()]
    for k in want.keys() & have.keys():
        changed = {c: (v, have[k][c]) for c, v in want[k].items() if v != have[k][c]}
        if changed:
            lines.append(f"{k!r}: " + ", ".join(f"{c} should be {w!r} and is {h!r}" for c, (w, h) in changed.items()))
    shown = sorted(lines)[:5]
    return f"{len(lines)} difference(s): " + "; ".join(shown) if lines else "equal rows in a different type or order"
