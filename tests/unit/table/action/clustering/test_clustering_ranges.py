"""A clustering group split by ranges of its sort order, without Spark: the exchange is a list of what each range received."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clustering
from tests.simulation.faults import covering
from tests.unit.table import range_worker
from tests.unit.table.mixed_rows import SCHEMA, base_files, in_order, is_sorted, rows_of, some_rows
from tests.unit.table.range_worker import clustered_by_ranges

from tideline_table.action import run_clustering, write_rows
from tideline_table.action.clustering import ranges
from tideline_table.action.clustering.curve import POSITION
from tideline_table.action.clustering.received_rows import RangePiece, ReceivedRows, SliceEnd
from tideline_table.action.clustering.task import is_split
from tideline_table.config import Options
from tideline_table.errors import StorageFull, VerificationFailed
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

SORT = "hoodie.clustering.plan.strategy.sort.columns"
LAYOUT = "hoodie.layout.optimize.strategy"
TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
ROOT = Path(__file__).parents[5]
ROW_GROUP = "tideline.parquet.row.group.rows"
SLICES, ROWS, FILES = 4, 3000, 3


def made(path: Path, *, kind: TableType = TableType.COW, **options: object) -> Table:
    create_table(str(path), TableRequest("t", SCHEMA, ("id",), (), "ts", kind))
    table = Table.open(str(path), options={"hoodie.parquet.small.file.limit": 0, ROW_GROUP: 700, **options})
    for part in range(SLICES):
        write_rows(table, some_rows(part, part * ROWS, ROWS, 1), Operation.BULK_INSERT, parallelism=1)
    assert len(table.slices()) == SLICES
    return table


def plan(table: Table, columns: str, files: int = FILES, **more: object) -> str:
    size = sum(s.total_bytes for s in table.slices())
    instant = schedule_clustering(table, {SORT: columns, TARGET: -(-size // files), **more})
    assert instant is not None
    return instant


def keep_little(monkeypatch):
    """Keep received rows in files beyond 64 KiB; the least memory limit is more than the rows of these tests need."""
    monkeypatch.setattr(ranges, "ReceivedRows", lambda folder, schema, most_bytes: ReceivedRows(folder, schema, 1 << 16))


@pytest.mark.parametrize(
    ("columns", "in_files"), covering(1, [("score", "city"), ("city",), ("price", "at"), ("day",)], [False, True])
)
def test_a_split_group_is_sorted_over_all_its_files(tmp_path, columns, in_files, monkeypatch):
    spilled = []
    external = ranges.sort_externally
    monkeypatch.setattr(ranges, "sort_externally", lambda *given: (spilled.append(1), external(*given))[1])
    if in_files:
        keep_little(monkeypatch)
    table = made(tmp_path / "t")
    before = rows_of(table)
    done = run_clustering(table, plan(table, ",".join(columns)), run=clustered_by_ranges)
    assert len(spilled) == FILES * in_files
    assert rows_of(table) == before
    assert [abs(s.num_writes - SLICES * ROWS / FILES) < 0.05 * SLICES * ROWS / FILES for s in done.stats] == [True] * FILES
    found = in_order(table, done.stats, columns)
    assert is_sorted(found, columns)


@pytest.mark.parametrize("layout", ["z-order", "hilbert"])
def test_a_split_group_lies_on_the_curve(tmp_path, layout, monkeypatch):
    table = made(tmp_path / "t")
    before = rows_of(table)
    splits = []
    split_ranges = range_worker.split_ranges
    monkeypatch.setattr(range_worker, "split_ranges", lambda *given: splits.append(split_ranges(*given)) or splits[-1])
    done = run_clustering(table, plan(table, "score,price", **{LAYOUT: layout}), run=clustered_by_ranges)
    assert rows_of(table) == before
    keys = splits[0].order(in_order(table, done.stats, ["score", "price"]))
    assert keys.column_names == [POSITION, "score", "price"]
    assert len(keys.column(POSITION).unique()) > SLICES * ROWS / 2
    assert is_sorted(keys, keys.column_names)


def test_a_value_in_half_of_the_rows_fills_several_files(tmp_path):
    table = made(tmp_path / "t")
    done = run_clustering(table, plan(table, "city", 3), run=clustered_by_ranges)
    holding = [s for s in done.stats if "Oslo" in in_order(table, [s], ["city"]).column("city").to_pylist()]
    assert len(holding) >= 2
    assert max(s.num_writes for s in done.stats) < 1.1 * min(s.num_writes for s in done.stats)


def test_without_sort_columns_rows_keep_their_order(tmp_path):
    table = made(tmp_path / "t")
    expected = []

    def run(tasks):
        for file_slice in tasks[0].inputs:
            expected.extend(pq.read_table(tmp_path / "t" / file_slice.path, columns=["id"]).column("id").to_pylist())
        return clustered_by_ranges(tasks)

    done = run_clustering(table, plan(table, ""), run=run)
    assert len(done.stats) == FILES
    assert in_order(table, done.stats, ["id"]).column("id").to_pylist() == expected


def test_slices_with_logs_are_merged_once(tmp_path):
    table = made(tmp_path / "t", kind=TableType.MOR)
    write_rows(table, some_rows(9, 0, 2 * ROWS, 2), Operation.UPSERT)
    assert any(s.log_files for s in table.slices())
    before = rows_of(table)
    done = run_clustering(table, plan(table, "price,at"), run=clustered_by_ranges)
    assert rows_of(table) == before
    found = in_order(table, done.stats, ["id", "price", "at"])
    assert len(set(found.column("id").to_pylist())) == found.num_rows == SLICES * ROWS
    assert is_sorted(found, ["price", "at"])


def test_a_task_that_runs_twice_writes_the_same_bytes(tmp_path, monkeypatch):
    keep_little(monkeypatch)
    table = made(tmp_path / "t")
    seen = []

    def run(tasks):
        for _ in range(2):
            results = clustered_by_ranges(tasks)
            seen.append([Path(tmp_path / "t" / s.path).read_bytes() for r in results for s in r.stats])
        return results

    run_clustering(table, plan(table, "city"), run=run)
    assert seen[0] == seen[1]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == SLICES + FILES


def broken(change):
    return lambda tasks: clustered_by_ranges(tasks, received=change)


def changed_rows(sent):
    """The same piece with another value in its first row, as a broken memory would make it."""
    rows = pa.ipc.open_stream(sent.stream).read_all()
    at = rows.schema.get_field_index("_hoodie_record_key")
    keys = pa.chunked_array([pa.array(["other", *rows.column(at).to_pylist()[1:]])])
    return RangePiece.of(sent.slice_number, sent.number, rows.set_column(at, rows.schema.field(at), keys))


FAULTS = {
    "a piece is lost": lambda n, sent: sent if n else sent[1:],
    "a piece is doubled": lambda n, sent: sent if n else [sent[0], *sent],
    "the end of a slice is lost": lambda n, sent: sent if n else [s for s in sent if not isinstance(s, SliceEnd) or s.slice_number],
    "a row is changed": lambda n, sent: sent if n else [changed_rows(sent[0]), *sent[1:]],
    "a row is dropped": lambda n, sent: (
        sent if n else [RangePiece.of(sent[0].slice_number, 0, pa.ipc.open_stream(sent[0].stream).read_all().slice(1)), *sent[1:]]
    ),
    "a slice was read differently": lambda n, sent: (
        sent if n else [replace(s, read=replace(s.read, first=1)) if isinstance(s, SliceEnd) else s for s in sent]
    ),
}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """A table that each test leaves as it was."""
    return made(tmp_path_factory.mktemp("tables") / "t")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_exchange_stops_the_commit(unchanged, fault):
    table = unchanged
    before = rows_of(table)
    with pytest.raises(VerificationFailed):
        run_clustering(table, plan(table, "score"), run=broken(FAULTS[fault]))
    table.refresh()
    assert rows_of(table) == before
    assert base_files(table) == {s.path for s in table.slices()}


def test_a_lost_or_doubled_range_stops_the_commit(unchanged, monkeypatch):
    table = unchanged
    whole = range_worker.whole_group
    for changed in (lambda found: found[1:], lambda found: [*found, found[0]]):
        monkeypatch.setattr(range_worker, "whole_group", lambda task, split, found, to=changed: whole(task, split, to(found)))
        with pytest.raises(VerificationFailed, match="result"):
            run_clustering(table, plan(table, "score"), run=clustered_by_ranges)
        table.refresh()


def test_more_files_than_rows_leaves_ranges_without_files(tmp_path):
    create_table(str(tmp_path / "t"), TableRequest("t", SCHEMA, ("id",), (), "ts"))
    table = Table.open(str(tmp_path / "t"), options={"hoodie.parquet.small.file.limit": 0})
    for part in range(2):
        write_rows(table, some_rows(part, part, 1, 1), Operation.BULK_INSERT, parallelism=1)
    before = rows_of(table)
    instant = schedule_clustering(table, {SORT: "score"})

    def run(tasks):
        (task,) = tasks
        return clustered_by_ranges([replace(task, output_files=5)])

    with pytest.raises(VerificationFailed):
        run_clustering(table, instant, run=run)  # the plan says one file
    table.refresh()
    size = sum(s.total_bytes for s in table.slices())
    instant = schedule_clustering(table, {SORT: "score", TARGET: size - 1})
    done = run_clustering(table, instant, run=clustered_by_ranges)
    assert sum(s.num_writes for s in done.stats) == 2
    assert rows_of(table) == before


def test_a_group_without_rows_becomes_one_file_without_rows(tmp_path):
    table = made(tmp_path / "t", kind=TableType.MOR)
    write_rows(table, table.read(["id"]), Operation.DELETE)
    assert table.read(["id"]).num_rows == 0
    done = run_clustering(table, plan(table, "score"), run=clustered_by_ranges)
    assert [s.num_writes for s in done.stats] == [0]
    assert table.read(["id"]).num_rows == 0


def test_a_full_temporary_folder_ends_the_attempt(tmp_path, monkeypatch):
    table = made(tmp_path / "t")
    before = rows_of(table)
    keep_little(monkeypatch)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *a, **k: full() if path.name == "received" else opened(path, *a, **k))
    with pytest.raises(StorageFull):
        run_clustering(table, plan(table, "score"), run=clustered_by_ranges)
    monkeypatch.undo()
    table.refresh()
    assert rows_of(table) == before
    assert base_files(table) == {s.path for s in table.slices()}


def test_which_groups_are_split():
    options = Options({"tideline.clustering.split.group.bytes": 100})
    assert [is_split(100, 2, options), is_split(99, 2, options), is_split(1000, 1, options)] == [True, False, False]


MANY = 400_000


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The base path of a table with a pending clustering of about 130 MB of rows in memory, into two files."""
    path = tmp_path_factory.mktemp("tables") / "wide"
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("v", pa.float64()), ("w", pa.string())])
    create_table(str(path), TableRequest("t", schema, ("id",), (), ""))
    table = Table.open(str(path), options={ROW_GROUP: 10_000, "hoodie.parquet.small.file.limit": 0})
    random = np.random.default_rng(3)
    for part in range(4):
        count = MANY // 4
        ids = pa.array([f"id-{part}-{n:08d}" for n in range(count)])
        texts = pc.binary_join_element_wise(pa.array(random.integers(0, 2**60, count)).cast(pa.string()), "x" * 150, "-")
        rows = pa.table([ids, random.normal(size=count), texts], schema=schema)
        write_rows(table, rows, Operation.BULK_INSERT, parallelism=1)
    schedule_clustering(table, {SORT: "v,w", LAYOUT: "z-order", TARGET: -(-sum(s.total_bytes for s in table.slices()) // 2)})
    return path


def test_each_task_of_a_group_several_times_the_limit_takes_little_memory(wide):
    limit = 24 * 2**20
    table = Table.open(str(wide))
    in_memory = table.read().nbytes
    assert in_memory > 5 * limit
    command = [sys.executable, "-m", range_worker.__name__, str(wide), str(limit)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, cwd=ROOT).stdout)
    print(in_memory, found)
    assert (found["rows"], found["files"]) == (MANY, 2)
    assert found["arrow"] < 2 * limit
    assert found["peak"] - found["before"] < 224 * 2**20 < 2 * in_memory
    table.refresh()
    assert len(table.read(["id"]).column("id").unique()) == MANY
