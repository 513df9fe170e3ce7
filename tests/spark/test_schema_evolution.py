"""A DataFrame write changes the schema of a table as the same rows written by the engine do, and Spark reads what came out."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.plans import schedule_compaction
from tests.spark.tables import Tables, content, rows

from tideline_spark.read import read
from tideline_spark.write import write_dataframe
from tideline_table.action import run_compaction, write_rows
from tideline_table.errors import SchemaMismatch, TidelineError
from tideline_table.schema import META_FIELDS
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

EVOLVE = {"tideline.write.schema.evolution": "evolve"}
RECONCILE = {"hoodie.datasource.write.reconcile.schema": True}
FILL = {"hoodie.write.set.null.for.missing.columns": True}


def with_columns(found: pa.Table, **columns: pa.Array) -> pa.Table:
    for name, values in columns.items():
        found = found.append_column(name, values)
    return found


@pytest.mark.parametrize("kind", list(TableType))
def test_every_change_is_the_engines(spark: SparkSession, tables: Tables, kind: TableType) -> None:
    options = {"hoodie.parquet.small.file.limit": 0, "hoodie.compact.inline.max.delta.commits": 1}
    engine, native = (tables.create(name, type=kind, options=options) for name in ("engine", "native"))

    def write(written: pa.Table, operation: Operation, **chosen: object) -> None:
        write_rows(engine, written, operation, options=chosen)
        write_dataframe(native, spark.createDataFrame(written), operation, options=chosen)
        assert native.schema == engine.schema
        assert Table.open(native.storage.root).schema_json == native.schema_json == engine.schema_json
        assert content(native.read()) == content(engine.read())

    write(rows(0, 30, 5), Operation.UPSERT)
    score = pa.array(range(20), pa.int32())
    write(with_columns(rows(20, 40, 6), score=score), Operation.UPSERT, **EVOLVE)
    assert native.schema.names == ["id", "region", "ts", "amount", "score"]
    # Wider and in another order, without a nullable column; the keys of the first files stay where they are.
    reordered = with_columns(rows(35, 50, 7), score=pa.array([n / 4 for n in range(15)])).select(["score", "ts", "region", "id"])
    write(reordered, Operation.INSERT, **EVOLVE, **FILL)
    assert native.schema.field("score").type == pa.float64()
    point = pa.array([{"x": 1}] * 10, pa.struct([("x", pa.int32())]))
    write(with_columns(rows(10, 20, 8), point=point), Operation.BULK_INSERT, **EVOLVE, **FILL)
    wider = with_columns(rows(0, 5, 9), point=pa.array([{"y": "é", "x": 2}] * 5), score=pa.array(["s"] * 5))
    write(wider, Operation.UPSERT, **EVOLVE)
    assert native.schema.field("score").type == pa.string()
    write(with_columns(rows(3, 8, 0), further=pa.array([1] * 5)), Operation.DELETE, **EVOLVE)
    kept = native.schema.field("score").type
    write(with_columns(rows(50, 55, 9), last=pa.array([True] * 5)).drop_columns(["amount"]), Operation.UPSERT, **RECONCILE)
    assert native.schema.names == ["id", "region", "ts", "amount", "score", "point", "last"]
    assert native.schema.field("score").type == kept
    assert content(read(spark, native).toArrow()) == content(native.read())
    if kind is TableType.MOR:
        schedule_compaction(native)
        before = content(native.read())
        run_compaction(native)
        assert content(read(spark, native).toArrow()) == before


def test_what_is_not_allowed_is_refused_as_by_the_engine(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t")
    write_rows(table, rows(0, 5, 1), Operation.UPSERT)
    cases = [
        (with_columns(rows(0, 5, 2), more=pa.array([1] * 5)), {}),
        (rows(0, 5, 2).drop_columns(["amount"]), {}),
        (rows(0, 5, 2).drop_columns(["amount"]), EVOLVE),
        *((rows(0, 5, 2).drop_columns([name]), {**more, **FILL}) for name in ("region", "ts") for more in ({}, EVOLVE, RECONCILE)),
        (rows(0, 5, 2).drop_columns(["id"]), EVOLVE),
        (with_columns(rows(0, 5, 2), more=pa.nulls(5)), EVOLVE),
    ]
    sequence = table.refresh().sequence

    def refusal(write: object, written: object, options: dict[str, object]) -> TidelineError:
        with pytest.raises(SchemaMismatch) as caught:
            write(table, written, Operation.UPSERT, options=options)  # type: ignore[operator]
        return caught.value

    for written, options in cases:
        direct = refusal(write_rows, written, options)
        native = refusal(write_dataframe, spark.createDataFrame(written), options)
        assert (native.found, native.remedy) == (direct.found, direct.remedy)
    assert table.refresh().sequence == sequence


def test_changes_at_the_same_time_meet(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", options={**EVOLVE, **FILL})
    write_rows(table, rows(0, 5, 1), Operation.UPSERT)
    other = Table.open(table.storage.root, options=EVOLVE)
    interfered = threading.Event()

    def between(_report: object) -> None:
        if not interfered.is_set():
            interfered.set()
            write_rows(other, with_columns(rows(9, 12, 1), one=pa.array([1] * 3, pa.int32())), Operation.UPSERT)

    mine = spark.createDataFrame(with_columns(rows(20, 24, 1), two=pa.array(["2"] * 4)))
    heard: list[str] = []
    committed = write_dataframe(
        table, mine, Operation.BULK_INSERT, on_report=between, on_conflict=lambda error, _attempt: heard.append(error.found)
    )
    # Rows for new file groups alone: nothing but the schemas meet.
    assert committed.attempts == 2
    assert ["schema of the table changed" in found for found in heard] == [True]
    assert read(spark, table).columns == [*META_FIELDS, "id", "region", "ts", "amount", "one", "two"]
    found = {r.id: (r.one, r.two) for r in read(spark, table, columns=["id", "one", "two"]).collect()}
    assert len(found) == 5 + 3 + 4
    assert {found[key] for key in found if key < "k000009"} == {(None, None)}
    assert {found[key] for key in found if "k000009" <= key < "k000020"} == {(1, None)}
    assert {found[key] for key in found if key >= "k000020"} == {(None, "2")}
