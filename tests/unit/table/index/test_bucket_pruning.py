"""Queries of tables with a bucket index open only the buckets that can hold their rows, and never lose one."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.table.tables import QUIET

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidRecord
from tideline_table.hudi.properties import PROPERTIES_PATH, format_properties, read_properties
from tideline_table.reader.expression import Call, Column, demands, parts_of
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

DAY = dt.date(2024, 5, 1)


class Opened(MemoryStorage):
    """Notes the data files that are opened."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.opened: set[str] = set()
        self.whole: pa.Table | None = None

    def open_input(self, path: str, *args: Any, **more: Any) -> Any:
        self.opened.add(path)
        return super().open_input(path, *args, **more)


def made(
    columns: Mapping[str, pa.Array],
    key: tuple[str, ...],
    *,
    fields: tuple[str, ...] = (),
    kind: TableType = TableType.COW,
    n: int = 8,
) -> tuple[Table, Opened]:
    """Return a table with these rows, written in two commits, so that merge-on-read buckets have log files."""
    storage = Opened()
    rows = pa.table(columns)
    create_table(
        storage.root, TableRequest("t", rows.schema, key, (), "", kind, index=BucketIndex(n, fields)), ManualClock(), storage
    )
    options = {**QUIET, "tideline.column.stats.enable": False}  # so that only buckets decide
    table = Table.open(storage.root, options=options, clock=ManualClock(), storage=storage)
    write_rows(table, rows.slice(0, len(rows) // 2), Operation.UPSERT)
    write_rows(table, rows, Operation.UPSERT)
    return table, storage


def groups_read(table: Table, storage: Opened, where: Any, expected: int | None = None) -> int:
    """Check the rows of a query against a filter of all rows; return how many file groups the query opened."""
    storage.whole = whole = storage.whole if storage.whole is not None else table.read()
    storage.opened.clear()
    found = table.read(where=where)
    opened = {path.lstrip(".").split("_")[0] for path in storage.opened if path.endswith(".parquet") or ".log." in path}
    wanted = whole.filter(table.snapshot().filtered(where))
    order = [(name, "ascending") for name in table.schema.names if not pa.types.is_nested(table.schema.field(name).type)]
    assert found.sort_by(order).equals(wanted.sort_by(order)), where
    if expected is not None:
        assert len(opened) == expected, (where, opened)
    return len(opened)


@pytest.mark.parametrize("kind", list(TableType))
def test_equality_and_in_read_one_bucket_for_each_value(kind: TableType) -> None:
    table, storage = made({"id": pa.array(range(200)), "v": pa.array(range(200))}, ("id",), kind=kind)
    index = table.definition.buckets
    assert index is not None
    groups_read(table, storage, "id = 17", 1)
    groups_read(table, storage, "17 = id and v > 3", 1)
    groups_read(table, storage, "id = 17 and v = 3", 1)
    ids = [3, 4, 5]
    few = len(set(index.buckets(pa.array(map(str, ids))).tolist()))
    groups_read(table, storage, "id in (3, 4, 5)", few)
    groups_read(table, storage, "id = 3 or id = 4 or (id = 5 and v = 5)", few)
    groups_read(table, storage, pc.field("id").isin(pa.array(ids, pa.int32())) & (pc.field("v") > 0), few)
    groups_read(table, storage, "id = 3 and id = 4", 0 if few > 1 else None)
    groups_read(table, storage, "_hoodie_record_key = '17'", 1)
    groups_read(table, storage, "_hoodie_record_key = '17' and id = 17", 1)
    # Not certain, or true for other keys, too.
    for where in (
        "id = 17 or v = 3",
        "id <> 17",
        "not id = 17",
        "id between 3 and 4",
        "id = 17.5",
        "v = 3",
        pc.field("id") == 17.0,
    ):
        groups_read(table, storage, where, 8)


def test_a_look_up_reads_the_bucket_of_its_key_and_no_other_footer() -> None:
    table, storage = made({"id": pa.array(range(200)), "v": pa.array(range(200))}, ("id",))
    table = Table.open(storage.root, clock=ManualClock(), storage=storage)
    storage.opened.clear()
    assert table.look_up(["17"]).column("v").to_pylist() == [17]
    assert len([path for path in storage.opened if path.endswith(".parquet")]) == 1


@pytest.mark.parametrize(
    ("column", "wheres"),
    [
        (pa.array([f"k{n}" for n in range(100)]), ["id = 'k7'", "id in ('k7', 'k8', 'nowhere')"]),
        (
            pa.array(["a:b", "a,b", "id:1,n:2", "é漢😀", "__null__", " ", "x'y"]),
            ["id = 'id:1,n:2'", "id = 'x''y'", "id = '__null__'"],
        ),
        (pa.array([DAY + dt.timedelta(n) for n in range(100)]), ["id = '2024-05-03'", "id = date '2024-05-03'"]),
        (pa.array([True, False]), ["id = true", "id = false"]),
        (pa.array(range(-50, 50), pa.int32()), ["id = -7", "id = 7", "id in (1, 2)", "id = 99999999999"]),
    ],
)
@pytest.mark.parametrize("kind", list(TableType))
def test_every_kind_of_key_is_found(kind: TableType, column: pa.Array, wheres: list[str]) -> None:
    table, storage = made({"id": column, "v": pa.array(range(len(column)))}, ("id",), kind=kind)
    found = [groups_read(table, storage, where) for where in wheres]
    assert max(found[:2]) <= 3
    for value in column.to_pylist()[::17]:
        groups_read(table, storage, pc.field("id") == pa.scalar(value, column.type))


TRAPS = ["", "a", "a:b", "a,b", "x,user:9", "x,user", "user:9", ",", ":", "p:q,r:s", "é漢😀"]


@pytest.mark.parametrize("order", [("user", "page"), ("page", "user")])
@pytest.mark.parametrize("fields", [(), ("user",)])
@pytest.mark.parametrize("kind", list(TableType))
def test_composite_keys_with_any_text_are_found(kind: TableType, fields: tuple[str, ...], order: tuple[str, str]) -> None:
    pairs = [(u, p) for u, p in itertools.product(TRAPS, TRAPS) if u or p]
    if order[0] == "page":
        # Text that ends the first value of a key is refused in any table.
        pairs = [(u, p) for u, p in pairs if ",user:" not in p]
    if fields:
        # An exclusive table refuses the texts that are cut like the hash field: see below.
        pairs = [(u, p) for u, p in pairs if ",user:" not in u + p]
    columns = {"user": pa.array([u for u, _ in pairs]), "page": pa.array([p for _, p in pairs]), "v": pa.array(range(len(pairs)))}
    table, storage = made(columns, order, fields=fields, kind=kind)
    index = table.definition.buckets
    assert index is not None
    for user, page in pairs[::29]:
        both = (pc.field("user") == user) & (pc.field("page") == page)
        assert groups_read(table, storage, both) == 1
        alone = groups_read(table, storage, pc.field("user") == user)
        if fields and "," not in user and ":" not in user:
            assert alone == 1
    groups_read(table, storage, "user in ('a', 'x,user') and (page = 'a' or page = ':')")


def test_a_text_that_is_cut_like_the_hash_field_is_refused_where_it_would_hide_rows() -> None:
    table, _ = made({"user": pa.array(["u", "v"]), "page": pa.array(["p", "q"])}, ("user", "page"), fields=("user",))
    for user, page in (("u", "x,user:9"), ("u,user:1", "p")):
        with pytest.raises(InvalidRecord, match="',user:' is part of a value"):
            write_rows(table, pa.table({"user": [user], "page": [page]}), Operation.UPSERT)
    write_rows(table, pa.table({"user": ["u"], "page": ["user:9,x"]}), Operation.UPSERT)


def test_text_columns_beside_the_hash_field_count_only_where_all_writers_are_checked() -> None:
    """Apache Hudi's writers check nothing, so a shared table, or one without the mark, is read whole."""
    columns = {"user": pa.array([f"u{n}" for n in range(50)]), "page": pa.array(["p"] * 50), "n": pa.array(range(50))}
    for key, expected in ((("user", "page"), 8), (("user", "n"), 1)):
        table, storage = made(columns, key, fields=("user",))
        properties = dict(read_properties(storage))
        assert properties.pop("tideline.bucket.index.plain.keys") == "true"
        groups_read(table, storage, "user = 'u7'", 1)
        storage.put(PROPERTIES_PATH, format_properties(properties, "by hand"))
        groups_read(Table.open(storage.root, clock=ManualClock(), storage=storage), storage, "user = 'u7'", expected)


def test_changed_properties_and_foreign_groups_are_read_whole_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    _, storage = made({"id": pa.array(range(100)), "v": pa.array(range(100))}, ("id",))
    properties = dict(read_properties(storage))
    for number in ("4", "16", "0", "many"):
        storage.put(PROPERTIES_PATH, format_properties({**properties, "hoodie.bucket.index.num.buckets": number}, "by hand"))
        changed = Table.open(storage.root, clock=ManualClock(), storage=storage)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            groups_read(changed, storage, "id = 7", 8)
        assert "read all buckets" in caplog.text
    storage.put(PROPERTIES_PATH, format_properties(properties, "restored"))
    found = Table.open(storage.root, clock=ManualClock(), storage=storage).snapshot()
    assert found.buckets is not None
    assert len(found.only(pc.field("id") == 7).slices) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        doubled = found.buckets.slices_for((*found.slices, found.slices[0]), found.schema, pc.field("id") == 7, None)
    assert len(doubled) == 9
    assert "are of one bucket" in caplog.text


def test_time_travel_and_incremental_queries_leave_buckets_out_too() -> None:
    table, storage = made({"id": pa.array(range(100)), "v": pa.array(range(100))}, ("id",))
    first = min(a.instant for a in table.state.completed_writes())
    storage.opened.clear()
    assert table.read(where="id = 7", as_of=first).num_rows == 1
    assert len(storage.opened) == 1
    storage.opened.clear()
    assert table.incremental().read(where="id = 7").num_rows == 1
    assert len(storage.opened) == 1


SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("s", pa.struct([("x", pa.int32())])), ("t", pa.timestamp("us"))])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((pc.field("a") == 3) & pc.field("b").isin(["x", "y"]), {"a": {3}, "b": {"x", "y"}}),
        ((pc.field("a") == 3) | (pc.field("a") == 4), {"a": {3, 4}}),
        ((pc.field("a") == 3) | (pc.field("b") == "x"), {}),
        ((pc.field("a") == 1) & pc.field("a").isin([1, 2]), {"a": {1}}),
        (~(pc.field("a") == 3), {}),
        (pc.field("a") == 3.0, {}),
        (pc.field("a") == 2**40, {}),
        (pc.field("a").isin([1, None]), {}),
        (pc.field("s", "x") == 3, {"s.x": {3}}),
        (pc.field("s") == pa.scalar({"x": 3}), {}),
        (pc.field("t") == dt.datetime(2024, 1, 1, tzinfo=None), {}),
        (pc.equal(pc.field("a") + 1, 3), {}),
        (pc.if_else(pc.field("a") == 3, True, True), {}),
        (pc.field("b") == "x'\n\"", {"b": {"x'\n\""}}),
        (None, {}),
    ],
)
def test_demands_of_expressions(where: pc.Expression | None, expected: dict[str, set[Any]]) -> None:
    assert demands(where, SCHEMA) == {name: frozenset(values) for name, values in expected.items()}


def test_the_parts_of_an_expression_come_in_order() -> None:
    found = parts_of((pc.field("a") < 3) & pc.field("b").is_null())
    assert isinstance(found, Call)
    assert (found.function, [a.function for a in found.arguments if isinstance(a, Call)]) == ("and_kleene", ["less", "is_null"])
    assert parts_of(pc.field("a")) == Column("a")
    deep = pc.field("a") == 1
    for _ in range(3000):
        deep |= pc.field("a") == 1
    assert demands(deep, SCHEMA) in ({}, {"a": frozenset([1])})
