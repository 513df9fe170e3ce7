"""Fields of structs, named by dotted paths, in columns and conditions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidPredicate, SchemaMismatch
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

INNER = pa.struct([("city", pa.string()), ("at", pa.struct([("x", pa.int64())]))])
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", INNER), ("n", pa.int64())])
BASE = "memory:/nested"


def rows(*found: tuple[int, dict[str, object] | None]) -> pa.Table:
    return pa.table({"id": [i for i, _ in found], "a": [a for _, a in found], "n": [0] * len(found)}, SCHEMA)


def city(name: str | None, x: int | None = None) -> dict[str, object]:
    return {"city": name, "at": None if x is None else {"x": x}}


@pytest.fixture(params=[*TableType])
def table(request: pytest.FixtureRequest) -> Table:
    """Rows 1 to 4 in one file; an upsert then moves row 2 to Rome and adds row 5."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create_table(BASE, TableRequest("nested", SCHEMA, ("id",), (), "", request.param), clock=clock, storage=storage)
    table = Table.open(BASE, clock=clock, storage=storage)
    write_rows(table, rows((1, city("Oslo", 5)), (2, city("Oslo", 6)), (3, None), (4, city(None))), Operation.UPSERT)
    write_rows(table, rows((2, city("Rome", 7)), (5, city("Oslo"))), Operation.UPSERT)
    return table


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a.city = 'Oslo'", [1, 5]),
        ("\"a.city\" = 'Oslo'", [1, 5]),
        ("a.city = 'Oslo' OR a.city = 'Rome'", [1, 2, 5]),
        ("a.city IN ('Rome')", [2]),
        ("a.city LIKE 'R%' AND id < 5", [2]),
        ("a.city IS NULL", [3, 4]),
        ("a.city IS NOT NULL", [1, 2, 5]),
        ("a.at.x > 5", [2]),
        ("NOT a.at.x > 5", [1]),
        ("a.at.x BETWEEN 5 AND 7", [1, 2]),
        ("a.at.x > id", [1, 2]),
        ("a.at.x IS NULL", [3, 4, 5]),
    ],
)
def test_conditions_on_fields_of_structs(table: Table, where: str, expected: list[int]) -> None:
    assert sorted(table.read(["id"], where).column("id").to_pylist()) == expected
    assert sorted(table.read(where=where).column("id").to_pylist()) == expected


def test_fields_of_structs_are_columns_named_by_their_path(table: Table) -> None:
    found = table.read(["a.at.x", "id", "a.city"]).sort_by("id")
    assert found.schema == pa.schema([("a.at.x", pa.int64()), pa.field("id", pa.int64(), nullable=False), ("a.city", pa.string())])
    assert found.to_pydict() == {
        "a.at.x": [5, 7, None, None, None],
        "id": [1, 2, 3, 4, 5],
        "a.city": ["Oslo", "Rome", None, None, "Oslo"],
    }
    assert table.look_up(["2"], ["a.city"]).to_pylist() == [{"a.city": "Rome"}]
    assert table.incremental("2").read(["a.at.x"], "a.at.x = 7").to_pylist() == [{"a.at.x": 7}]


def test_unknown_fields_are_refused(table: Table) -> None:
    for name in ("a.town", "a.city.x", "n.x", "b.x"):
        with pytest.raises(SchemaMismatch, match=name):
            table.read([name])
        with pytest.raises(InvalidPredicate, match=name):
            table.read(where=f"{name} = 1")
