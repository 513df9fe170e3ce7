"""Which column types each reader reads (docs/types.md), after an insert and an upsert."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import SHARING
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.plans import schedule_clustering, schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import run_clustering, run_compaction, write_rows
from tideline_table.errors import UnsupportedTable
from tideline_table.schema import reader_limits
from tideline_table.table import Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345000)
LOCAL = pa.timestamp("us")
TYPES = {
    "bool": pa.array([True]),
    "int32": pa.array([1], pa.int32()),
    "int64": pa.array([1], pa.int64()),
    "float32": pa.array([1.5], pa.float32()),
    "float64": pa.array([1.5]),
    "string": pa.array(["é"]),
    "binary": pa.array([b"x"]),
    "fixed": pa.array([b"xy"], pa.binary(2)),
    "decimal": pa.array([Decimal("1.50")], pa.decimal128(38, 2)),
    "date": pa.array([AT.date()]),
    "time_ms": pa.array([AT.time()], pa.time32("ms")),
    "time_us": pa.array([AT.time()], pa.time64("us")),
    "utc_ms": pa.array([AT], pa.timestamp("ms", "UTC")),
    "utc_us": pa.array([AT], pa.timestamp("us", "UTC")),
    "local_ms": pa.array([AT], pa.timestamp("ms")),
    "local_us": pa.array([AT], LOCAL),
    "local_in_struct": pa.array([{"at": AT}], pa.struct([("at", LOCAL)])),
    "list": pa.array([[[1]]], pa.list_(pa.list_(pa.int32()))),
    "struct": pa.array([{"a": 1}], pa.struct([("a", pa.int64())])),
    "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
}
NOT_IN_HUDI_RS = {"local_ms", "local_us", "local_in_struct"}
NOT_IN_HUDI = {"time_ms", "time_us"}
READ_BY_HUDI_RS = (
    "import sys; from tests.conformance.peers.hudi_rs import read_hudi_rs; print(read_hudi_rs(sys.argv[1]).to_pylist())"
)


REFUSED = sorted(NOT_IN_HUDI_RS | NOT_IN_HUDI)


def written(base: Path, table_type: TableType, columns: dict[str, pa.Array]) -> pa.Table:
    """Write a table with one row, after an insert and an upsert; return its row."""
    rows = pa.table({"id": ["a"], "ts": pa.array([1], pa.int64()), **columns})
    create_table(str(base), TableRequest("t", rows.schema, ("id",), (), "ts", table_type))
    table = Table.open(str(base))
    write_rows(table, rows, Operation.INSERT)
    write_rows(table, rows.set_column(1, "ts", pa.array([2], pa.int64())), Operation.UPSERT)
    assert table.read(list(columns)).to_pylist() == rows.select(list(columns)).to_pylist()
    return rows


def read_by_hudi_rs(base: Path) -> subprocess.CompletedProcess[str]:
    """Read in a process of its own: a panic of hudi-rs is no ordinary exception."""
    return subprocess.run([sys.executable, "-c", READ_BY_HUDI_RS, str(base)], capture_output=True, text=True, check=False)


@pytest.mark.pairs
@pytest.mark.parametrize("table_type", list(TableType))
def test_types_that_every_reader_reads(apache_hudi: ApacheHudi, workdir: Path, table_type: TableType) -> None:
    columns = {name: column for name, column in TYPES.items() if name not in REFUSED}
    rows = written(workdir / "t", table_type, columns)
    assert not reader_limits(rows.schema)
    found = read_by_hudi_rs(workdir / "t")
    assert found.returncode == 0, found.stderr
    theirs = apache_hudi.read(workdir / "t")
    assert {name: theirs.column(name).to_pylist() for name in columns} == {name: c.to_pylist() for name, c in columns.items()}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_a_reader_lacks(apache_hudi: ApacheHudi, workdir: Path, name: str) -> None:
    rows = written(workdir / "t", TableType.COW, {"c": TYPES[name]})
    assert reader_limits(rows.schema)
    found = read_by_hudi_rs(workdir / "t")
    assert (found.returncode == 0) == (name not in NOT_IN_HUDI_RS), found.stderr
    if name in NOT_IN_HUDI:
        with pytest.raises(PeerFailed):
            apache_hudi.read(workdir / "t")
    else:
        assert apache_hudi.read(workdir / "t").column("c").to_pylist() == TYPES[name].to_pylist()


@pytest.mark.pairs
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_types_of_1_2_are_read_as_apache_hudi_reads_them(apache_hudi: ApacheHudi, workdir: Path, kind: str) -> None:
    """Vectors are arrays, also in logs, and blobs are structs of their bytes or of a reference. Spark 3.5 has no variants."""
    path, name = workdir / "t", f"types_of_1_2_{kind}"
    number = "array(cast({0} as float), cast({0} + 0.5 as float), cast(-1 as float))"
    reference = "cast(null as struct<external_path: string, offset: bigint, length: bigint, managed: boolean>)"
    doc = f"named_struct('type', 'INLINE', 'data', cast('{{0}}' as binary), 'reference', {reference})"
    row = f"({{0}}, {{1}}, {number}, {doc})"
    nine = {"hoodie.write.table.version": "9", "hoodie.metadata.enable": "false"}
    apache_hudi.sql(
        f"create table {name} (id int, ts bigint, emb vector(3), doc blob) using hudi tblproperties "
        f"(type = '{kind}', primaryKey = 'id', preCombineField = 'ts', hoodie.write.table.version = '9') location '{path}'",
        nine,
    )
    apache_hudi.sql(f"insert into {name} values {row.format(1, 1)}, {row.format(2, 1)}", nine)
    apache_hudi.sql(f"update {name} set ts = 2 where id = 2", nine)
    ours, theirs = Table.open(str(path)).read(), apache_hudi.read(path)
    for column in ("id", "emb", "doc"):
        found, wanted = (dict(zip(t["id"].to_pylist(), t[column].to_pylist(), strict=True)) for t in (ours, theirs))
        assert found == wanted, column
    assert sorted(ours["emb"].to_pylist()) == [[1.0, 1.5, -1.0], [2.0, 2.5, -1.0]]
    with pytest.raises(UnsupportedTable, match="VECTOR"):
        write_rows(Table.open(str(path)), ours, Operation.UPSERT)


def test_blobs_go_through_the_services_of_both_sides(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Members that a blob requires are null behind a null reference, in files of Apache Hudi's compactions even by their types."""
    path, reference = workdir / "t", "struct<external_path: string, offset: bigint, length: bigint, managed: boolean>"

    def settings(**more: str) -> dict[str, str]:
        shared = Table.open(str(path)).hudi_options() if (path / ".hoodie" / ".tideline").exists() else {}
        return {"hoodie.write.table.version": "9", "hoodie.metadata.enable": "false", **shared, **more}

    apache_hudi.sql(
        "create table served_blobs (id int, ts bigint, doc blob, part string) using hudi tblproperties (type = 'mor', "
        "primaryKey = 'id', preCombineField = 'ts', hoodie.write.table.version = '9') partitioned by (part) "
        f"location '{path}'",
        settings(),
    )
    held = f"named_struct('type', 'INLINE', 'data', cast('x' as binary), 'reference', cast(null as {reference}))"
    far = "named_struct('external_path', '/x', 'offset', 1L, 'length', 2L, 'managed', false)"
    away = f"named_struct('type', 'OUT_OF_LINE', 'data', cast(null as binary), 'reference', {far})"
    apache_hudi.sql(f"insert into served_blobs values (1, 1, {held}, 'a'), (2, 1, {away}, 'a'), (3, 1, null, 'b')", settings())
    compacts = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
    apache_hudi.sql("update served_blobs set ts = 2 where id in (1, 3)", settings(**compacts))

    def same() -> list[dict[str, Any]]:
        both = (
            found.drop_columns(["_hoodie_file_name"]).to_pylist()
            for found in (Table.open(str(path)).read(), apache_hudi.read(path))
        )
        ours, theirs = (sorted(rows, key=lambda row: row["id"]) for rows in both)
        assert ours == theirs
        return ours

    first = same()
    share_table(Table.open(str(path)), SHARING, open_hudi_lock)
    table = Table.open(str(path), hudi_lock=open_hudi_lock)
    later = pa.Table.from_pylist([{**row, "ts": 3} for row in first[:1]], table.schema)
    write_rows(table, later, Operation.UPSERT)
    compaction = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    assert compaction is not None
    run_compaction(table, compaction)
    more = pa.Table.from_pylist([{**first[0], "id": 9}], table.schema)
    write_rows(table, more, Operation.BULK_INSERT)
    clustering = schedule_clustering(table, {"hoodie.clustering.plan.strategy.small.file.limit": 10**9})
    assert clustering is not None
    run_clustering(table, clustering)
    docs = [row["doc"] for row in first]
    assert [row["doc"] for row in same()] == [*docs, docs[0]]
    apache_hudi.sql("update served_blobs set ts = 4 where id = 2", settings())
    assert [row["doc"] for row in same()] == [*docs, docs[0]]
