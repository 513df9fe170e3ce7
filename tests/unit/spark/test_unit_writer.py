"""The worker's side of a DataFrame write, fed with batches by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tideline_spark.layout import Filler, unit_name
from tideline_spark.task import UnitWriter, _RunningTask
from tideline_table.action import write_rows
from tideline_table.action.write.run import write_context
from tideline_table.errors import VerificationFailed
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import FileGroupResult, Operation

SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64())])
INSTANT = "20260101000000000"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    create_table(str(tmp_path), TableRequest("t", SCHEMA, ("id",), ("region",), "ts"))
    return Table.open(str(tmp_path))


def batch(
    regions: list[str], ids: list[str], ts: list[int], *, units: list[str], orders: list[int], positions: list[int] | None = None
) -> pa.RecordBatch:
    columns = {
        "id": pa.array(ids),
        "region": pa.array(regions),
        "ts": pa.array(ts, pa.int64()),
        "_tideline_partition": pa.array(regions),
        "_tideline_unit": pa.array(units),
        "_tideline_order": pa.array(orders, pa.int64()),
    }
    if positions is not None:
        columns["_tideline_position"] = pa.array(positions, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def run(
    table: Table,
    operation: Operation,
    batches: Iterator[pa.RecordBatch],
    *,
    rows_per_file: int = 1000,
    fillers: dict[tuple[str, int], Filler] | None = None,
    attempt: int = 0,
    number: int = 3,
) -> list[FileGroupResult]:
    context = write_context(table, INSTANT, operation, table.options)
    units = {(found.group.partition_path, unit_name(found)): found for found in table.slices()}
    writer = UnitWriter(context, table.definition.keygen, tuple(SCHEMA.names), fillers or {}, rows_per_file, tasks=8, units=units)
    return list(_RunningTask(writer, table.storage, number, attempt).write(batches))


def written(table: Table, results: list[FileGroupResult]) -> list[tuple[str, list[str]]]:
    found = []
    for result in results:
        assert result.stat is not None
        rows = pa.parquet.read_table(table.storage.open_input(result.stat.path))
        found.append((result.stat.partition_path, rows.column("id").to_pylist()))
    return found


def test_units_whose_hashes_collide_are_told_apart(table: Table) -> None:
    mixed = batch(
        ["a", "b", "a", "b", "c"],
        ["1", "2", "3", "4", "5"],
        [1] * 5,
        units=["0"] * 5,
        orders=[7, 7, 7, 7, 9],
        positions=[*range(5)],
    )
    results = run(table, Operation.UPSERT, iter([mixed.slice(0, 3), mixed.slice(3)]))
    assert written(table, results) == [("a", ["1", "3"]), ("b", ["2", "4"]), ("c", ["5"])]
    tokens = [r.stat.path.rsplit("_", 2)[1] for r in results if r.stat]
    assert tokens == ["3-0-0", "11-0-0", "19-0-0"], "task numbers are unique in the commit: ordinal * tasks + partition"


def test_file_ids_depend_on_the_unit_and_not_on_the_attempt(table: Table) -> None:
    def one(order: int) -> pa.RecordBatch:
        return batch(["a"], ["1"], [1], units=["0"], orders=[order], positions=[0])

    (first,) = run(table, Operation.UPSERT, iter([one(1)]), attempt=0, number=1)
    (again,) = run(table, Operation.UPSERT, iter([one(2)]), attempt=9, number=5)
    assert first.stat is not None
    assert again.stat is not None
    assert first.stat.file_id == again.stat.file_id
    assert first.stat.path != again.stat.path
    (other,) = run(table, Operation.UPSERT, iter([batch(["a"], ["1"], [1], units=["1"], orders=[1], positions=[0])]))
    assert other.stat is not None
    assert other.stat.file_id != first.stat.file_id


def test_the_last_row_of_the_source_wins_a_tie_however_rows_arrive(table: Table) -> None:
    ids, ts, positions = ["k", "k", "k", "m"], [5, 5, 4, 1], [20, 10, 30, 0]
    arrived = batch(["a"] * 4, ids, ts, units=["0"] * 4, orders=[1] * 4, positions=positions)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]):
        (result,) = run(table, Operation.UPSERT, iter([arrived.take(pa.array(order))]))
        assert result.stat is not None
        rows = pa.parquet.read_table(table.storage.open_input(result.stat.path))
        assert sorted(zip(rows.column("id").to_pylist(), rows.column("ts").to_pylist(), strict=True)) == [("k", 5), ("m", 1)]
        assert result.stat.num_inserts == 2


def test_full_files_are_written_while_rows_still_arrive(table: Table) -> None:
    consumed = 0

    def arriving() -> Iterator[pa.RecordBatch]:
        nonlocal consumed
        for start in range(0, 50, 10):
            consumed += 1
            ids = [f"{n:02d}" for n in range(start, start + 10)]
            yield batch(["a"] * 10, ids, [1] * 10, units=["0"] * 10, orders=[1] * 10)

    context = write_context(table, INSTANT, Operation.BULK_INSERT, table.options)
    writer = UnitWriter(context, table.definition.keygen, tuple(SCHEMA.names), {}, rows_per_file=15, tasks=8)
    results = _RunningTask(writer, table.storage, 0, 0).write(arriving())
    first = next(results)
    assert consumed == 2, "a file is written as soon as it is full"
    rest = list(results)
    found = written(table, [first, *rest])
    assert [len(ids) for _, ids in found] == [15, 15, 15, 5]
    assert sorted(i for _, ids in found for i in ids) == [f"{n:02d}" for n in range(50)]
    assert len({r.stat.file_id for r in [first, *rest] if r.stat}) == 4


def test_a_bucket_fills_its_small_file_first(table: Table) -> None:
    write_rows(table, pa.table({"id": ["x"], "region": ["a"], "ts": [0]}), Operation.INSERT)
    (small,) = table.slices()
    rows = batch(["a"] * 10, [str(n) for n in range(10)], [1] * 10, units=["0"] * 10, orders=[1] * 10)
    results = run(table, Operation.INSERT, iter([rows]), rows_per_file=4, fillers={("a", 0): Filler(small, 3)})
    assert [len(ids) for _, ids in written(table, results)] == [1 + 3, 4, 3]
    assert results[0].stat is not None
    assert results[0].stat.file_id == small.group.file_id
    assert results[0].stat.prev_commit == small.base_instant


def test_a_row_that_spark_put_elsewhere_is_refused(table: Table) -> None:
    rows = batch(["a", "a"], ["1", "2"], [1, 1], units=["0", "0"], orders=[1, 1], positions=[0, 1])
    wrong = rows.set_column(1, "region", pa.array(["a", "b"]))
    with pytest.raises(VerificationFailed):
        run(table, Operation.UPSERT, iter([wrong]))
    native = rows.append_column("_tideline_key", pa.array(["1", "3"]))
    with pytest.raises(VerificationFailed):
        run(table, Operation.UPSERT, iter([native]))
    assert not [o for o in table.storage.list_objects("") if o.path.endswith(".parquet")]


def test_rows_of_a_key_that_the_table_holds_twice_in_one_file_are_written_once(table: Table) -> None:
    twice = pa.table({"id": ["k", "k"], "region": ["a", "a"], "ts": [0, 0]})
    write_rows(table, twice, Operation.INSERT)
    (both,) = table.slices()
    table.options = table.options.merged({"hoodie.combine.before.upsert": False})
    arrived = batch(["a", "a"], ["k", "k"], [1, 1], units=[both.base_file] * 2, orders=[1, 1], positions=[4, 4])
    located = arrived.append_column("_tideline_located", pa.array(np.ones(2, dtype=bool)))
    (result,) = run(table, Operation.UPSERT, iter([located]))
    assert written(table, [result]) == [("a", ["k"])]
