"""Cancelled plans: what Apache Hudi and hudi-rs read after a compaction or clustering was cancelled, and while its log files
are moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_clustering, schedule_compaction

from tideline_table.action import cancel_plan, create_metadata, roll_back_dead, run_clustering, run_compaction, write_rows
from tideline_table.coordination import rollback
from tideline_table.table import Table, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(600)

NOW = {"hoodie.compact.inline.max.delta.commits": 1}
OPTIONS = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.logfile.data.block.format": "avro",
    "hoodie.client.heartbeat.interval_in_ms": 100,
    "hoodie.client.heartbeat.tolerable.misses": 1,
}


class _Died(BaseException):
    """Stands for the end of the process that cancels."""


def read_alike(readers: Readers, model: pa.Table, name: str) -> None:
    """Apache Hudi and this engine read `model`; hudi-rs does not merge log files behind a pending compaction."""
    with readers.step(Topic.COMPACTION, name) as step:
        ours = Table.open(readers.table.base_path).read()
        step.compare.rows(ours, readers.peer.read(readers.table.base_path), name)
        step.compare.rows(ours.select(model.column_names), model, name, "what was written", key=("id",))


@pytest.mark.parametrize(
    ("ordering", "indexed"), [("ts", False), ("", False), ("ts", True)], ids=["event-time", "commit-time", "metadata-table"]
)
def test_a_cancelled_compaction(
    apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordering: str, *, indexed: bool
) -> None:
    """Apache Hudi reads by the metadata table if there is one: it has to list the moved log files by their new names."""
    base = tmp_path / "trips"
    create_table(str(base), replace(BASE, type=TableType.MOR, ordering_field=ordering))
    table = Table.open(str(base), options=OPTIONS)
    if indexed:
        create_metadata(table, ("files", "column_stats"))
    readers = Readers(table, apache_hudi, matrix, f"cancelled compaction, {ordering or 'commit time'}")
    write_rows(table, rows(range(12), 5), Operation.INSERT)
    write_rows(table, rows(range(6), 6), Operation.UPSERT)
    instant = schedule_compaction(table, NOW)
    assert instant is not None
    write_rows(table, rows(range(3, 9), 7), Operation.UPSERT)
    write_rows(table, rows(range(5, 8), 8), Operation.UPSERT)
    write_rows(table, rows([11], 8).select(["id", "part"]), Operation.DELETE)
    model = pa.concat_tables([rows(range(3), 6), rows(range(3, 5), 7), rows(range(5, 8), 8), rows([8], 7), rows([9, 10], 5)])
    read_alike(readers, model, "before the cancellation")

    def die(*_: object) -> None:
        raise _Died

    with monkeypatch.context() as dying:
        # Between the step that moves the log files and the first deletion of an old one: readers of Hudi find both.
        dying.setattr(rollback, "forget_index", die)
        with pytest.raises(_Died):
            cancel_plan(table, instant)
    assert any(f"_{instant}.log." in path.name for path in base.rglob(".*.log.*"))
    read_alike(readers, model, "while log files are moved")

    table = readers.table = Table.open(str(base), options=OPTIONS)
    table.clock.sleep(0.5)  # two missed heartbeats of the process that died
    assert roll_back_dead(table) == [instant]
    with readers.step(Topic.COMPACTION, "cancelled") as step:
        step.agree(model)
    assert not list(base.rglob(f"*_{instant}.*"))
    write_rows(table, rows(range(2, 4), 9), Operation.UPSERT)
    model = pa.concat_tables([rows(range(2), 6), rows([2, 3], 9), model.slice(4)])
    with readers.step(Topic.COMPACTION, "a write behind it") as step:
        step.agree(model)
    assert schedule_compaction(table, NOW) is not None
    assert run_compaction(table) is not None
    write_rows(table, rows([0], 10), Operation.UPSERT)
    model = pa.concat_tables([rows([0], 10), model.slice(1)])
    with readers.step(Topic.COMPACTION, "the next compaction, and a write behind it") as step:
        step.agree(model)


def test_a_cancelled_clustering(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path) -> None:
    base = tmp_path / "trips"
    create_table(str(base), replace(BASE, type=TableType.MOR))
    table = Table.open(str(base), options=OPTIONS)
    readers = Readers(table, apache_hudi, matrix, "cancelled clustering")
    for number in range(3):
        write_rows(table, rows(range(4 * number, 4 * number + 4), 5), Operation.BULK_INSERT)
    instant = schedule_clustering(table)
    assert instant is not None
    cancel_plan(table, instant)
    with readers.step(Topic.CLUSTERING, "cancelled") as step:
        step.agree(rows(range(12), 5))
    assert schedule_clustering(table) is not None
    assert run_clustering(table) is not None
    with readers.step(Topic.CLUSTERING, "planned again and run") as step:
        step.agree(rows(range(12), 5))
