"""Time to live of rows: which are old, and writes to them beside their deletion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.unit.table.tables import open_table

from tideline_table.action import expire_rows, expired_rows, write_rows
from tideline_table.action.write import expiry
from tideline_table.clock import ManualClock
from tideline_table.config import ROW_TTL_COLUMN, ROW_TTL_DAYS, ROW_TTL_UNIT
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

KINDS = {
    "date": pa.date32(),
    "zoned": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("ms"),
    "seconds": pa.int64(),
    "milliseconds": pa.int64(),
    "microseconds": pa.int64(),
}
FIELDS = [pa.field("id", pa.string(), nullable=False), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string())]
SCHEMA = pa.schema([*FIELDS, *KINDS.items()])


def rows(table: Table, ages: dict[str, float | None], ts: int = 1) -> pa.Table:
    """A row for each key, of an age in days, in the city of its first letter."""
    found = []
    for key, days in ages.items():
        at = None if days is None else table.clock.now() - timedelta(days=days)
        s = None if at is None else int(at.timestamp())
        found.append(
            {
                "id": key,
                "city": key[0],
                "ts": ts,
                "note": f"of {key}",
                "zoned": at,
                "date": at and at.date(),
                "local": at and at.replace(tzinfo=None),
                **{name: s and s * factor for name, factor in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6))},
            }
        )
    return pa.Table.from_pylist(found, schema=SCHEMA)


def table_of(kind: TableType = TableType.COW, **ages: float | None) -> Table:
    clock = ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))
    storage = MemoryStorage(clock=clock)
    create_table(storage.root, TableRequest("t1", SCHEMA, ("id",), ("city",), "ts", type=kind), clock, storage)
    table = open_table(storage, clock)
    write_rows(table, rows(table, ages), Operation.UPSERT)
    return table


def ttl(column: str = "zoned", days: float = 10, **more: object) -> dict[str, object]:
    return {ROW_TTL_DAYS.key: days, ROW_TTL_COLUMN.key: column, **more}


def keys(table: Table) -> list[str]:
    return sorted(table.refresh() and table.snapshot().read(["id"]).column("id").to_pylist())


AGES = {"a1": 11.0, "a2": 9.0, "b1": 400.0, "b2": None, "c1": 10.5}


@pytest.mark.parametrize("column", KINDS)
def test_rows_of_each_kind_of_column_are_old_by_its_value(column):
    table = table_of(**AGES)
    options = ttl(column, **({ROW_TTL_UNIT.key: column} if column.endswith("seconds") else {}))
    # The day of c1 is ten days ago: its midnight is older, the day is not.
    old = {"a": 1, "b": 1} | ({} if column == "date" else {"c": 1})
    assert expired_rows(table, options) == old
    done, count = expire_rows(table, options)
    assert (done.attempts, count) == (1, sum(old.values()))
    assert keys(table) == ["a2", "b2"] + (["c1"] if column == "date" else [])
    before = table.refresh().sequence
    assert (expire_rows(table, options), expired_rows(table, options)) == ((None, 0), {})
    assert table.refresh().sequence == before
    assert expire_rows(table, ttl(column, 0)) == (None, 0)


@pytest.mark.parametrize("kind", TableType)
def test_rows_of_both_types_of_tables_are_deleted_at_most_so_many(kind, monkeypatch):
    monkeypatch.setattr(expiry, "MOST_ROWS", 2)
    table = table_of(kind, **{f"a{n}": 20.0 for n in range(5)}, b1=20.0, b2=1.0)
    write_rows(table, rows(table, {"a1": 1.0}, ts=2), Operation.UPSERT)
    counts = [expire_rows(table, ttl())[1] for _ in range(4)]
    assert (counts, keys(table)) == ([2, 2, 1, 0], ["a1", "b2"])


def test_a_row_that_another_writer_makes_young_before_the_commit_stays(monkeypatch):
    table = table_of(**AGES)
    found, asked = expiry._first_rows, []

    def written_meanwhile(*given):
        answer = found(*given)
        asked.append(answer.num_rows)
        if len(asked) == 1:
            other = open_table(table.storage, table.clock, "other")
            write_rows(other, rows(other, {"a1": 0.0}, ts=2), Operation.UPSERT)
        return answer

    monkeypatch.setattr(expiry, "_first_rows", written_meanwhile)
    assert expire_rows(table, ttl())[1] == 2
    assert (asked, keys(table)) == ([3, 2], ["a1", "a2", "b2"])


@pytest.mark.parametrize("kind", TableType)
def test_an_old_row_stays_with_a_young_one_of_its_key(kind):
    """An insert without look-up left both: the deletion of the key would delete the young one, too."""
    table = table_of(kind, a1=20.0, a2=20.0, b1=20.0)
    write_rows(table, rows(table, {"a1": 1.0, "b1": None}, ts=2), Operation.INSERT)
    assert expire_rows(table, ttl())[1] == 1
    assert keys(table) == ["a1", "a1", "b1", "b1"]
    assert expire_rows(table, ttl()) == (None, 0)


def test_old_rows_that_stay_hold_up_no_others(monkeypatch):
    monkeypatch.setattr(expiry, "MOST_ROWS", 2)
    table = table_of(a1=20.0, a2=20.0, a3=20.0, c1=20.0, c2=20.0, c3=20.0)
    write_rows(table, rows(table, {"a1": 1.0, "a2": 1.0, "a3": 1.0}, ts=2), Operation.INSERT)
    assert [expire_rows(table, ttl())[1] for _ in range(4)] == [1, 1, 1, 0]
    assert keys(table) == ["a1", "a1", "a2", "a2", "a3", "a3"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (ttl("note"), "a column of type string"),
        (ttl("gone"), "that the table does not have"),
        (ttl("ts"), "of type int64"),
        ({ROW_TTL_DAYS.key: 1}, "column=''"),
        (ttl(days=1e6), "at most 365000"),
    ],
)
def test_a_column_that_cannot_tell_an_age_is_refused(options, found):
    table = table_of(a1=1.0)
    before = table.refresh().sequence
    for ask in (expire_rows, expired_rows):
        with pytest.raises(InvalidOption, match=found):
            ask(table, options)
    assert table.refresh().sequence == before


@pytest.mark.parametrize("without", [{"key_fields": ()}, {"meta_fields": False}])
def test_a_table_whose_rows_are_not_found_by_their_keys_is_refused_before_rows_are_counted(without):
    clock = ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))
    storage = MemoryStorage(clock=clock)
    asked = {"key_fields": ("id",), "partition_fields": ("city",), **without}
    create_table(storage.root, TableRequest("t1", SCHEMA, **asked), clock, storage)
    table = open_table(storage, clock)
    write_rows(table, rows(table, {"a1": 20.0}), Operation.INSERT)
    for ask in (expired_rows, expire_rows):
        with pytest.raises(UnsupportedTable, match="no row is found by its key"):
            ask(table, ttl())
