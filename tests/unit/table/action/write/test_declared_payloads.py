"""Writes follow the payload class that a table declares, on every way a row can take to a stored one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.table.tables import compact, new_table, open_table, set_properties, write

from tideline_table.action import write_rows
from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.hudi.properties import PAYLOAD_CLASS, read_properties
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

MODELS = "org.apache.hudi.common.model."
PARTIAL = MODELS + "PartialUpdateAvroPayload"
NON_DEFAULTS = MODELS + "OverwriteNonDefaultsWithLatestAvroPayload"
DMS = MODELS + "AWSDmsAvroPayload"
POSTGRES = MODELS + "debezium.PostgresDebeziumAvroPayload"
MYSQL = MODELS + "debezium.MySqlDebeziumAvroPayload"
UNAVAILABLE = "__debezium_unavailable_value"
OPERATION = {DMS: "Op", POSTGRES: "_change_operation_type"}
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": True}
ROOM = {"hoodie.parquet.small.file.limit": 10**8}


def declared(payload: str, kind: TableType = TableType.COW, ordering: str = "") -> Table:
    """A table that declares this payload class, with two columns that versions may leave open."""
    _, storage, clock = new_table(type=kind)
    ordering = ordering or ("_event_lsn" if payload == POSTGRES else "ts")
    names = ["id", "part", ordering, "a", "b", OPERATION.get(payload, "op")]
    schema = pa.schema([(n, pa.int64() if n == ordering else pa.string()) for n in names])
    storage.delete_below(".hoodie")
    create_table(storage.root, TableRequest("t1", schema, ("id",), ("part",), ordering, kind), clock, storage)
    set_properties(storage, {**read_properties(storage), PAYLOAD_CLASS: payload})
    return open_table(storage, clock)


def put(table: Table, *rows: tuple[object, ...], **options: object) -> None:
    """Upsert rows: key, ordering value, two cells, then what they are and their partition where they are not updates in `p`."""
    whole = [(*r, *(("u", "p")[len(r) - 4 :])) for r in rows]
    key, ts, a, b, op, part = zip(*whole, strict=True)
    table.clock.advance(1)
    values = dict(zip(table.schema.names, (key, part, ts, a, b, op), strict=True))
    write_rows(table, pa.table(values, schema=table.schema), Operation.UPSERT, options=options, parallelism=1)


def found(table: Table) -> dict[str, tuple[object, ...]]:
    rows = table.read(["id", table.definition.ordering_field, "a", "b"]).rename_columns(["id", "ts", "a", "b"]).to_pylist()
    assert len({r["id"] for r in rows}) == len(rows)
    return {r["id"]: (r["ts"], r["a"], r["b"]) for r in sorted(rows, key=lambda r: r["id"])}


ON_EVERY_WAY = pytest.mark.parametrize(
    ("kind", "way"),
    [
        (TableType.COW, "base file written over"),
        (TableType.MOR, "log"),
        (TableType.MOR, "log, compacted"),
        (TableType.MOR, "base file written over with an insert"),
    ],
)
FIRST = [(k, 5, "a5", "b5") for k in "cdefg"]
CASES = {
    PARTIAL: (
        [
            ("c", 6, None, "b6"),
            ("d", 4, "a4", None),
            ("e", 5, None, None),
            ("f", 4, None, "b4", "D"),
            ("n", 6, "a6", None),
            ("n", 5, None, "b5"),
        ],
        {
            "c": (6, "a5", "b6"),
            "d": (5, "a5", "b5"),
            "e": (5, "a5", "b5"),
            "f": (5, "a5", "b5"),
            "g": (5, "a5", "b5"),
            "n": (6, "a6", "b5"),
        },
    ),
    NON_DEFAULTS: (
        [("c", 6, None, "b6"), ("d", 4, "a4", None), ("e", 5, None, None), ("n", 6, "a6", None), ("n", 5, None, "b5")],
        {
            "c": (6, "a5", "b6"),
            "d": (4, "a4", "b5"),
            "e": (5, "a5", "b5"),
            "f": (5, "a5", "b5"),
            "g": (5, "a5", "b5"),
            "n": (6, "a6", None),
        },
    ),
    DMS: (
        [
            ("c", 6, None, "b6"),
            ("d", 4, "a4", "b4", "D"),
            ("e", 6, "a6", "b6", "d"),
            ("n", 5, "a5", "b5", "D"),
            ("m", 5, "a5", "b5", "U"),
        ],
        {"c": (6, None, "b6"), "f": (5, "a5", "b5"), "g": (5, "a5", "b5"), "m": (5, "a5", "b5")},
    ),
}


@ON_EVERY_WAY
@pytest.mark.parametrize("payload", list(CASES), ids=lambda name: name.rsplit(".", 1)[-1])
def test_rows_meet_the_stored_ones_by_the_payload_class(payload: str, kind: TableType, way: str) -> None:
    table = declared(payload, kind)
    rows, expected = CASES[payload]
    put(table, *FIRST)
    put(table, *rows, **(ROOM if "over" in way else {}))
    logs = sum(len(s.log_files) for s in table.refresh().latest_slices())
    assert bool(logs) == way.startswith("log")
    if "compacted" in way:
        assert compact(table) is not None
        assert not any(s.log_files for s in table.refresh().latest_slices())
    assert found(table) == expected


def test_a_late_partial_update_carries_the_meta_fields_of_its_write() -> None:
    table = declared(PARTIAL)
    put(table, *FIRST)
    put(table, ("d", 4, "a4", None))
    times = {r["id"]: r["_hoodie_commit_time"] for r in table.read().to_pylist()}
    assert times["d"] > times["c"] == times["g"]


@pytest.mark.parametrize("payload", [PARTIAL, NON_DEFAULTS])
def test_cells_of_columns_that_older_files_lack_are_open(payload: str) -> None:
    table = declared(payload)
    put(table, *FIRST)
    rows = pa.table({"id": ["c"], "part": ["p"], "ts": [6], "a": pa.nulls(1, pa.string()), "more": ["m"]})
    options = {"tideline.write.schema.evolution": "evolve", "hoodie.write.set.null.for.missing.columns": True}
    write_rows(table, rows, Operation.UPSERT, options=options, parallelism=1)
    row = next(r for r in table.read().to_pylist() if r["id"] == "c")
    assert (row["ts"], row["a"], row["b"], row["more"]) == (6, "a5", "b5", "m")


def test_postgres_changes_fill_what_was_not_available_and_compare_deletions() -> None:
    table = declared(POSTGRES)
    put(table, *FIRST)
    put(
        table,
        ("c", 6, UNAVAILABLE, None),
        ("d", 4, "a4", None),
        ("e", 6, "x", "x", "D"),
        ("f", 4, "x", "x", "d"),
        ("n", 7, "x", "x", "d"),
    )
    assert found(table) == {"c": (6, "a5", None), "d": (5, "a5", "b5"), "f": (5, "a5", "b5"), "g": (5, "a5", "b5")}
    put(table, ("m", 6, UNAVAILABLE, "b"))
    put(table, ("m", 5, "late", "late"))
    assert found(table)["m"] == (6, UNAVAILABLE, "b")


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        (POSTGRES, TableType.MOR, "merge-on-read table 't1' with .*PostgresDebeziumAvroPayload"),
        (MYSQL, TableType.COW, "MySqlDebeziumAvroPayload"),
        (MYSQL, TableType.MOR, "MySqlDebeziumAvroPayload"),
        ("com.example.Mine", TableType.COW, "com.example.Mine"),
    ],
)
def test_payloads_that_writers_cannot_follow_are_refused_by_name(payload: str, kind: TableType, words: str) -> None:
    table = declared(payload, kind)
    with pytest.raises(UnsupportedTable, match=words):
        put(table, *FIRST)
    assert not table.refresh().actions


def test_postgres_changes_in_another_order_are_refused() -> None:
    table = declared(POSTGRES, ordering="ts")
    with pytest.raises(UnsupportedTable, match="ordering field 'ts'"):
        put(table, *FIRST)


def test_a_global_index_moves_deletions_by_value_and_refuses_open_cells() -> None:
    table = declared(DMS)
    put(table, *FIRST)
    put(table, ("c", 6, "x", "x", "D", "q"), ("d", 6, "a6", None, "U", "q"), **GLOBAL)
    assert found(table) == {"d": (6, "a6", None), "e": (5, "a5", "b5"), "f": (5, "a5", "b5"), "g": (5, "a5", "b5")}
    table = declared(PARTIAL)
    put(table, *FIRST)
    with pytest.raises(UnsupportedTable, match="global index that moves rows"):
        put(table, ("c", 6, None, "b6", "u", "q"), **GLOBAL)
    put(table, ("c", 6, None, "b6", "u", "q"), **{**GLOBAL, "hoodie.simple.index.update.partition.path": False})
    assert found(table)["c"] == (6, "a5", "b6")


def test_several_ordering_fields_are_refused() -> None:
    table, storage, clock = new_table()
    set_properties(storage, {**read_properties(storage), "hoodie.table.precombine.field": "ts,v"})
    with pytest.raises(CorruptMetadata, match="ts,v"):
        write(open_table(storage, clock), [("a", "p", 1, "x")])
    assert not table.refresh().actions
