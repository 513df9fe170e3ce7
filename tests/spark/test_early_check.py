"""Large DataFrame writes that meet others: they learn while their jobs run that they lost, and go first when they lost often."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import ROUTED, Tables, content, rows

from tideline_locks.reservations import InProcessReservations
from tideline_spark import write as module
from tideline_spark.early_check import ended_when_lost
from tideline_spark.jobs import tagged_jobs
from tideline_spark.report import WriteReport
from tideline_spark.task import UnitWriter
from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.coordination.reservations import Reservation
from tideline_table.errors import StorageError, WriteConflict
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

WAIT_S = 300.0
"""Only failures take that long."""


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Small sources would take another way."""
    return Tables(tmp_path, ROUTED)


class Gate:
    """A pipe at which tasks wait once they have written a file.

    Whichever process opens it ends them, and nobody waits from then on.
    """

    def __init__(self, folder: Path) -> None:
        self.came, self.go_on, self.is_open = (str(folder / name) for name in ("came", "go on", "open"))
        for pipe in (self.came, self.go_on):
            os.mkfifo(pipe)
        # Open for both directions: neither end waits for the other one to be there.
        self._came, self._go_on = (os.open(pipe, os.O_RDWR | os.O_NONBLOCK) for pipe in (self.came, self.go_on))

    def await_task(self) -> bool:
        return bool(select.select([self._came], [], [], WAIT_S)[0])

    def open(self) -> None:
        Path(self.is_open).touch()
        for pipe in (self._came, self._go_on):
            os.write(pipe, b"x" * 100)

    def close(self) -> None:
        self.open()
        os.close(self._came)
        os.close(self._go_on)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def wait_at(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of writes wait behind their first file."""
    came, go_on, is_open = gate.came, gate.go_on, gate.is_open

    # Made here so that it travels to workers by value: they do not import tests.
    def waiting(writer: UnitWriter, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in writer(batches):
            yield row
            if os.path.exists(is_open):
                continue
            with open(came, "wb") as pipe:
                pipe.write(b"x")
            with open(go_on, "rb", buffering=0) as pipe:
                pipe.read(1)
            raise RuntimeError("this attempt was to be cancelled")

    def gated(**given: object) -> object:
        writer = UnitWriter(**given)  # type: ignore[arg-type]
        assert set(given) <= {field.name for field in fields(UnitWriter)}
        return lambda batches: waiting(writer, batches)

    monkeypatch.setattr(module, "UnitWriter", gated)


def test_a_write_learns_while_its_job_runs_that_it_lost(
    spark: SparkSession, tables: Tables, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.create("native")
    write_rows(table, rows(0, 30, 5, regions=1), Operation.UPSERT)
    other = Table.open(table.storage.root)
    noticed, too_late = threading.Event(), threading.Event()
    heard: list[WriteConflict] = []
    reports: list[WriteReport] = []

    def rival() -> None:
        if gate.await_task():
            write_rows(other, rows(10, 20, 9, regions=1), Operation.UPSERT)
        if not noticed.wait(WAIT_S):
            too_late.set()
            gate.open()

    def on_conflict(error: WriteConflict, _attempt: int) -> None:
        heard.append(error)
        noticed.set()
        gate.open()

    wait_at(gate, monkeypatch)
    thread = threading.Thread(target=rival)
    thread.start()
    try:
        committed = write_dataframe(
            table,
            spark.createDataFrame(rows(0, 40, 7, regions=1)),
            Operation.UPSERT,
            on_conflict=on_conflict,
            on_report=reports.append,
        )
    finally:
        noticed.set()
        gate.open()
        thread.join(WAIT_S)
    assert not too_late.is_set()
    assert committed.attempts == 2
    assert [error.with_instant for error in heard] == [other.state.completed_writes()[-1].instant]
    assert len(reports) == 1, "the jobs of the first attempt never ended by themselves"
    expected = pa.concat_tables([rows(0, 10, 7, regions=1), rows(10, 20, 9, regions=1), rows(20, 40, 7, regions=1)])
    read = Table.open(table.storage.root)
    assert content(read.read()) == content(expected)
    kept = {a.instant for a in read.state.completed_writes()}
    assert len(kept) == 3

    files = [found.path for found in read.storage.list_objects("r 0") if found.path.endswith(".parquet")]
    assert {path.rsplit("_", 1)[1].removesuffix(".parquet") for path in files} == kept, "nothing is left of the lost attempt"
    assert not [t.name for t in threading.enumerate() if t.name == "early check"]


def test_a_check_that_gets_no_answer_is_not_minded(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tideline_spark.early_check.EARLY_CHECK_S", 0.001)
    asked = threading.Event()

    def check() -> None:
        asked.set()
        raise StorageError("no answer")

    with tagged_jobs(spark) as tag, ended_when_lost(spark.sparkContext, tag, check):
        assert asked.wait(WAIT_S)
        assert spark.range(5).count() == 5
    assert not [t.name for t in threading.enumerate() if t.name == "early check"]


def test_an_append_that_lost_often_goes_first(spark: SparkSession, tables: Tables) -> None:
    """Its first attempts learn which file groups they append to; with priority it posts them, and the rival waits."""
    table = tables.create("native", type=TableType.MOR, options={"tideline.write.priority.after": 2})
    write_rows(table, rows(0, 30, 5), Operation.UPSERT)
    claimed: list[Reservation] = []

    class Recorded(InProcessReservations):
        def claim(self, reservation: Reservation) -> list[Reservation]:
            claimed.append(reservation)
            return super().claim(reservation)

    table.reservations = Recorded()
    other = Table.open(table.storage.root, options={"tideline.write.priority.wait": 0.01})
    other.reservations = table.reservations
    waited: list[bool] = []

    def rival(_report: WriteReport) -> None:
        # The files are written, the commit comes next.
        mine = Reservation("99990101000000000", frozenset(), appends=frozenset(s.group.file_id for s in other.slices()))
        waited.append(bool(other.reservations.claim(mine)))
        other.reservations.withdraw(mine.instant)
        if not waited[-1]:
            write_rows(other, rows(0, 3, 6 + len(waited)), Operation.UPSERT)

    committed = write_dataframe(table, spark.createDataFrame(rows(0, 30, 50)), Operation.UPSERT, on_report=rival)
    assert waited == [False, False, True]
    assert committed.attempts == 3
    urgent = [reservation for reservation in claimed if reservation.has_priority]
    assert [(i.instant, i.groups, i.appends) for i in urgent] == [
        (committed.instant, frozenset(), frozenset(s.group.file_id for s in table.slices()))
    ]
    assert other.reservations.claim(Reservation("1", urgent[0].appends)) == []
    assert content(Table.open(table.storage.root).read()) == content(rows(0, 30, 50))
