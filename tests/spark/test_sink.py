"""Micro-batches into a table: each exactly once, whatever Spark replays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.tables import Tables, content, rows
from tests.unit.locks.unreachable import nobody_there

from tideline_locks import LockTimeout, LockUnreachable, open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_spark.sink import BatchMark, StreamReplaced, is_written, progress_key, sink
from tideline_table.action import create_savepoint, restore_to_savepoint, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.reservations import Reservation
from tideline_table.errors import CorruptMetadata, InvalidOption, TableFrozen
from tideline_table.log.progress import ProgressStep
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import Table, share_table
from tideline_table.writer import Operation

TIMEOUT_S = 120


class Stream:
    """Files that arrive one by one, and a query over them with a checkpoint of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        self.source.mkdir(parents=True)

    def arrive(self, number: int, arrived: pa.Table) -> None:
        pq.write_table(arrived, self.source / f"{number:03d}.parquet")

    def start(self, write: Callable[[DataFrame, int], None], where: str = "true") -> StreamingQuery:
        schema = "id string, region string, ts bigint, amount double"
        arriving = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.source))
        writer = arriving.where(where).writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, write: Callable[[DataFrame, int], None], where: str = "true") -> None:
        query = self.start(write, where)
        assert query.awaitTermination(TIMEOUT_S)


def batches(table: Table) -> int:
    table.refresh()
    return len(table.state.completed_writes())


def test_a_batch_is_written_once_although_spark_replays_it(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """Inserts, which would stand twice. The driver dies right behind the commit of batch 1, before Spark's own."""
    table = tables.create("t")
    path = str(tables.folder / "t")
    stream = Stream(spark, tmp_path / "stream")
    expected = pa.concat_tables([rows(0, 10, 0, regions=1), rows(10, 20, 1, regions=1)])
    stream.arrive(0, rows(0, 10, 0, regions=1))
    stream.arrive(1, rows(10, 20, 1, regions=1))
    write = sink(path, query_id="clicks", operation="insert")
    seen: list[int] = []

    def dies_behind_the_commit(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        if batch_id == 1:
            raise RuntimeError("the driver dies here")

    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        stream.run(dies_behind_the_commit)
    assert batches(table) == 2

    def counted(batch: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        sink(path, query_id="clicks", operation="insert")(batch, batch_id)

    stream.run(counted)
    assert seen == [1], "Spark replays the batch"
    assert batches(table) == 2
    assert content(table.read()) == content(expected)
    held = json.loads(table.state.progress[progress_key("clicks")].value)
    assert held == {"batch": 1, "query": json.loads((stream.checkpoint / "metadata").read_text())["id"]}


def test_two_queries_feed_one_table_at_once(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """Both update the same keys of one partition, so that their commits conflict."""
    table = tables.create("t")
    write_rows(table, rows(0, 20, 0, regions=1), Operation.UPSERT)
    path = str(tables.folder / "t")
    options = {"tideline.write.conflict.retries": 50}
    queries = []
    for name, start in (("a", 0), ("b", 10)):
        stream = Stream(spark, tmp_path / name)
        for number in range(2):
            stream.arrive(number, rows(start, start + 10, number + 1, regions=1))
        queries.append(stream.start(sink(path, query_id=name, options=options)))
    for query in queries:
        assert query.awaitTermination(TIMEOUT_S)
    table.refresh()
    assert content(table.read()) == content(rows(0, 20, 2, regions=1))
    assert {key: json.loads(held.value)["batch"] for key, held in table.state.progress.items()} == {"stream.a": 1, "stream.b": 1}


@pytest.mark.parametrize("operation", ["upsert", "insert_overwrite_table"])
def test_a_batch_without_rows_changes_none_but_counts(spark: SparkSession, tables: Tables, tmp_path: Path, operation: str) -> None:
    table = tables.create("t")
    stream = Stream(spark, tmp_path / "stream")
    for number in range(3):
        stream.arrive(number, rows(number * 10, number * 10 + 10, number))
    stream.run(sink(str(tables.folder / "t"), query_id="q", operation=operation), where="ts = 1")
    assert batches(table) == 3
    assert content(table.read()) == content(rows(10, 20, 1))
    assert json.loads(table.state.progress[progress_key("q")].value)["batch"] == 2


def test_a_query_over_a_table_that_was_restored_does_not_leave_its_batches_out(spark: SparkSession, tables: Tables) -> None:
    """The checkpoint knows nothing of the restore: the batches behind the savepoint never come again."""
    table = tables.create("t")
    write = sink(str(tables.folder / "t"), query_id="q", operation="insert")

    def arrive(number: int, to: Callable[[DataFrame, int], None]) -> None:
        to(spark.createDataFrame(rows(number, number + 1, number)), number)

    arrive(0, write)
    saved = create_savepoint(table)
    arrive(1, write)
    restore_to_savepoint(table, saved.instant)
    restarted = sink(str(tables.folder / "t"), query_id="q", operation="insert")
    for still_running_or_not in (write, restarted):
        with pytest.raises(StreamReplaced, match="batch 2; expected batch 1"):
            arrive(2, still_running_or_not)
    assert content(table.read()) == content(rows(0, 1, 0))
    accepting = sink(str(tables.folder / "t"), query_id="q", operation="insert", takes_over=True)
    arrive(2, accepting)
    with pytest.raises(StreamReplaced, match="batch 4; expected batch 3"):
        arrive(4, accepting)
    arrive(3, write)
    table.refresh()
    assert content(table.read()) == content(pa.concat_tables([rows(n, n + 1, n) for n in (0, 2, 3)]))


def test_a_table_that_is_made_anew_under_a_running_query_is_left_alone(spark: SparkSession, tables: Tables) -> None:
    """The query is told, and begins again or not: what the old table held of it says nothing of the new one."""
    tables.create("t")
    write = sink(str(tables.folder / "t"), query_id="q")
    write(spark.createDataFrame(rows(0, 1, 0)), 0)
    shutil.rmtree(tables.folder / "t")
    anew = tables.create("t")
    with pytest.raises(TableFrozen, match="open it again"):
        write(spark.createDataFrame(rows(0, 1, 0)), 0)
    with pytest.raises(TableFrozen, match="open it again"):
        write(spark.createDataFrame(rows(1, 2, 0)), 1)
    assert batches(anew) == 0
    sink(str(tables.folder / "t"), query_id="q")(spark.createDataFrame(rows(0, 1, 0)), 0)
    assert batches(anew) == 1


def test_of_two_drivers_with_one_query_only_one_writes_a_batch(spark: SparkSession, tables: Tables) -> None:
    """The other one commits after this one looked and before it commits."""
    table = tables.create("t")
    path = str(tables.folder / "t")
    mine = spark.createDataFrame(rows(0, 10, 1))
    other = sink(path, query_id="q", operation="insert")
    mark = sink(path, query_id="q", operation="insert", on_report=lambda _: other(mine, 0))
    mark(mine, 0)
    assert batches(table) == 1
    assert content(table.read()) == content(rows(0, 10, 1))
    other(mine, 0)
    mark(mine, 0)
    assert batches(table) == 1


@pytest.mark.parametrize(("unreachable", "goes_on"), [("wait", False), ("fail", False), ("storage", True)])
def test_a_redis_that_is_not_there(spark: SparkSession, tables: Tables, *, unreachable: str, goes_on: bool) -> None:
    table = tables.create("t")
    options = {"tideline.lock.unreachable": unreachable, "tideline.lock.wait": "3600" if unreachable == "fail" else "0.3"}
    with nobody_there() as url:
        write = sink(str(tables.folder / "t"), query_id="q", options=options, locks=url)
        if goes_on:
            write(spark.createDataFrame(rows(0, 4, 1)), 0)
        else:
            with pytest.raises(LockUnreachable):
                write(spark.createDataFrame(rows(0, 4, 1)), 0)
    assert batches(table) == (1 if goes_on else 0)
    assert any((tables.folder / "t/.hoodie/.tideline/locks").rglob("*.json")) is goes_on


def test_a_batch_waits_for_a_write_of_the_same_file_groups(
    spark: SparkSession, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    table = tables.create("t")
    write_rows(table, rows(0, 4, 0, regions=1), Operation.UPSERT)
    attach_lock(table, "storage:")
    begun = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    assert table.reservations.claim(Reservation(begun.instant, frozenset(s.group.file_id for s in table.slices()))) == []
    write = sink(str(tables.folder / "t"), query_id="q", options={"tideline.write.intent.wait": "0.1"}, locks="storage:")
    with caplog.at_level("INFO"):
        write(spark.createDataFrame(rows(0, 4, 1, regions=1)), 0)
    assert f"continues beside {begun.instant}, which it waited for" in caplog.text
    begun.roll_back()


def test_a_table_that_apache_hudi_writes_too(spark: SparkSession, tables: Tables) -> None:
    table, path = tables.create("t"), str(tables.folder / "t")
    sharing = Sharing(HudiLockKind.FILE_SYSTEM)
    share_table(table, sharing, open_hudi_lock)
    batch = spark.createDataFrame(rows(0, 4, 1))
    hudis = open_hudi_lock(table.storage, sharing, "hudi", table.clock, table.options)
    with hudis.hold(), pytest.raises(LockTimeout):
        sink(path, query_id="q", options={"tideline.lock.wait": "0.2"})(batch, 0)
    for _ in range(2):
        sink(path, query_id="q")(batch, 0)
    shared = Table.open(path)
    assert batches(shared) == 2, "the sharing itself, and the batch once"
    assert content(shared.read()) == content(rows(0, 4, 1))
    assert json.loads(shared.state.progress[progress_key("q")].value)["batch"] == 0


A, B = "query-a", "query-b"


@pytest.mark.parametrize(
    ("held", "coming", "takes_over", "expected"),
    [
        (None, BatchMark(0, A), False, False),
        (BatchMark(4, A), BatchMark(4, A), False, True),
        (BatchMark(4, A), BatchMark(5, A), False, False),
        (None, BatchMark(3, A), False, StreamReplaced),
        (None, BatchMark(3, A), True, False),
        (BatchMark(4, A), BatchMark(6, A), False, StreamReplaced),
        (BatchMark(4, A), BatchMark(6, A), True, False),
        (BatchMark(4, A), BatchMark(4, A), True, True),
        (BatchMark(4, A), BatchMark(3, A), False, StreamReplaced),
        (BatchMark(4, A), BatchMark(3, A), True, StreamReplaced),
        (BatchMark(4, A), BatchMark(4, B), False, StreamReplaced),
        (BatchMark(4, A), BatchMark(9, B), False, StreamReplaced),
        (BatchMark(4, A), BatchMark(0, B), True, False),
        (BatchMark(4, A), BatchMark(4, B), True, False),
        (BatchMark(4, ""), BatchMark(4, A), False, True),
    ],
)
def test_which_batches_are_in_the_table(
    held: BatchMark | None, coming: BatchMark, *, takes_over: bool, expected: bool | type[StreamReplaced]
) -> None:
    if expected is StreamReplaced:
        with pytest.raises(StreamReplaced) as raised:
            is_written(held, coming, takes_over=takes_over)
        assert "{" not in str(raised.value)
    else:
        assert is_written(held, coming, takes_over=takes_over) is expected


def test_what_is_wrong_with_a_sink_is_told_when_it_is_made(spark: SparkSession, tables: Tables) -> None:
    with pytest.raises(InvalidOption):
        sink("/nowhere", query_id="no spaces")
    with pytest.raises(InvalidOption, match="upsrt"):
        sink("/nowhere", query_id="q", operation="upsrt")
    table = tables.create("t")
    write_rows(table, rows(0, 1, 1), Operation.UPSERT, progress=ProgressStep(progress_key("q"), None, "not ours"))
    with pytest.raises(CorruptMetadata, match="not ours"):
        sink(str(tables.folder / "t"), query_id="q")(spark.createDataFrame(rows(0, 1, 1)), 0)
