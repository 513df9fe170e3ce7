"""What rows are made of: types, ordering values, schemas that change."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.conformance.matrix import Kind, Topic
from tests.conformance.stories.layouts import NO_PARTITION
from tests.conformance.stories.life import (
    AVRO_LOGS,
    COMMIT_TIME,
    EVENT_TIME,
    KEYS,
    PARQUET_LOGS,
    run_compaction,
    schedule_compaction,
)
from tests.conformance.stories.rows import marked_deleted
from tests.conformance.stories.story import Maker, Step, Story

UTC = dt.UTC
TYPES = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("part", pa.string()),
        ("b", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("d4", pa.decimal128(4, 2)),
        ("d18", pa.decimal128(18, 6)),
        ("d38", pa.decimal128(38, 10)),
        ("d20", pa.decimal128(20, 0)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("numbers", pa.list_(pa.int32())),
        ("decimals", pa.list_(pa.decimal128(10, 3))),
        ("days", pa.list_(pa.date32())),
        ("ats", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        ("nested", pa.struct([("a", pa.int64()), ("in", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))]))])),
        ("pairs", pa.list_(pa.struct([("k", pa.string()), ("v", pa.float32())]))),
        ("deep", pa.map_(pa.string(), pa.list_(pa.struct([("n", pa.int32()), ("m", pa.date32())])))),
    ]
)


def _full(number: int, sign: int) -> dict[str, Any]:
    return {
        "b": sign > 0,
        "i8": 127 * sign,
        "i16": 32767 * sign,
        "i32": 2147483647 * sign,
        "i64": 9223372036854775807 * sign,
        "f32": 1.5e38 * sign,
        "f64": 1.7e308 * sign,
        "d4": Decimal("99.99") * sign,
        "d18": Decimal("123456789012.345678") * sign,
        "d38": Decimal("9999999999999999999999999999.0123456789") * sign,
        "d20": Decimal(12345678901234567890) * sign,
        "text": f"é漢😀\n\t\"'\x00{number}",
        "raw": bytes([0, 255, 128, number]),
        "day": dt.date(2024, 2, 29) if sign > 0 else dt.date(1969, 12, 31),
        "at": dt.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC) if sign > 0 else dt.datetime(1960, 1, 1, 0, 0, 0, 1, UTC),
        "local": dt.datetime(2024, 2, 29, 23, 59, 59, 999999) if sign > 0 else dt.datetime(1960, 1, 1, 0, 0, 0, 1),
        "numbers": [number, -number, 0],
        "decimals": [Decimal("1.250") * sign, Decimal("0.001")],
        "days": [dt.date(2000, 1, 1)],
        "ats": [("a", dt.datetime(2024, 1, 1, tzinfo=UTC)), ("b", None)],
        "nested": {"a": number, "in": {"x": 0.1 * number, "y": ["", "z"]}},
        "pairs": [{"k": "k", "v": 0.5}, {"k": None, "v": None}],
        "deep": [("m", [{"n": 1, "m": dt.date(2024, 1, 1)}, {"n": None, "m": None}]), ("empty", [])],
    }


def _empty(number: int) -> dict[str, Any]:
    lists = {"numbers": [], "decimals": [], "days": [], "ats": [], "pairs": [], "deep": [], "text": "", "raw": b""}
    zero = {"f32": -0.0, "f64": float("nan"), "d4": Decimal("0.00"), "i64": 0, "nested": {"a": None, "in": None}}
    return {**lists, **zero}


def typed(numbers: range, ts: int) -> pa.Table:
    """Rows with the largest and smallest values of every type, with empty ones and with nulls."""
    makers: list[Callable[[int], dict[str, Any]]] = [lambda n: _full(n, 1), lambda n: _full(n, -1), _empty, lambda n: {}]
    return pa.Table.from_pylist(
        [{**makers[n % 4](n), "id": f"k{n:04}", "ts": ts, "part": f"p{n % 2}"} for n in numbers], schema=TYPES
    )


def _write_types(numbers: range, ts: int, operation: str) -> Callable[[Maker], None]:
    def write(maker: Maker) -> None:
        # Hudi's row writer, which bulk_insert uses by default, refuses tinyint.
        avro = maker.story.options.get(ROW_WRITER) == "false"
        rows = typed(numbers, ts)
        maker.write(rows if avro else rows.drop_columns("i8"), operation)

    return write


ROW_WRITER = "hoodie.datasource.write.row.writer.enable"
TYPE_STEPS = (
    Step("bulk insert", Topic.TYPES, _write_types(range(8), 5, "bulk_insert")),
    Step("insert", Topic.TYPES, _write_types(range(8, 12), 5, "insert")),
    Step("upsert", Topic.TYPES, _write_types(range(4, 10), 6, "upsert")),
)

# --- ordering values ---------------------------------------------------------------------------------------------------------

AT = dt.datetime(2024, 5, 1, 10, 0, 0, 0, tzinfo=UTC)
ORDERINGS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int32(), lambda n: 2 * n - 13),
    # Hudi takes the int 0 for no ordering value at all: here it is that of some deletions.
    "zero": (pa.int32(), lambda n: n - 7),
    "long": (pa.int64(), lambda n: n - 7),
    "double": (pa.float64(), lambda n: (n - 7) / 2),
    "float": (pa.float32(), lambda n: (n - 7) / 2),
    "string": (pa.string(), lambda n: f"v{n}"),
    "date": (pa.date32(), lambda n: dt.date(2024, 5, 1) + dt.timedelta(days=n)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: AT + dt.timedelta(microseconds=n)),
    "decimal": (pa.decimal128(12, 3), lambda n: Decimal(n - 7).scaleb(-3)),
}


def ordered(kind: str, numbers: list[int], at: int, text: str) -> pa.Table:
    """Rows whose ordering value of type `kind` counts as `at`."""
    arrow, value = ORDERINGS[kind]
    return pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "ts": pa.array([value(at)] * len(numbers), arrow),
            "text": [f"{text}{n}" for n in numbers],
            "part": [f"p{n % 2}" for n in numbers],
        }
    )


def _ordering_steps(kind: str) -> tuple[Step, ...]:
    def everything(maker: Maker) -> None:
        maker.write(ordered(kind, list(range(10)), 5, "first"), "bulk_insert")
        maker.write(ordered(kind, [1, 2, 3], 6, "newer"), "upsert")
        maker.write(ordered(kind, [3, 4, 5], 4, "older"), "upsert")
        # Deletions as rows carry ordering values too: 2 and 6 lose, 7 and 8 win. Deletions by key do not, and win.
        # (Hudi cannot write those of type date into logs: docs/peer-differences.md.)
        if kind != "date":
            maker.write(marked_deleted(ordered(kind, [2, 6], 3, "gone")), "upsert")
            maker.write(marked_deleted(ordered(kind, [7, 8], 7, "gone")), "upsert")
        maker.write(ordered(kind, [8, 9], 6, "between"), "upsert")
        maker.write(ordered(kind, [0], 1, "gone"), "delete")

    return (Step(f"ordered by {kind}", Topic.UPSERT, everything),)


# --- schemas that change ----------------------------------------------------------------------------------------------------


def evolving(schema: list[tuple[str, pa.DataType]], numbers: range, ts: int) -> pa.Table:
    """Rows of one of the schemas below."""
    known: dict[str, Callable[[int], Any]] = {
        "id": lambda n: f"k{n}",
        "ts": lambda n: ts,
        "part": lambda n: f"p{n % 2}",
        "n": lambda n: n,
        "x": lambda n: n / 4,
        "place": lambda n: {"city": f"c{n}", "zip": n, "country": "fr"},
        "items": lambda n: [{"sku": f"s{n}", "count": n}],
        "added": lambda n: f"added{n}",
        "more": lambda n: n * 2,
    }
    rows = [{name: known[name](n) for name, _ in schema} for n in numbers]
    return pa.Table.from_pylist(rows, schema=pa.schema(schema))


_KEY = [("id", pa.string()), ("ts", pa.int64()), ("part", pa.string())]
_PLACE = [("city", pa.string()), ("zip", pa.int32())]
FIRST = [
    *_KEY,
    ("n", pa.int32()),
    ("x", pa.float32()),
    ("place", pa.struct(_PLACE)),
    ("items", pa.list_(pa.struct([("sku", pa.string())]))),
]
ADDED = [*FIRST, ("added", pa.string())]
WIDER = [*_KEY, ("n", pa.int64()), ("x", pa.float64()), *FIRST[5:], ("added", pa.string())]
NESTED = [
    *WIDER[:5],
    ("place", pa.struct([*_PLACE, ("country", pa.string())])),
    ("items", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int64())]))),
    ("added", pa.string()),
]
REORDERED = [NESTED[0], NESTED[7], NESTED[3], ("more", pa.int32()), NESTED[6], NESTED[1], NESTED[2], NESTED[4], NESTED[5]]

EVOLUTION = (
    Step("first schema", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(FIRST, range(8), 5), "bulk_insert")),
    Step("updated", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(FIRST, range(2), 6), "upsert")),
    Step("column added", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(ADDED, range(6, 10), 6), "upsert")),
    Step("widened", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(WIDER, range(8, 12), 7), "upsert")),
    Step("nested fields added", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(NESTED, range(1, 3), 8), "upsert")),
    Step("reordered", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(REORDERED, range(11, 14), 9), "upsert")),
    Step("columns missing", Topic.SCHEMA_EVOLUTION, lambda m: m.write(evolving(FIRST, range(3, 5), 10), "upsert")),
)
COMPACTED = (
    Step("compaction scheduled", Topic.SCHEMA_EVOLUTION, schedule_compaction),
    Step("compacted", Topic.SCHEMA_EVOLUTION, run_compaction),
)

_KEYS = {**KEYS, **EVENT_TIME}
STORIES = (
    Story("cow-types", Kind.COW, TYPE_STEPS, _KEYS),
    Story("cow-types-avro", Kind.COW, TYPE_STEPS, {**_KEYS, ROW_WRITER: "false"}),
    Story("mor-types", Kind.MOR, TYPE_STEPS, {**_KEYS, **AVRO_LOGS}),
    Story("mor-types-parquet", Kind.MOR, TYPE_STEPS, {**_KEYS, **PARQUET_LOGS, ROW_WRITER: "false"}),
    Story("mor-types-9", Kind.MOR, TYPE_STEPS, {**KEYS, **AVRO_LOGS}, version=9),
    Story("cow-evolution", Kind.COW, EVOLUTION, _KEYS),
    Story("mor-evolution", Kind.MOR, (*EVOLUTION, *COMPACTED), {**_KEYS, **AVRO_LOGS}),
    Story("mor-evolution-parquet", Kind.MOR, EVOLUTION, {**_KEYS, **PARQUET_LOGS}),
    *(Story(f"mor-ordering-{kind}", Kind.MOR, _ordering_steps(kind), {**_KEYS, **AVRO_LOGS, **NO_PARTITION}) for kind in ORDERINGS),
    Story("mor-ordering-int-parquet", Kind.MOR, _ordering_steps("int"), {**_KEYS, **PARQUET_LOGS}),
    Story("mor-ordering-commit-time", Kind.MOR, _ordering_steps("int"), {**KEYS, **COMMIT_TIME, **AVRO_LOGS}),
    Story("cow-ordering-timestamp", Kind.COW, _ordering_steps("timestamp"), _KEYS),
    Story("mor-ordering-9", Kind.MOR, _ordering_steps("timestamp"), {**KEYS, **AVRO_LOGS}, version=9),
)
