"""Keys that are unique in the table: Apache Hudi and Tideline do the same writes with GLOBAL_SIMPLE, and each goes on on the
other's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK, Turns, trips
from tests.conformance.matrix import KEY, Cell, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs

from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

NEW_TABLE = {
    "hoodie.write.table.version": "6",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
}


def placed(numbers: range | list[int], ts: Callable[[int], int], part: Callable[[int], str]) -> pa.Table:
    rows = pa.concat_tables([trips([n], ts(n)) for n in numbers])
    return rows.set_column(rows.column_names.index("part"), "part", pa.array([part(n) for n in numbers]))


WRITES = (
    (placed(range(10), lambda n: 5, lambda n: f"p{n % 2}"), "upsert"),
    # From both partitions into one that is new.
    (placed(range(3, 7), lambda n: 8, lambda n: "p9"), "upsert"),
    # Some rows are older than those that stand elsewhere, one has the same ordering value.
    (placed(range(9), lambda n: n + 1, lambda n: f"p{n % 3}"), "upsert"),
    # Named in a partition that does not hold them.
    (placed([1, 4, 20], lambda n: 9, lambda n: "p7"), "delete"),
)
SWAPPED = placed(range(12), lambda n: 9, lambda n: f"p{(n + 1) % 3}")


def content(table: Turns) -> list[str]:
    """What our reader has of a table, without what differs from write to write."""
    meta = {"_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"}
    rows = Table.open(str(table.path)).read()
    return sorted(map(str, rows.select([n for n in rows.column_names if n not in meta]).to_pylist()))


@pytest.mark.parametrize(
    ("kind", "moves"),
    # Apache Hudi leaves keys twice in the fourth case: docs/peer-differences.md, 24.
    [(Kind.COW, True), (Kind.MOR, True), (Kind.COW, False)],
    ids=["COW, moves", "MOR, moves", "COW, stays"],
)
def test_rows_end_in_the_same_partitions(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, kind: Kind, moves: bool) -> None:
    index = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": str(moves).lower()}
    theirs = Turns(apache_hudi, workdir / "theirs", kind, {**index, **NEW_TABLE}, index)
    ours = Turns(apache_hudi, workdir / "ours", kind, index, index)
    ours.create_here()
    with matrix.cells(*(Cell(topic, kind, Direction.IN_TURN) for topic in (Topic.UPSERT, Topic.DELETE)), label="global") as compare:
        for rows, operation in WRITES:
            theirs.theirs(rows, operation)
            ours.ours(rows, Operation(operation))
            assert content(ours) == content(theirs)
            compare.count += 1
        theirs.share()
        theirs.ours(SWAPPED)
        ours.theirs(SWAPPED)
        assert content(ours) == content(theirs)
        assert len(content(ours)) == len(set(Table.open(str(ours.path)).read().column("id").to_pylist())) == 12
        for table in (ours, theirs):
            own = Table.open(str(table.path)).read()
            hudi = apache_hudi.read(table.path)
            if moves:
                compare.rows(own, read_hudi_rs(table.path), "hudi-rs", "hudi-rs", key=KEY)
            else:
                # Hudi answers with the folder's value: docs/peer-differences.md, 14.
                own, hudi = own.drop_columns(["part"]), hudi.drop_columns(["part"])
                compare.excused(14)
            compare.rows(own, hudi, "each on the other's table")


LATE = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("part", pa.string()), ("_hoodie_is_deleted", pa.bool_())])
LATE_WRITES = (
    [("k1", 5, "p0", False), ("k2", 5, "p0", False), ("k3", 5, "p0", False)],
    [("k1", 10, "p0", True), ("k2", 10, "p0", True)],
    # Older than the deletions: one in their partition, one in another.
    [("k1", 7, "p0", False), ("k2", 7, "p1", False)],
)


def test_a_late_row_becomes_visible_behind_a_deletion(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """To both, a key that a log file deleted is a new one for a global index: docs/design/merge-on-read.md."""
    index = {"hoodie.index.type": "GLOBAL_SIMPLE"}
    settings = {
        **QUICK,
        **index,
        **NEW_TABLE,
        "hoodie.table.name": "t",
        "hoodie.datasource.write.table.type": Kind.MOR.value,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "part",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.compact.inline": "false",
        "hoodie.datasource.write.operation": "upsert",
    }
    create_table(str(workdir / "ours"), TableRequest("t", LATE, ("id",), ("part",), "ts", TableType.MOR))
    table = Table.open(str(workdir / "ours"), options=index)
    for found in LATE_WRITES:
        rows = pa.Table.from_pylist([dict(zip(LATE.names, row, strict=True)) for row in found], LATE)
        apache_hudi.write(workdir / "theirs", rows, settings)
        write_rows(table, rows, Operation.UPSERT)
    for shown in (apache_hudi.read(workdir / "theirs"), table.read(), apache_hudi.read(workdir / "ours")):
        visible = zip(*(shown.column(name).to_pylist() for name in ("id", "ts", "_hoodie_partition_path")), strict=True)
        assert sorted(visible) == [("k1", 7, "p0"), ("k2", 7, "p1"), ("k3", 5, "p0")]
