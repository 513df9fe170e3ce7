"""Record keys, partition and ordering columns that are fields of structs, named by dotted paths."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering, schedule_compaction

from tideline_table.action import compact_slice, create_metadata, run_clustering, run_compaction, write_rows
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch
from tideline_table.reader.predicate import parse_where
from tideline_table.schema import MetaField
from tideline_table.storage import MemoryStorage
from tideline_table.table import BloomIndex, BucketIndex, RecordIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

DEEP = pa.struct([("x", pa.int64())])
PLACE = pa.struct([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("deep", DEEP)])
SCHEMA = pa.schema([("a", PLACE), ("n", pa.int64()), ("v", pa.string())])
BASE = "memory:/nested-keys"
Row = tuple[str | None, int, str]


def place(key: str | None, ts: int | None, city: str = "") -> dict[str, Any]:
    return {"id": key, "city": city or ("Oslo" if key and int(key[1:]) % 2 else "Rome"), "ts": ts, "deep": {"x": 7}}


def rows(*found: Row) -> pa.Table:
    return pa.table({"a": [place(k, ts) for k, ts, _ in found], "n": [1] * len(found), "v": [v for *_, v in found]}, SCHEMA)


def create(
    kind: TableType = TableType.COW,
    key: tuple[str, ...] = ("a.id",),
    partition: tuple[str, ...] = ("a.city",),
    ordering: str = "a.ts",
    options: dict[str, object] | None = None,
    **more: Any,
) -> Table:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create_table(BASE, TableRequest("t", SCHEMA, key, partition, ordering, kind, **more), clock=clock, storage=storage)
    return Table.open(BASE, clock=clock, storage=storage, options={"tideline.service.verify": "keys", **(options or {})})


def contents(table: Table) -> list[tuple[str, str, str]]:
    found = table.read([MetaField.RECORD_KEY, MetaField.PARTITION_PATH, "v"])
    return sorted(tuple(row.values()) for row in found.to_pylist())


KINDS = pytest.mark.parametrize("kind", [*TableType])


@KINDS
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"options": {"hoodie.index.type": "GLOBAL_SIMPLE"}},
        {"index": BloomIndex()},
        {"index": BloomIndex(across_partitions=True)},
        {"index": RecordIndex()},
        {"index": BucketIndex(3)},
    ],
    ids=["simple", "global simple", "bloom", "global bloom", "record index", "bucket"],
)
def test_every_index_finds_rows_by_fields_of_structs(kind: TableType, more: dict[str, Any]) -> None:
    table = create(kind, **more)
    if isinstance(more.get("index"), RecordIndex):
        create_metadata(table, ("record_index",))
    write_rows(table, rows(("k1", 5, "a"), ("k2", 5, "a"), ("k3", 5, "a"), ("k4", 5, "a")), Operation.UPSERT)
    done = write_rows(table, rows(("k2", 6, "b"), ("k3", 4, "late"), ("k5", 5, "b"), ("k5", 3, "older")), Operation.UPSERT)
    assert done.rows_inserted == 1
    gone = pa.table({"a": [{"id": "k4", "city": "Rome"}]})
    write_rows(table, gone, Operation.DELETE)
    write_rows(table, pa.table({"a.id": ["k1"], "a.city": ["Oslo"]}), Operation.DELETE)
    expected = [("k2", "Rome", "b"), ("k3", "Oslo", "a"), ("k5", "Oslo", "b")]
    assert contents(table) == expected
    if kind is TableType.MOR:
        schedule_compaction(table, options={"hoodie.compact.inline.max.delta.commits": 1})
        run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
        assert contents(table) == expected
    assert table.look_up(["k2"], ["a.ts"]).to_pylist() == [{"a.ts": 6}]


@KINDS
def test_clustering_keeps_the_rows(kind: TableType) -> None:
    table = create(kind, partition=())
    for at, key in enumerate(("k1", "k2", "k3")):
        write_rows(table, rows((key, at, "a")), Operation.INSERT, options={"hoodie.parquet.small.file.limit": 0})
    before = contents(table)
    assert schedule_clustering(table, options={"hoodie.clustering.plan.strategy.small.file.limit": 1 << 30})
    run_clustering(table, run=lambda tasks: [cluster_group(task, table.storage) for task in tasks])
    assert contents(table) == before == [(k, "", "a") for k in ("k1", "k2", "k3")]


def test_keys_of_several_fields_show_their_whole_paths() -> None:
    table = create(key=("a.id", "n", "a.deep.x"), hive_style=True)
    write_rows(table, rows(("k1", 5, "a")), Operation.UPSERT)
    assert contents(table) == [("a.id:k1,n:1,a.deep.x:7", "a.city=Oslo", "a")]


def test_hash_fields_inside_of_structs_and_queries_that_name_them() -> None:
    table = create(key=("a.id", "n"), partition=(), index=BucketIndex(8, ("a.id",)))
    names = [f"k{at}" for at in range(1, 30)]
    write_rows(table, rows(*((name, 5, name) for name in names)), Operation.UPSERT)
    found = table.snapshot()
    assert found.buckets is not None
    schema = found.schema
    chosen = found.buckets.slices_for(found.slices, schema, parse_where("a.id = 'k7'", schema), None)
    assert len(chosen) == 1 < len(found.slices)
    assert table.read(["v"], "a.id = 'k7'")["v"].to_pylist() == ["k7"]
    assert table.read(["v"], "a.id IN ('k7', 'k8') AND n = 1")["v"].to_pylist() in (["k7", "k8"], ["k8", "k7"])


def test_nulls_of_keys_are_refused_and_of_partitions_have_a_folder() -> None:
    for wrong, match in ((None, r"'a\.id'"), ({"id": None, "city": "x", "ts": 1, "deep": None}, r"'a\.id'")):
        table = create()
        with pytest.raises(InvalidRecord, match=match):
            write_rows(table, pa.table({"a": [wrong], "n": [1], "v": ["a"]}, SCHEMA), Operation.UPSERT)
        assert table.state.completed_writes() == []
    table = create(key=("n",), ordering="")
    given = pa.table({"a": [None, {"id": "k", "city": None, "ts": 1, "deep": None}], "n": [1, 2], "v": ["a", "b"]}, SCHEMA)
    write_rows(table, given, Operation.UPSERT)
    assert {path for _, path, _ in contents(table)} == {"__HIVE_DEFAULT_PARTITION__"}


def test_a_null_struct_in_a_composite_key_is_refused_and_a_null_field_is_not() -> None:
    table = create(key=("n", "a.id"), partition=(), ordering="")
    with pytest.raises(InvalidRecord, match=r"null struct above the key column 'a\.id'"):
        write_rows(table, pa.table({"a": [None], "n": [1], "v": ["a"]}, SCHEMA), Operation.UPSERT)
    write_rows(table, rows((None, 1, "a")), Operation.UPSERT)
    assert contents(table) == [("n:1,a.id:__null__", "", "a")]


@KINDS
def test_a_null_struct_above_the_ordering_column_is_refused_unless_the_row_is_deleted(kind: TableType) -> None:
    table = create(kind, key=("n",), partition=())
    write_rows(table, rows(("k1", 5, "a")), Operation.UPSERT)
    nothing = pa.table({"a": [None], "n": [1], "v": ["b"]}, SCHEMA)
    with pytest.raises(InvalidRecord, match=r"null struct above the ordering column 'a\.ts'"):
        write_rows(table, nothing, Operation.UPSERT)
    write_rows(table, rows(("k1", None, "loses")), Operation.UPSERT)
    assert [v for *_, v in contents(table)] == ["a"]
    write_rows(table, nothing.append_column("_hoodie_is_deleted", pa.array([True])), Operation.UPSERT)
    # As with any null ordering value: it loses against a row that has one, in both types of table.
    assert [v for *_, v in contents(table)] == ["a"]


def test_the_struct_of_a_key_gains_members_and_its_key_keeps_its_type() -> None:
    table = create(key=("a.deep.x",), partition=(), options={"tideline.write.schema.evolution": "evolve"})
    write_rows(table, rows(("k1", 5, "a")), Operation.UPSERT)
    wider = pa.struct([*PLACE, ("zip", pa.int32())])
    given = pa.table({"a": pa.array([{**place("k1", 6), "zip": 5}], wider), "n": [1], "v": ["b"]})
    write_rows(table, given, Operation.UPSERT)
    assert table.schema.field("a").type.field("zip").type == pa.int32()
    assert contents(table) == [("7", "", "b")]
    lacking = pa.array([{"id": "k1", "city": "Oslo", "ts": 7}], pa.struct([f for f in PLACE if f.name != "deep"]))
    with pytest.raises(SchemaMismatch, match=r"'a\.deep\.x'"):
        write_rows(table, pa.table({"a": lacking, "n": [1], "v": ["c"]}), Operation.UPSERT)


@pytest.mark.parametrize(
    ("request_", "error", "match"),
    [
        (TableRequest("t", SCHEMA, ("a.town",)), SchemaMismatch, r"'a\.town' is not in the schema"),
        (TableRequest("t", SCHEMA, ("n.x",)), SchemaMismatch, r"'n\.x' is not in the schema"),
        (TableRequest("t", SCHEMA, ("a.deep",)), SchemaMismatch, r"'a\.deep' of type struct"),
        (TableRequest("t", SCHEMA, ("n",), ("a.town",)), SchemaMismatch, r"'a\.town' is not in the schema"),
        (TableRequest("t", SCHEMA, ("n",), (), "a.town"), SchemaMismatch, r"'a\.town' is not in the schema"),
        (TableRequest("t", SCHEMA, ("n",), (), "a.deep"), SchemaMismatch, r"'a\.deep' of type struct"),
        (
            TableRequest("t", SCHEMA, ("a.id",), meta_fields=False),
            InvalidOption,
            r"'a\.id', a field of a struct, without meta fields",
        ),
        (TableRequest("t", SCHEMA, ("a.id",), index=BucketIndex(2, ("a.city",))), InvalidOption, r"a\.city"),
        (TableRequest("t", pa.schema([("a.id", pa.string()), ("a", PLACE)]), ("a.id",)), SchemaMismatch, r"column name 'a\.id'"),
    ],
)
def test_impossible_requests_create_nothing(request_: TableRequest, error: type[Exception], match: str) -> None:
    storage = MemoryStorage(clock=ManualClock())
    with pytest.raises(error, match=match):
        create_table(BASE, request_, storage=storage)
    assert list(storage.list_objects("")) == []


def test_a_warning_names_what_a_known_reader_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    create(TableType.COW, partition=(), ordering="a.ts")
    assert not caplog.records
    create(TableType.MOR)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "partition column 'a.city' is a field of a struct",
        "ordering column 'a.ts' is a field of a struct",
    ]
