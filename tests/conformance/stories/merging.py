"""How versions of a record become one: parts of records, cells that a record leaves open, deletions by value, several ordering fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from tests.conformance.matrix import Kind, Topic
from tests.conformance.stories.life import AVRO_LOGS, EVENT_TIME, KEYS, PARQUET_LOGS, run_compaction, schedule_compaction
from tests.conformance.stories.rows import marked_deleted, trips
from tests.conformance.stories.statements import create, sql
from tests.conformance.stories.story import SCHEMA_ON_READ, Maker, Step, Story

PAYLOAD = "hoodie.datasource.write.payload.class"
ORDERING = "hoodie.datasource.write.precombine.field"
MODELS = "org.apache.hudi.common.model."
UNAVAILABLE = "__debezium_unavailable_value"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("a", pa.string()),
        ("b", pa.int32()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("op", pa.string()),
        ("part", pa.string()),
    ]
)


def cells(numbers: list[int] | range, ts: int, op: str = "u", **values: Any) -> pa.Table:
    """Rows whose cells depend on their number and on `ts`, but for those that `values` gives."""
    found = [
        {"id": f"k{n}", "ts": ts, "a": f"a{n}-{ts}", "b": 100 * n + ts, "s": {"x": n, "y": None}, "op": op, "part": f"p{n % 2}"}
        | values
        for n in numbers
    ]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def _writes(*found: tuple[pa.Table, str]) -> Callable[[Maker], None]:
    def write(maker: Maker) -> None:
        for rows, operation in found:
            maker.write(rows, operation)

    return write


_OPEN = (
    Step(
        "cells left open",
        Topic.UPSERT,
        _writes(
            (cells(range(8), 5), "bulk_insert"),
            (cells([1, 2, 3, 4], 6, a=None, s=None), "upsert"),
            # Late: below what is there, into which its values fit.
            (cells([2, 3, 4, 5], 4, b=None, a="late"), "upsert"),
            (cells([3, 6, 20], 7, a=None, b=None, s=None), "upsert"),
            (cells([20], 3), "upsert"),
        ),
    ),
    Step(
        "deleted",
        Topic.DELETE,
        _writes(
            (cells([0, 1], 9), "delete"),
            (marked_deleted(cells([4, 7], 4)), "upsert"),
            (cells([0, 1, 7], 9, a=None), "upsert"),
        ),
    ),
    Step("compaction scheduled", Topic.COMPACTION, schedule_compaction),
    Step("upsert beside compaction", Topic.COMPACTION, _writes((cells([2, 20], 10, b=None), "upsert"))),
    Step("compacted", Topic.COMPACTION, run_compaction),
)


def _captured(field: str, update: str, delete: str, ordering: str = "ts") -> tuple[Step, ...]:
    """Changes captured from a database; `field` says what they are, `ordering` which comes first."""
    names = {"op": field, "ts": ordering}

    def rows(numbers: list[int] | range, ts: int, op: str, **values: Any) -> pa.Table:
        found = cells(numbers, ts, op, **values)
        return found.rename_columns([names.get(name, name) for name in found.column_names])

    return (
        Step(
            "changes captured",
            Topic.UPSERT,
            _writes(
                (rows(range(8), 5, update), "bulk_insert"),
                (rows([1, 2], 6, update, a=UNAVAILABLE), "upsert"),
                (rows([2, 3], 4, update, a=UNAVAILABLE), "upsert"),
            ),
        ),
        Step(
            "deleted by value",
            Topic.DELETE,
            _writes(
                (rows([4, 5], 7, delete), "upsert"),
                (rows([5, 6], 3, delete), "upsert"),
                (rows([4], 8, update, a=UNAVAILABLE), "upsert"),
            ),
        ),
    )


_TWO_FIELDS = (
    Step(
        "ordered by two fields",
        Topic.UPSERT,
        _writes(
            (cells(range(8), 5, a="m"), "bulk_insert"),
            (cells([1, 2], 5, a="n"), "upsert"),
            (cells([2, 3], 5, a="l"), "upsert"),
            (cells([4], 6, a="a"), "upsert"),
            (cells([4], 5, a="z"), "upsert"),
        ),
    ),
    Step(
        "deleted by two fields",
        Topic.DELETE,
        _writes(
            (marked_deleted(cells([1, 5], 5, a="n")), "upsert"),
            (marked_deleted(cells([2, 6], 5, a="k")), "upsert"),
            (cells([1, 5], 5, a="m"), "upsert"),
            (cells([7], 1), "delete"),
        ),
    ),
)


def _merge(numbers: list[int], ts: int, *changes: str) -> str:
    rows = " union all ".join(f"select {n} as id, 'm{n}' as name, {n}.5 as price, {ts} as n, {ts}L as ts" for n in numbers)
    assigned = ", ".join(f"{name} = s.{name}" for name in changes)
    return f"merge into {{table}} t using ({rows}) s on t.id = s.id when matched then update set {assigned}"


_COLUMNS = "id int, name string, price double, n int, place struct<x: int, y: string>, ts bigint, part string"
_ROWS = ", ".join(f"({n}, 'n{n}', {n}.25, {n}, named_struct('x', {n}, 'y', 'q'), 100, 'p{n % 2}')" for n in range(1, 11))


def _parts(properties: str, *more: str) -> tuple[Step, ...]:
    def everything(maker: Maker) -> None:
        create(_COLUMNS, f", primaryKey = 'id'{properties}", "partitioned by (part)")(maker)
        sql(
            f"insert into {{table}} values {_ROWS}",
            _merge([1, 2, 3, 4], 101, "name", "ts"),
            _merge([3, 4, 5], 102, "price", "ts"),
            _merge([2, 4, 6], 50, "n", "name", "ts"),
            "update {table} set name = 'whole', ts = 103 where id in (1, 7)",
            _merge([1, 7, 8], 104, "price", "ts"),
            *more,
        )(maker)

    return (
        Step("parts of records", Topic.UPSERT, everything),
        Step("compaction scheduled", Topic.COMPACTION, schedule_compaction),
        Step("parts beside compaction", Topic.COMPACTION, sql(_merge([1, 8], 105, "n", "ts"))),
        Step("compacted", Topic.COMPACTION, run_compaction),
        Step("parts after compaction", Topic.COMPACTION, sql(_merge([1, 10], 106, "name", "ts"))),
    )


_DELETED = ("delete from {table} where id in (5, 9)", _merge([10], 105, "name", "ts"))
PARTS = {"hoodie.spark.sql.merge.into.partial.updates": "true"}


def _log_compacted(maker: Maker) -> None:
    """The log of a slice merged into blocks of its own: records, and deletions."""
    settings = {
        "hoodie_log_compaction_inline": "true",
        "hoodie_log_compaction_enable": "true",
        "hoodie_log_compaction_blocks_threshold": "1",
    }
    maker.write(trips(range(12), 5), "bulk_insert")
    maker.write(trips(range(4, 8), 6), "upsert")
    maker.write(trips([0, 1, 5], 7), "delete")
    maker.write(trips(range(2, 6), 8), "upsert", **settings)
    maker.write(trips([1, 2], 9), "upsert")


def _moved_columns(maker: Maker) -> None:
    def touched(number: int, ts: int) -> str:
        return f"update {{table}} set ts = {ts} where id = {number}"

    create(_COLUMNS, ", primaryKey = 'id', preCombineField = 'ts'", "partitioned by (part)")(maker)
    sql(
        f"insert into {{table}} values {_ROWS}",
        touched(1, 101),
        "alter table {table} rename column name to label",
        touched(2, 102),
        "alter table {table} alter column n type bigint",
        "alter table {table} drop column price",
        "alter table {table} add columns (price string)",
        touched(3, 103),
    )(maker)


BY_ID = {
    SCHEMA_ON_READ: "true",
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
}
_MOVED = (Step("columns moved", Topic.SCHEMA_EVOLUTION, _moved_columns),)
_LOG_COMPACTED = (Step("log compacted", Topic.COMPACTION, _log_compacted),)
_NO_INCREMENTS: dict[str, Any] = {"travels": True, "increments": False}
STORIES = (
    Story(
        "mor-parts-9", Kind.MOR, _parts(", preCombineField = 'ts'", *_DELETED), {**PARTS, **AVRO_LOGS}, version=9, **_NO_INCREMENTS
    ),
    Story("mor-parts-commit-time-8", Kind.MOR, _parts("")[:1], {**PARTS, **PARQUET_LOGS}, version=8, **_NO_INCREMENTS),
    Story("mor-open-9", Kind.MOR, _OPEN, {**KEYS, **AVRO_LOGS, PAYLOAD: f"{MODELS}PartialUpdateAvroPayload"}, 9, **_NO_INCREMENTS),
    Story("mor-open-6", Kind.MOR, _OPEN[:2], {**KEYS, **AVRO_LOGS, PAYLOAD: f"{MODELS}PartialUpdateAvroPayload"}, **_NO_INCREMENTS),
    Story(
        "mor-open-latest-8",
        Kind.MOR,
        _OPEN[:2],
        {**KEYS, **PARQUET_LOGS, PAYLOAD: f"{MODELS}OverwriteNonDefaultsWithLatestAvroPayload"},
        version=8,
        **_NO_INCREMENTS,
    ),
    Story(
        "mor-postgres-9",
        Kind.MOR,
        _captured("_change_operation_type", "u", "d", "_event_lsn"),
        {**KEYS, ORDERING: "_event_lsn", **AVRO_LOGS, PAYLOAD: f"{MODELS}debezium.PostgresDebeziumAvroPayload"},
        version=9,
        **_NO_INCREMENTS,
    ),
    Story("mor-dms-6", Kind.MOR, _captured("Op", "U", "D"), {**KEYS, **AVRO_LOGS, PAYLOAD: f"{MODELS}AWSDmsAvroPayload"}),
    Story(
        "mor-two-orderings-9",
        Kind.MOR,
        _TWO_FIELDS,
        {**KEYS, **AVRO_LOGS, ORDERING: "ts,a", "hoodie.table.ordering.fields": "ts,a"},
        version=9,
        **_NO_INCREMENTS,
    ),
    Story("mor-log-compaction", Kind.MOR, _LOG_COMPACTED, {**KEYS, **EVENT_TIME, **AVRO_LOGS}, **_NO_INCREMENTS),
    Story("cow-moved-columns-9", Kind.COW, _MOVED, BY_ID, version=9, **_NO_INCREMENTS),
    Story("mor-moved-columns", Kind.MOR, _MOVED, {**BY_ID, **AVRO_LOGS}, **_NO_INCREMENTS),
)
