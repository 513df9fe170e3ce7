"""Written here, read by Apache Hudi 1.2.0 and hudi-rs: after each operation all three readers see the same rows, meta columns
included.

Apache Hudi also sees the same timeline and the same file slices, log files included.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.conformance.crashing_writer import DIED, HEARTBEAT
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import REPOSITORY
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.stories.rows import marked_deleted
from tests.conformance.stories.schemas import ADDED, FIRST, NESTED, ORDERINGS, WIDER, evolving, ordered
from tests.conformance.written_here import BASE, LAYOUTS, Layout, Readers, rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.faults import SAMPLE_STEP

from tideline_table.action import delete_partitions, roll_back_dead, run_clean, run_clustering, run_compaction, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.log.progress import ProgressStep
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

OPTIONS = {"hoodie.parquet.small.file.limit": 0, "hoodie.cleaner.commits.retained": 2}
BLOCKS = "hoodie.logfile.data.block.format"
NOW = {"hoodie.compact.inline.max.delta.commits": 1}
TELLING = frozenset(
    {
        "bulk insert",
        "upsert",
        "delete",
        "late upsert",
        "upsert and delete beside compaction",
        "compacted",
        "time travel to the first rows",
        "clustered",
        "clean",
    }
)
"""The steps after which the peers read a table whose operations they follow step by step in other layouts; with SAMPLE_STEP=1 they
follow all."""
CASES = [
    *(pytest.param(TableType.COW, layout, {}, id=f"cow-{layout.name}") for layout in LAYOUTS),
    *(
        pytest.param(TableType.MOR, layout, {BLOCKS: block}, id=f"mor-{layout.name}-{block}")
        for layout, block in zip(LAYOUTS, ["parquet", "avro"] * 3, strict=True)
        if layout.name not in ("url-encoded", "complex-key")
    ),
    *(
        pytest.param(kind, replace(layout, request=replace(layout.request, version=9)), {BLOCKS: "parquet"}, id=f"{kind}-version-9")
        for kind, layout in ((TableType.COW, LAYOUTS[1]), (TableType.MOR, LAYOUTS[0]))
    ),
]


def _opened(base: Path, request: TableRequest, options: dict[str, Any]) -> Table:
    create_table(str(base), request)
    return Table.open(str(base), options={**OPTIONS, **options})


@pytest.fixture
def begun(
    apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, request: pytest.FixtureRequest
) -> Callable[[TableRequest, dict[str, Any]], Readers]:
    """Makes an empty table that is compared under the test's name."""
    return lambda table, options: Readers(
        _opened(workdir / "trips", table, options), apache_hudi, matrix, f"written here, {request.node.name}"
    )


@pytest.mark.parametrize(("kind", "layout", "options"), CASES)
def test_every_operation(begun: Any, kind: TableType, layout: Layout, options: dict[str, Any]) -> None:
    readers = begun(replace(layout.request, type=kind), options)
    is_whole = layout.name == "partitioned" or (kind is TableType.MOR and layout.name == "hive-style")
    readers.telling = None if is_whole or SAMPLE_STEP == 1 else TELLING
    table, part = readers.table, layout.part
    with readers.step(Topic.BULK_INSERT, "bulk insert") as step:
        first = write_rows(table, rows(range(20), 5, part), Operation.BULK_INSERT)
        step.agree(rows(range(20), 5, part))
    with readers.step(Topic.INSERT, "insert") as step:
        write_rows(table, rows(range(20, 30), 5, part), Operation.INSERT)
        step.agree(rows(range(30), 5, part))
    with readers.step(Topic.UPSERT, "upsert", Topic.TYPES) as step:
        write_rows(table, rows(range(10, 35), 7, part), Operation.UPSERT)
        model = pa.concat_tables([rows(range(10), 5, part), rows(range(10, 35), 7, part)])
        step.agree(model)
    with readers.step(Topic.DELETE, "delete") as step:
        write_rows(table, rows(range(4), 6, part), Operation.DELETE)
        step.agree(pa.concat_tables([rows(range(4, 10), 5, part), rows(range(10, 35), 7, part)]))
    with readers.step(Topic.UPSERT, "late upsert") as step:
        late = rows(range(8, 12), 6, part)
        write_rows(table, late, Operation.UPSERT)
        won = late.slice(0, 2) if layout.request.ordering_field else late
        model = pa.concat_tables([rows(range(4, 8), 5, part), won, rows(range(8 + won.num_rows, 35), 7, part)])
        step.agree(model)
    if kind is TableType.MOR:
        model = _compacted(readers, model, part)
    _after_all_writes(readers, model, part)
    with readers.step(Topic.BULK_INSERT, "time travel to the first rows") as step:
        travelled = readers.peer.read(table.base_path, as_of=first.instant)
        step.compare.rows(Table.open(table.base_path).read(as_of=first.instant), travelled, "as of the first write")
        step.compare.rows(read_hudi_rs(table.base_path, first.instant), travelled, "as of the first write", "hudi-rs")
    with readers.step(Topic.CLEAN, "clean") as step:
        for number in range(3):
            write_rows(table, rows(range(40 + number, 42 + number), 9, part), Operation.UPSERT)
        assert schedule_clean(table) is not None
        assert run_clean(table)
        step.agree(pa.concat_tables([model, rows(range(40, 44), 9, part)]))


@pytest.mark.parametrize("block", ["parquet", "avro"])
def test_inserts_into_log_files(begun: Any, block: str) -> None:
    """Slices without a base file, and log files with rows that the base file does not have."""
    fills = {"tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 100 * 1024 * 1024}
    readers = begun(replace(BASE, type=TableType.MOR), {BLOCKS: block, **fills})
    table = readers.table
    with readers.step(Topic.UPSERT, "new groups that begin with a log file") as step:
        first = write_rows(table, rows(range(10), 5), Operation.UPSERT)
        assert all(s.log_files and not s.base_file for s in table.slices())
        step.agree(rows(range(10), 5))
    with readers.step(Topic.INSERT, "updates and inserts in one log file") as step:
        write_rows(table, rows(range(5, 15), 6), Operation.UPSERT)
        write_rows(table, rows(range(10, 20), 4), Operation.INSERT, options={"hoodie.datasource.insert.dup.policy": "drop"})
        assert {len(s.log_files) for s in table.slices()} == {3}
        step.agree(pa.concat_tables([rows(range(5), 5), rows(range(5, 15), 6), rows(range(15, 20), 4)]))
    with readers.step(Topic.DELETE, "delete in groups of log files only") as step:
        write_rows(table, rows(range(4), 7), Operation.DELETE)
        model = pa.concat_tables([rows(range(4, 5), 5), rows(range(5, 15), 6), rows(range(15, 20), 4)])
        step.agree(model)
        travelled = readers.peer.read(table.base_path, as_of=first.instant)
        step.compare.rows(Table.open(table.base_path).read(as_of=first.instant), travelled, "as of the first write")
    with readers.step(Topic.COMPACTION, "groups of log files only under a requested compaction") as step:
        assert schedule_compaction(table, NOW) is not None
        step.agree(model)
    with readers.step(Topic.COMPACTION, "deleted keys written again beside the compaction") as step:
        write_rows(table, rows(range(2), 8), Operation.UPSERT)
        model = pa.concat_tables([rows(range(2), 8), model])
        step.agree(model, rust_differs=4)
    with readers.step(Topic.COMPACTION, "groups with their first base file") as step:
        assert run_compaction(table) is not None
        step.agree(model)
    with readers.step(Topic.UPSERT, "inserts beside a base file, and the keys that only logs have") as step:
        before = {s.group: s.base_file for s in table.slices()}
        write_rows(table, pa.concat_tables([rows(range(2), 9), rows(range(20, 24), 9)]), Operation.UPSERT)
        assert {s.group: s.base_file for s in table.slices()} == before
        model = pa.concat_tables([_without(model, range(2)), rows(range(2), 9), rows(range(20, 24), 9)])
        step.agree(model)
    with readers.step(Topic.CLUSTERING, "groups with such logs clustered") as step:
        assert schedule_clustering(table, {"tideline.clustering.min.input.files": 1}) is not None
        assert run_clustering(table) is not None
        step.agree(model)
    with readers.step(Topic.CLEAN, "their slices cleaned") as step:
        for number in range(3):
            write_rows(table, rows(range(30 + number, 32 + number), 9), Operation.UPSERT)
        assert schedule_clean(table) is not None
        assert run_clean(table)
        step.agree(pa.concat_tables([model, rows(range(30, 34), 9)]))


@pytest.mark.pairs
@pytest.mark.parametrize("kind", TableType)
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[3]], ids=lambda layout: layout.name)
def test_overwriting(begun: Any, kind: TableType, layout: Layout) -> None:
    readers = begun(replace(layout.request, type=kind), {})
    table, part = readers.table, layout.part
    is_partitioned = bool(layout.request.partition_fields)
    with readers.step(Topic.INSERT_OVERWRITE, "insert overwrite") as step:
        write_rows(table, rows(range(20), 5, part), Operation.INSERT)
        before = write_rows(table, rows(range(4), 6, part), Operation.UPSERT)
        newest = rows([2, 24, 26], 3, part)  # one partition where there are two
        write_rows(table, newest, Operation.INSERT_OVERWRITE)
        model = pa.concat_tables([rows([1, 3], 6, part), rows(range(5, 20, 2), 5, part), newest]) if is_partitioned else newest
        step.agree(model)
        travelled = readers.peer.read(table.base_path, as_of=before.instant)
        step.compare.rows(Table.open(table.base_path).read(as_of=before.instant), travelled, "as of the write before")
    with readers.step(Topic.INSERT_OVERWRITE, "upsert of what took its place") as step:
        write_rows(table, rows([2, 4], 9, part), Operation.UPSERT)
        model = pa.concat_tables([_without(model, [2, 4]), rows([2, 4], 9, part)])
        step.agree(model)
    with readers.step(Topic.INSERT_OVERWRITE, "delete partition") as step:
        delete_partitions(table, ["p1" if is_partitioned else ""])
        model = model.filter(pc.equal(model["part"], "p0")) if is_partitioned else model.slice(0, 0)
        step.agree(model)
    with readers.step(Topic.INSERT_OVERWRITE, "insert overwrite table, cleaned") as step:
        for number in range(3):
            write_rows(table, rows(range(number, number + 6), 9, part), Operation.INSERT_OVERWRITE_TABLE)
        assert schedule_clean(table) is not None
        assert run_clean(table)
        step.agree(rows(range(2, 8), 9, part))


def _compacted(readers: Readers, model: pa.Table, part: Callable[[int], str | None]) -> pa.Table:
    table = readers.table
    with readers.step(Topic.COMPACTION, "compaction requested") as step:
        assert schedule_compaction(table, NOW) is not None
        step.agree(model)
    with readers.step(Topic.COMPACTION, "upsert and delete beside compaction") as step:
        newest = rows(range(12, 16), 8, part)
        write_rows(table, newest, Operation.UPSERT)
        write_rows(table, rows(range(33, 35), 8, part), Operation.DELETE)
        kept = model.filter(
            pa.compute.invert(pa.compute.is_in(model["id"], rows([*range(12, 16), 33, 34], 8, part)["id"].combine_chunks()))
        )
        model = pa.concat_tables([kept, newest])
        step.agree(model, rust_differs=4)
    with readers.step(Topic.COMPACTION, "compacted") as step:
        assert run_compaction(table) is not None
        step.agree(model)
    with readers.step(Topic.COMPACTION, "upsert after compaction") as step:
        newest = rows(range(4, 6), 9, part)
        write_rows(table, newest, Operation.UPSERT)
        model = pa.concat_tables([_without(model, [4, 5]), newest])
        step.agree(model)
    return model


def _without(model: pa.Table, numbers: Iterable[int]) -> pa.Table:
    gone = pa.array([f"k{number:04}" for number in numbers])
    return model.filter(pc.invert(pc.is_in(model.column("id"), value_set=gone)))


def _after_all_writes(readers: Readers, model: pa.Table, part: Callable[[int], str | None]) -> None:
    table = readers.table
    with readers.step(Topic.ROLLBACK, "a write that is inflight, then rolled back") as step:
        abandoned = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
        step.agree(model)
        abandoned.roll_back()
        step.agree(model)
    with readers.step(Topic.CLUSTERING, "clustering requested") as step:
        assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "price"}) is not None
        step.agree(model)
    with readers.step(Topic.CLUSTERING, "clustered") as step:
        assert run_clustering(table) is not None
        step.agree(model)


BOTH = pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)


@pytest.mark.pairs
@BOTH
def test_rows_that_are_deletions_and_files_that_become_empty(begun: Any, kind: TableType) -> None:
    readers = begun(replace(BASE, type=kind), {})
    table = readers.table
    write_rows(table, rows(range(4), 5), Operation.UPSERT)
    with readers.step(Topic.DELETE, "marked rows") as step:
        write_rows(table, marked_deleted(rows(range(2), 6)), Operation.UPSERT)
        step.agree(rows(range(2, 4), 5))
    with readers.step(Topic.DELETE, "everything deleted") as step:
        write_rows(table, rows(range(4), 9), Operation.DELETE)
        assert step.agree().num_rows == 0
    with readers.step(Topic.UPSERT, "written again") as step:
        write_rows(table, rows(range(2), 10), Operation.UPSERT)
        step.agree(rows(range(2), 10))


@pytest.mark.pairs
@BOTH
def test_an_empty_table_is_read(begun: Any, kind: TableType) -> None:
    readers = begun(replace(BASE, type=kind), {})
    assert Table.open(readers.table.base_path).read().num_rows == 0
    assert readers.peer.read(readers.table.base_path).num_rows == 0


@pytest.mark.pairs
@BOTH
def test_a_writer_that_died_leaves_nothing_that_others_see(begun: Any, kind: TableType, tmp_path: Path) -> None:
    readers = begun(replace(BASE, type=kind), HEARTBEAT)
    table = readers.table
    write_rows(table, rows(range(6), 5), Operation.UPSERT)
    write_rows(table, rows(range(2), 6), Operation.UPSERT)
    model = pa.concat_tables([rows(range(2), 6), rows(range(2, 6), 5)])
    with readers.step(Topic.ROLLBACK, "a writer died") as step:
        pq.write_table(rows(range(1, 9), 7), tmp_path / "rows.parquet")
        arguments = [sys.executable, "-m", "tests.conformance.crashing_writer", table.base_path, str(tmp_path / "rows.parquet")]
        assert subprocess.run(arguments, cwd=REPOSITORY, timeout=250, check=False).returncode == DIED
        files = {path.name for path in Path(table.base_path).rglob("*.parquet")}
        step.agree(model)
    with readers.step(Topic.ROLLBACK, "rolled back") as step:
        table.clock.sleep(0.3)
        assert len(roll_back_dead(table)) == 1
        assert {path.name for path in Path(table.base_path).rglob("*.parquet")} < files
        step.agree(model)
    with readers.step(Topic.ROLLBACK, "written after") as step:
        write_rows(table, rows(range(3, 7), 8), Operation.UPSERT)
        step.agree(pa.concat_tables([rows(range(2), 6), rows(range(2, 3), 5), rows(range(3, 7), 8)]))


# --- ordering values of every type ---------------------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(TableType))
def test_keys_removed_beside_an_upsert_and_progress_that_hudi_shows(begun: Any, kind: TableType) -> None:
    """In one log file: rows, deletions with an ordering value, and deletions that win without one."""
    readers = begun(replace(BASE, type=kind), {})
    table = readers.table
    write_rows(table, rows(range(20), 5), Operation.BULK_INSERT)
    offsets = '{"orders":{"0":20}}'
    with readers.step(Topic.DELETE, "keys removed beside an upsert") as step:
        written = rows(range(8, 24), 7).append_column("_hoodie_is_deleted", pa.array([n % 4 == 0 for n in range(8, 24)]))
        progress = ProgressStep("ingest.orders", None, offsets)
        removed = rows(range(6), 1).select(["id", "part"])
        committed = write_rows(table, written, Operation.UPSERT, removed=removed, progress=progress)
        left = rows([n for n in range(8, 24) if n % 4], 7)
        step.agree(pa.concat_tables([rows(range(6, 8), 5), left]))
        name = f"shown_{kind.name.lower()}"
        readers.peer.sql(f"create table {name} using hudi location '{table.base_path}'")
        shown = readers.peer.call(f"show_commit_extra_metadata(table => '{name}', instant_time => '{committed.instant}')")
        found = {line["metadata_key"]: line["metadata_value"] for line in shown}
        assert found["tideline.progress.ingest.orders"] == offsets
    if kind is TableType.MOR:
        with readers.step(Topic.COMPACTION, "compacted") as step:
            assert schedule_compaction(table, NOW) is not None
            assert run_compaction(table) is not None
            step.agree(pa.concat_tables([rows(range(6, 8), 5), left]))


@pytest.mark.pairs
@pytest.mark.parametrize("block", ["avro", "parquet"])
@pytest.mark.parametrize("kind", list(ORDERINGS))
def test_the_larger_ordering_value_wins_in_logs(begun: Any, kind: str, block: str) -> None:
    schema = ordered(kind, [0], 0, "").schema
    readers = begun(TableRequest("ordered", schema, ("id",), (), "ts", type=TableType.MOR), {BLOCKS: block})
    table = readers.table
    write_rows(table, ordered(kind, list(range(10)), 5, "first"), Operation.BULK_INSERT)
    with readers.step(Topic.UPSERT, f"ordered by {kind}") as step:
        write_rows(table, ordered(kind, [1, 2, 3], 6, "newer"), Operation.UPSERT)
        write_rows(table, ordered(kind, [3, 4, 5], 4, "older"), Operation.UPSERT)
        for numbers, at in (([2, 6], 3), ([7, 8], 7)):
            write_rows(table, marked_deleted(ordered(kind, numbers, at, "gone")), Operation.UPSERT)
        write_rows(table, ordered(kind, [9], 6, "between"), Operation.UPSERT)
        parts = [([0, 4, 5, 6], 5, "first"), ([1, 2, 3], 6, "newer"), ([9], 6, "between")]
        model = pa.concat_tables([ordered(kind, numbers, at, text) for numbers, at, text in parts])
        step.agree(model if kind != "zero" else None)


@pytest.mark.parametrize(("how", "elsewhere"), [("deleted", [10]), ("marked", [])])
def test_a_late_row_behind_a_deletion(begun: Any, how: str, elsewhere: list[int]) -> None:
    """It is a new row, as in a copy-on-write table. Other readers say so behind a compaction (docs/peer-differences.md, 32)."""
    readers = begun(replace(BASE, type=TableType.MOR), {})
    table = readers.table
    write_rows(table, rows(range(4), 10), Operation.BULK_INSERT)
    model = pa.concat_tables([rows([0], 5), rows(range(1, 4), 10)])
    with readers.step(Topic.DELETE, how) as step:
        if how == "deleted":
            write_rows(table, rows([0], 0), Operation.DELETE)
        else:
            write_rows(table, marked_deleted(rows([0], 12)), Operation.UPSERT)
        step.agree(rows(range(1, 4), 10))
        write_rows(table, rows([0], 5), Operation.UPSERT)
        ours = table.read()
        step.compare.rows(ours.select(model.column_names), model, how, "what was written", key=("id",))
        others = ours.filter(pc.not_equal(ours["id"], "k0000"))
        for name, found in (("Apache Hudi", readers.peer.read(table.base_path)), ("hudi-rs", read_hudi_rs(table.base_path))):
            is_late = pc.equal(found["id"], "k0000")
            assert found.filter(is_late)["ts"].to_pylist() == elsewhere, name
            step.compare.rows(others, found.filter(pc.invert(is_late)), how, name)
        step.compare.excused(32)
    with readers.step(Topic.COMPACTION, how) as step:
        assert schedule_compaction(table, NOW) is not None
        assert run_compaction(table) is not None
        step.agree(model)


# --- schemas that change -----------------------------------------------------------------------------------------------------

EVOLVE = {"tideline.write.schema.evolution": "evolve", "hoodie.write.set.null.for.missing.columns": True}


@BOTH
def test_a_schema_that_grows(begun: Any, kind: TableType) -> None:
    first = evolving(FIRST, range(8), 5)
    readers = begun(TableRequest("evolving", first.schema, ("id",), ("part",), "ts", type=kind), EVOLVE)
    table = readers.table
    write_rows(table, first, Operation.BULK_INSERT)
    for name, schema, numbers, ts in (
        ("column added", ADDED, range(6, 10), 6),
        ("widened", WIDER, range(8, 12), 7),
        ("nested fields added", NESTED, range(1, 3), 8),
        ("columns missing", FIRST, range(3, 5), 9),
    ):
        with readers.step(Topic.SCHEMA_EVOLUTION, name) as step:
            write_rows(table, evolving(schema, numbers, ts), Operation.UPSERT)
            nested = kind is TableType.MOR and ts >= 8
            step.agree(rust_differs=5 if nested else 0)
    if kind is TableType.MOR:
        with readers.step(Topic.SCHEMA_EVOLUTION, "compacted") as step:
            assert schedule_compaction(table, NOW) is not None
            assert run_compaction(table) is not None
            step.agree()
