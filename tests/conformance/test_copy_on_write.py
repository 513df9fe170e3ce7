"""Copy-on-write tables of version 6, both directions: written here and read by Apache Hudi 1.2.0 and hudi-rs, and the other way round.

One cell per (operation, layout): after each operation all three readers see the same rows, meta columns included, and Apache Hudi
sees the same timeline.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.peers.rows import difference

from tideline_table.errors import TableFrozen, UnsupportedTable
from tideline_table.table import (
    Table,
    TableRequest,
    create_table,
    roll_back_dead,
    run_clean,
    run_clustering,
    schedule_clean,
    schedule_clustering,
    write_rows,
)
from tideline_table.timeline.instant import State
from tideline_table.transaction import WriteTransaction
from tideline_table.writer import Operation

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("blob", pa.binary()),
        ("ratio", pa.float32()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("part", pa.string()),
    ]
)


def rows(numbers: range, ts: int, part: Callable[[int], str | None] = lambda n: f"p{n % 2}") -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": f"k{n:04}",
                "ts": ts,
                "price": n * 1.5 if n % 5 else None,
                "quantity": n if n % 4 else None,
                "at": AT + dt.timedelta(minutes=n),
                "day": AT.date() + dt.timedelta(days=n),
                "amount": Decimal(n).scaleb(-2),
                "flag": n % 3 == 0,
                "blob": bytes([n % 256, 0, 255]),
                "ratio": n / 4,
                "tags": [f"t{n}", "é漢😀", None] if n % 2 else None,
                "place": {"city": f"c{n}", "zip": n if n % 3 else None},
                "counts": [("a", n), ("b", None)],
                "part": part(n),
            }
            for n in numbers
        ],
        schema=SCHEMA,
    )


@dataclass(frozen=True)
class Layout:
    name: str
    request: TableRequest
    part: Callable[[int], str | None] = lambda n: f"p{n % 2}"


_BASE = TableRequest("trips", SCHEMA, ("id",), ("part",), "ts")
LAYOUTS = [
    Layout("partitioned", _BASE),
    Layout("hive-style", replace(_BASE, hive_style=True), lambda n: f"p{n % 2}" if n % 7 else None),
    Layout("url-encoded", replace(_BASE, hive_style=True, url_encode=True), lambda n: f"a/b c={n % 2}"),
    Layout("non-partitioned", replace(_BASE, partition_fields=())),
    Layout("complex-key", replace(_BASE, key_fields=("id", "day"), partition_fields=("part", "flag"))),
    Layout("commit-time", replace(_BASE, ordering_field="")),
]


@dataclass
class Cell:
    table: Table
    peer: ApacheHudi

    def check(self, step: str) -> pa.Table:
        """All readers agree, and so do the timelines; returns the rows."""
        base = self.table.base_path
        ours = Table.open(base).read()
        for name, theirs in (("Apache Hudi", self.peer.read(base)), ("hudi-rs", read_hudi_rs(base))):
            problem = difference(ours, theirs, ["_hoodie_record_key", "_hoodie_partition_path"], names=("tideline", name))
            assert problem is None, f"{step}: {problem}"
        mine = {
            (a.instant, a.action.value, a.state.name)
            for a in self.table.refresh().actions.values()
            if a.state is not State.ROLLED_BACK
        }
        assert {(i.instant, i.action, i.state) for i in self.peer.timeline(base)} == mine, step
        slices = {(s.partition_path, s.file_id, s.base_instant, s.base_file) for s in self.peer.file_slices(base)}
        assert slices == {(*s.group, s.base_instant, s.base_file) for s in self.table.state.latest_slices()}, step
        return ours


def user_rows(table: pa.Table) -> pa.Table:
    return table.select(SCHEMA.names)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda found: found.name)
def test_written_here_is_read_there(apache_hudi: ApacheHudi, workdir: Path, layout: Layout) -> None:
    base = str(workdir / "trips")
    create_table(base, layout.request)
    table = Table.open(base, options={"hoodie.parquet.small.file.limit": 0, "hoodie.cleaner.commits.retained": 2})
    cell = Cell(table, apache_hudi)
    key = "id"

    first = write_rows(table, rows(range(20), 5, layout.part), Operation.BULK_INSERT)
    model = rows(range(20), 5, layout.part)
    assert difference(user_rows(cell.check("bulk insert")), model, key) is None

    write_rows(table, rows(range(20, 30), 5, layout.part), Operation.INSERT)
    cell.check("insert")

    write_rows(table, rows(range(10, 35), 7, layout.part), Operation.UPSERT)
    model = pa.concat_tables([rows(range(10), 5, layout.part), rows(range(10, 35), 7, layout.part)])
    assert difference(user_rows(cell.check("upsert")), model, key) is None

    write_rows(table, rows(range(4), 6, layout.part), Operation.DELETE)
    model = pa.concat_tables([rows(range(4, 10), 5, layout.part), rows(range(10, 35), 7, layout.part)])
    assert difference(user_rows(cell.check("delete")), model, key) is None

    late = rows(range(8, 12), 6, layout.part)
    write_rows(table, late, Operation.UPSERT)
    if layout.request.ordering_field:
        model = pa.concat_tables(
            [rows(range(4, 8), 5, layout.part), rows(range(8, 10), 6, layout.part), rows(range(10, 35), 7, layout.part)]
        )
    else:
        model = pa.concat_tables([rows(range(4, 8), 5, layout.part), late, rows(range(12, 35), 7, layout.part)])
    assert difference(user_rows(cell.check("late upsert")), model, key) is None

    abandoned = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    cell.check("a write that is inflight")
    abandoned.roll_back()
    assert difference(user_rows(cell.check("rollback")), model, key) is None

    plan = schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "price"})
    assert plan is not None
    cell.check("clustering requested")
    assert run_clustering(table) is not None
    assert difference(user_rows(cell.check("clustering")), model, key) is None

    travelled = apache_hudi.read(base, as_of=first.instant)
    assert (
        difference(Table.open(base).read(as_of=first.instant), travelled, ["_hoodie_record_key", "_hoodie_partition_path"]) is None
    )
    assert difference(read_hudi_rs(base, as_of=first.instant), travelled, ["_hoodie_record_key", "_hoodie_partition_path"]) is None

    for number in range(3):
        write_rows(table, rows(range(40 + number, 42 + number), 9, layout.part), Operation.UPSERT)
    assert schedule_clean(table) is not None
    assert run_clean(table)
    cell.check("clean")


def test_rows_that_are_deletions_and_a_file_that_becomes_empty(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base = str(workdir / "trips")
    create_table(base, _BASE)
    table = Table.open(base)
    cell = Cell(table, apache_hudi)
    write_rows(table, rows(range(4), 5), Operation.UPSERT)
    marked = rows(range(2), 6).append_column("_hoodie_is_deleted", pa.array([True, True]))
    write_rows(table, marked, Operation.UPSERT)
    assert user_rows(cell.check("marked rows")).column("id").to_pylist() == ["k0002", "k0003"]
    write_rows(table, rows(range(4), 9), Operation.DELETE)
    assert cell.check("everything deleted").num_rows == 0
    write_rows(table, rows(range(2), 10), Operation.UPSERT)
    assert cell.check("written again").num_rows == 2


def test_an_empty_table_is_read(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base = str(workdir / "trips")
    create_table(base, _BASE)
    assert Table.open(base).read().num_rows == 0
    assert apache_hudi.read(base).num_rows == 0


def test_a_dead_writer_leaves_nothing_that_others_see(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base = str(workdir / "trips")
    create_table(base, _BASE)
    table = Table.open(base, options={"hoodie.client.heartbeat.interval_in_ms": 100, "hoodie.client.heartbeat.tolerable.misses": 1})
    write_rows(table, rows(range(4), 5), Operation.UPSERT)
    dead = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    dead.abandon()
    table.clock.sleep(0.3)
    assert roll_back_dead(table) == [dead.instant]
    assert Cell(table, apache_hudi).check("recovered").num_rows == 4


def test_a_foreign_commit_freezes_an_exclusive_table(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base = str(workdir / "trips")
    create_table(base, _BASE)
    table = Table.open(base)
    write_rows(table, peer_rows(range(4), 5), Operation.UPSERT)
    apache_hudi.write(base, peer_rows(range(2, 6), 7), {**PEER_OPTIONS, "hoodie.datasource.write.operation": "upsert"})
    assert apache_hudi.read(base).num_rows == 6
    with pytest.raises(TableFrozen, match="no Tideline writer made"):
        write_rows(table, rows(range(1), 9), Operation.UPSERT)


PEER_OPTIONS = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
    "hoodie.clean.automatic": "false",
    "hoodie.parquet.small.file.limit": "0",
}


def peer_rows(numbers: range, ts: int) -> pa.Table:
    """Apache Hudi itself cannot write an array with a null element (its Avro writer uses the old list structure)."""
    found = rows(numbers, ts)
    tags = pa.array([[f"t{n}", "é漢😀"] for n in numbers], pa.list_(pa.string()))
    return found.set_column(found.schema.get_field_index("tags"), found.schema.field("tags"), tags)


def test_written_there_is_read_here(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base = workdir / "trips"
    steps = itertools.chain(
        [("bulk_insert", range(12), 5), ("insert", range(12, 16), 5), ("upsert", range(8, 20), 7), ("delete", range(3), 8)],
        [("bulk_insert", range(30, 36), 5)],
    )
    for operation, numbers, ts in steps:
        apache_hudi.write(base, peer_rows(numbers, ts), {**PEER_OPTIONS, "hoodie.datasource.write.operation": operation})
        problem = difference(
            Table.open(str(base)).read(), apache_hudi.read(base), "_hoodie_record_key", names=("tideline", "Apache Hudi")
        )
        assert problem is None, f"{operation}: {problem}"
    apache_hudi.call(f"run_clustering(path => '{base}', op => 'schedule')")
    apache_hudi.call(f"run_clustering(path => '{base}', op => 'execute')")
    apache_hudi.write(base, peer_rows(range(30, 34), 9), {**PEER_OPTIONS, "hoodie.datasource.write.operation": "insert_overwrite"})
    table = Table.open(str(base))
    problem = difference(table.read(), apache_hudi.read(base), "_hoodie_record_key", names=("tideline", "Apache Hudi"))
    assert problem is None, problem
    instants = [a.instant for a in table.state.completed_writes()]
    for instant in instants:
        problem = difference(table.read(as_of=instant), apache_hudi.read(base, as_of=instant), "_hoodie_record_key")
        assert problem is None, f"as of {instant}: {problem}"
    with pytest.raises(UnsupportedTable, match="written by others"):
        write_rows(table, rows(range(1), 9), Operation.UPSERT)
