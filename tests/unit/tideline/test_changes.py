"""Incremental queries and changes of the public API."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from tests.unit.tideline.conftest import SCHEMA, ids, trips_of

import tideline
from tideline.errors import InstantNotFound, InvalidInput


def test_changes_have_images_and_continue_where_they_ended(table: tideline.Table) -> None:
    first = table.changes()
    assert {(c["op"], c["after"]["id"]) for c in first.read().to_pylist()} == {("i", "a"), ("i", "b"), ("i", "c")}
    table.upsert(trips_of(("a", "mon", 95.0, 2)))
    table.delete(["c"])
    found = table.changes(since=first.until)
    by_op = {c["op"]: (c["before"], c["after"]) for c in found.read(["id", "fare"]).to_pylist()}
    assert by_op == {"u": ({"id": "a", "fare": 90.0}, {"id": "a", "fare": 95.0}), "d": ({"id": "c", "fare": None}, None)}
    assert found.until > first.until
    assert table.changes(since=found.until).read().num_rows == 0
    assert first.read().num_rows == 3  # a query is of a fixed part of the history


def test_changes_are_arrow_streams(table: tideline.Table) -> None:
    found = table.changes()
    assert found.schema.names == ["op", "before", "after"]
    assert [f.name for f in found.schema.field("after").type] == SCHEMA.names
    assert pa.table(found).schema == found.schema
    assert duckdb.sql("select after.id from found where after.fare > 100").fetchall() == [("b",)]
    assert isinstance(found.scan(), pa.RecordBatchReader)
    assert [c["after"]["id"] for c in found.read(where="fare > 100").to_pylist()] == ["b"]


def test_incremental_rows_are_those_written_since(table: tideline.Table) -> None:
    since = table.incremental()
    assert ids(since.read()) == ["a", "b", "c"]
    assert since.schema == SCHEMA
    table.upsert(trips_of(("a", "mon", 95.0, 2), ("d", "tue", 1.0, 1)))
    later = table.incremental(since=since.until)
    assert ids(later.read(["id"])) == ["a", "d"]
    assert ids(later.read("id", where="fare < 50")) == ["d"]
    assert "_hoodie_commit_time" in table.incremental(meta_fields=True).schema.names
    assert table.incremental(until=since.until).read("fare", where="id = 'a'")["fare"].to_pylist() == [90.0]


def test_points_are_sequences_instants_and_dates(table: tideline.Table) -> None:
    done = table.upsert(trips_of(("d", "tue", 1.0, 1)))
    table.upsert(trips_of(("e", "tue", 1.0, 1)))
    for point in (done.sequence, str(done.sequence), done.instant):
        assert [c["after"]["id"] for c in table.changes(since=point).read().to_pylist()] == ["e"]
    assert table.changes(since="2020-01-01").read().num_rows == 5
    assert table.changes(until=done.sequence).until == done.sequence
    with pytest.raises(InstantNotFound):
        table.changes(since=10_000)
    with pytest.raises(InvalidInput):
        table.changes(since="last week")
