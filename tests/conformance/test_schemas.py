"""Types and their evolution: what Apache Hudi writes is read here with the same values, and what evolved here is read there."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.rows import difference

from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678)
OLD = dt.datetime(1900, 1, 1, 23, 59, 59, 999999)
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
PLACE = pa.struct([("a", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("d", pa.decimal128(5, 2)), ("in", POINT)])
FULL = {"a": 1, "at": AT.replace(tzinfo=dt.UTC), "d": Decimal("1.50"), "in": {"x": 1, "y": "é"}}
TYPES = {
    "id": pa.array(["a", "b", "c"]),
    "ts": pa.array([1, 1, 1], pa.int64()),
    "tiny": pa.array([1, -128, None], pa.int8()),
    "short": pa.array([1, -(2**15), None], pa.int16()),
    "whole": pa.array([1, -(2**31), None], pa.int32()),
    "long": pa.array([1, -(2**63), None], pa.int64()),
    "single": pa.array([1.5, float("inf"), None], pa.float32()),
    "double": pa.array([0.1, float("nan"), None]),
    "flag": pa.array([True, False, None]),
    "text": pa.array(["é漢😀", "", None]),
    "blob": pa.array([b"\x00\xff", b"", None]),
    "day": pa.array([AT.date(), OLD.date(), None]),
    "moment": pa.array([AT, OLD, None], pa.timestamp("us", "UTC")),
    "local": pa.array([AT, OLD, None], pa.timestamp("us")),
    "price": pa.array([Decimal("1.50"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
    "small": pa.array([Decimal("1E-12"), Decimal(0), None], pa.decimal128(20, 12)),
    "big": pa.array([Decimal(10) ** 37, Decimal(-1), None], pa.decimal128(38, 0)),
    "place": pa.array([FULL, {"a": None, "at": None, "d": None, "in": None}, None], PLACE),
    "list": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
    "points": pa.array([[{"x": 1, "y": "q"}], [], None], pa.list_(POINT)),
    "nested": pa.array([[[1], []], [], None], pa.list_(pa.list_(pa.int32()))),
    "map": pa.array([[("k", None)], [], None], pa.map_(pa.string(), pa.int64())),
    "places": pa.array([[("k", FULL)], [], None], pa.map_(pa.string(), PLACE)),
}
ROWS = pa.table(TYPES)
BASE = {
    **QUICK,
    "hoodie.table.name": "types",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.insert.shuffle.parallelism": "1",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.parquet.small.file.limit": "0",
}


def write(peer: ApacheHudi, base: Path, rows: pa.Table, operation: str = "insert", **more: str) -> None:
    peer.write(base, rows, {**BASE, "hoodie.datasource.write.operation": operation, **more})


def same(peer: ApacheHudi, base: Path | str) -> pa.Table:
    ours = Table.open(str(base)).read()
    problem = difference(ours, peer.read(base), "_hoodie_record_key", names=("tideline", "Apache Hudi"))
    assert problem is None, problem
    return ours


@pytest.mark.pairs
@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_every_type_that_spark_writes(apache_hudi: ApacheHudi, workdir: Path, kind: str, operation: str) -> None:
    base = workdir / "types"
    # Its row writer knows no tinyint, and cannot read its own smallint back.
    rows = ROWS if operation == "insert" else ROWS.drop_columns(["tiny", "short"])
    write(apache_hudi, base, rows, operation, **{"hoodie.datasource.write.table.type": kind})
    ours = same(apache_hudi, base)
    widened = pa.schema([f.with_type(pa.int32()) if f.name in ("tiny", "short") else f for f in rows.schema])
    assert difference(ours.select(rows.column_names), rows.cast(widened), "id") is None
    write(apache_hudi, base, rows.slice(0, 2), "upsert", **{"hoodie.datasource.write.table.type": kind})
    assert same(apache_hudi, base).num_rows == 3


def keyed(ids: str, **columns: pa.Array) -> pa.Table:
    return pa.table({"id": list(ids), "ts": pa.array([1] * len(ids), pa.int64()), **columns})


NARROW = {
    "int_long": pa.array([1, None], pa.int32()),
    "int_float": pa.array([16777217, None], pa.int32()),
    "int_text": pa.array([-2, None], pa.int32()),
    "long_double": pa.array([2**53 + 1, None], pa.int64()),
    "float_double": pa.array([0.1, None], pa.float32()),
    "float_text": pa.array([1e10, None], pa.float32()),
    "double_text": pa.array([1e-5, None]),
    "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
    "place": pa.array([{"p": 1}, None], pa.struct([("p", pa.int32())])),
    "points": pa.array([[{"p": 1}], None], pa.list_(pa.struct([("p", pa.int32())]))),
    "places": pa.array([[("k", {"p": 1})], None], pa.map_(pa.string(), pa.struct([("p", pa.int32())]))),
}
WIDE_MEMBER = pa.struct([("q", pa.string()), ("p", pa.int32())])
WIDE = {
    "new": pa.array(["n"]),
    "int_long": pa.array([2**40], pa.int64()),
    "int_float": pa.array([0.5], pa.float32()),
    "int_text": pa.array(["t"]),
    "long_double": pa.array([0.5]),
    "float_double": pa.array([0.5]),
    "float_text": pa.array(["t"]),
    "double_text": pa.array(["t"]),
    "decimal": pa.array([Decimal("2.1234")], pa.decimal128(20, 4)),
    "place": pa.array([{"q": "x", "p": 2}], WIDE_MEMBER),
    "points": pa.array([[{"q": "x", "p": 2}]], pa.list_(WIDE_MEMBER)),
    "places": pa.array([[("k", {"q": "x", "p": 2})]], pa.map_(pa.string(), WIDE_MEMBER)),
}


@pytest.mark.parametrize("second", ["c", "a"], ids=["new file", "rewritten file"])
def test_what_evolved_there_is_read_here(apache_hudi: ApacheHudi, workdir: Path, second: str) -> None:
    base = workdir / "types"
    write(apache_hudi, base, keyed("ab", **NARROW))
    write(apache_hudi, base, keyed(second, **WIDE), "upsert" if second == "a" else "insert")
    assert same(apache_hudi, base).num_rows == (2 if second == "a" else 3)


@pytest.mark.parametrize("second", ["c", "a"], ids=["new file", "rewritten file"])
def test_what_evolved_here_is_read_there_and_alike(apache_hudi: ApacheHudi, workdir: Path, second: str) -> None:
    base, theirs = str(workdir / "ours"), workdir / "theirs"
    first = keyed("ab", **NARROW)
    create_table(base, TableRequest("types", first.schema, ("id",), (), "ts"))
    table = Table.open(base, options={"tideline.write.schema.evolution": "evolve", "hoodie.parquet.small.file.limit": 0})
    write_rows(table, first, Operation.UPSERT)
    write_rows(table, keyed(second, **WIDE), Operation.UPSERT)
    ours = same(apache_hudi, base)

    write(apache_hudi, theirs, first)
    write(apache_hudi, theirs, keyed(second, **WIDE), "upsert")
    evolved = Table.open(str(theirs))
    assert {f.name: f.type for f in table.schema} == {f.name: f.type for f in evolved.schema}
    assert table.schema.names == evolved.schema.names
    assert difference(ours.select(table.schema.names), evolved.read(table.schema.names), "id") is None
