"""`tideline expire`: what it shows, and what it deletes."""

from datetime import date

import pyarrow as pa
from tests.unit.services.fleet import SCHEMA, write

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

DAYS = "hoodie.partition.ttl.strategy.days.retain"
OLD = ("--option", f"{DAYS}=10")


def partitions(path):
    return {one.group.partition_path for one in Table.open(path).state.latest_slices()}


def test_old_partitions_are_shown_and_then_deleted(done, tmp_path):
    path, clock = str(tmp_path / "trips"), ManualClock()  # which stands still at a time that is long gone
    create_table(path, TableRequest("trips", SCHEMA, ("id",), ("city",)), clock)
    table = Table.open(path, clock=clock)
    write(table, 0, city="oslo")
    write(Table.open(path), 10, city="rome")
    assert DAYS in done("expire", path).text
    assert "oslo: last written by" in done("expire", path, *OLD, "--dry-run").text
    assert partitions(path) == {"oslo", "rome"}
    found = done("expire", path, *OLD, "--json").document
    assert [one["path"] for one in found["partitions"]] == ["oslo"]
    assert Table.open(path).state.actions[found["instant"]].operation == "DELETE_PARTITION"
    assert partitions(path) == {"rome"}
    assert f"no row is old by {DAYS}=10 and tideline.row.ttl.days=0" in done("expire", path, *OLD).text
    assert "Example: tideline expire" in done("expire", "--help").text


def test_old_rows_are_counted_by_partition_and_then_deleted(done, tmp_path):
    path = str(tmp_path / "trips")
    schema = pa.schema([*SCHEMA, ("day", pa.date32())])
    create_table(path, TableRequest("trips", schema, ("id",), ("city",)))
    today, old = date.today(), date(2020, 1, 1)  # noqa: DTZ011 - a day more or less makes no difference
    rows = {"id": ["a", "b", "c", "d"], "city": ["oslo", "oslo", "rome", "rome"], "fare": [1.0] * 4, "day": [old, old, old, today]}
    write_rows(Table.open(path), pa.table(rows, schema), Operation.INSERT)
    ttl = ("--option", "tideline.row.ttl.column=day", "--option", "tideline.row.ttl.days=30")
    assert "oslo: 2 old row(s)" in done("expire", path, *ttl, "--dry-run").text
    shown = done("expire", path, *ttl, "--dry-run", "--json").document
    assert (shown["rows"], shown["rows_by_partition"], shown["rows_instant"]) == (3, {"oslo": 2, "rome": 1}, None)
    deleted = done("expire", path, *ttl, "--json").document
    assert (deleted["rows"], deleted["partitions"]) == (3, [])
    assert Table.open(path).state.actions[deleted["rows_instant"]].operation == "UPSERT"
    assert Table.open(path).snapshot().read(["id"]).column(0).to_pylist() == ["d"]
    assert "tideline.row.ttl.days=30" in done("expire", path, *ttl).text
