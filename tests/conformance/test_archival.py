"""Tables that Tideline archived: Apache Hudi lists what left, both peers read what is there, and Apache Hudi writes and
archives on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import SHARING, Turns, trips
from tests.conformance.matrix import Cell, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import Readers, rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import archive, run_clean, run_clustering, run_compaction, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import WritesMissed
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.instant import Action
from tideline_table.log.progress import Progress, ProgressStep
from tideline_table.table import Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

FEW = {
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.compact.inline.max.delta.commits": 2,
    "tideline.archive.min.age": 0,
    "tideline.task.max.lifetime": 0,
    "hoodie.parquet.small.file.limit": 0,
}
BOTH = pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)


def archived_by(peer: ApacheHudi, name: str, base_path: str) -> dict[str, str]:
    """Instant → action of what Apache Hudi finds in the archive."""
    peer.sql(f"create table if not exists {name} using hudi location '{base_path}'")
    span = "start_ts => '20200101000000000', end_ts => '20990101000000000'"  # by default it leaves out the last day
    found = peer.call(f"show_archived_commits(table => '{name}', limit => 1000, {span})")
    return {line["commit_time"]: line.get("action", "") for line in found}


def serve(table: Table) -> None:
    """Whatever there is to compact, cluster and clean."""
    if table.definition.has_logs and schedule_compaction(table):
        run_compaction(table)
    if schedule_clean(table):
        run_clean(table)


def archived_writes(table: Table) -> set[str]:
    found = format_of(table.definition.properties).archived_instants(table.storage)
    return {a.time for a in found if a.action in ("commit", "deltacommit", "replacecommit")}


@BOTH
def test_archived_here(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, kind: TableType) -> None:
    request = TableRequest("trips", rows([], 0).schema, ("id",), ("part",), "ts", type=kind)
    create_table(str(workdir / "trips"), request)
    table = Table.open(str(workdir / "trips"), options=FEW)
    readers = Readers(table, apache_hudi, matrix, f"archived here, {kind.value}")
    model = rows(range(12), 5)
    with readers.step(Topic.ARCHIVAL, "several archivals") as step:
        write_rows(table, rows(range(12), 5), Operation.BULK_INSERT)
        write_rows(table, rows(range(20, 24), 5), Operation.BULK_INSERT)
        WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
        assert schedule_clustering(table) is not None
        assert run_clustering(table) is not None
        for number in range(7):
            write_rows(table, rows(range(number, number + 2), 6 + number), Operation.UPSERT)
            serve(table)
            archive(table)
        model = pa.concat_tables(
            [*(rows([n], 6 + n) for n in range(7)), rows([7], 12), rows(range(8, 12), 5), rows(range(20, 24), 5)]
        )
        gone = archived_writes(table)
        assert len(gone) >= 5
        assert Action.REPLACE_COMMIT not in {a.action for a in table.state.actions.values()}, "the clustering is archived"
        step.agree(model)
        assert set(archived_by(apache_hudi, f"archived_{kind.name.lower()}", table.base_path)) >= gone
    with readers.step(Topic.ARCHIVAL, "written on") as step:
        write_rows(table, rows(range(1), 30), Operation.DELETE)
        write_rows(table, rows(range(30, 32), 30), Operation.INSERT)
        model = pa.concat_tables([model.slice(1), rows(range(30, 32), 30)])
        step.agree(model)


@BOTH
def test_archived_here_then_by_hudi(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, kind: TableType) -> None:
    turns = Turns(apache_hudi, workdir / "turns", Kind(kind.value))
    create_table(str(turns.path), replace(TableRequest("turns", trips([], 0).schema, ("id",), ("part",), "ts"), type=kind))
    table = Table.open(str(turns.path), options=FEW)
    write_rows(table, trips(range(12), 1), Operation.BULK_INSERT)
    for number in range(6):
        write_rows(table, trips(range(number, number + 2), 2 + number), Operation.UPSERT)
        serve(table)
        archive(table)
    ours = archived_writes(table)
    assert len(ours) >= 3
    cell = Cell(Topic.ARCHIVAL, turns.kind, Direction.IN_TURN)
    with matrix.cells(cell, label=f"archived here, then by Hudi, {kind.value}") as compare:
        share_table(table, SHARING, open_hudi_lock)
        turns.agree(compare, "shared", 12)
        turns.theirs(trips(range(4, 9), 20))
        turns.agree(compare, "they update what we archived", 12)
        turns.theirs(trips([0], 21), "delete")
        turns.ours(trips(range(2, 5), 22))
        turns.agree(compare, "they delete, we update", 11)
        tidy = {
            "hoodie.clean.automatic": "true",
            "hoodie.archive.automatic": "true",
            "hoodie.cleaner.commits.retained": "1",
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "3",
        }
        for number in range(4):
            turns.theirs(trips(range(number, number + 3), 30 + number), **tidy)
            turns.ours(trips([11], 30 + number))  # the log takes theirs in before it is archived
        turns.agree(compare, "they archive on", 12)
        theirs = archived_writes(turns.open())
        assert theirs > ours, "both archives are one"
        turns.ours(trips(range(5, 7), 40))
        turns.agree(compare, "we write on", 12)
    assert set(archived_by(apache_hudi, f"both_{kind.name.lower()}", str(turns.path))) >= theirs


def test_archived_by_hudi_before_we_looked(apache_hudi: ApacheHudi, workdir: Path) -> None:
    turns = Turns(apache_hudi, workdir / "turns", Kind.COW)
    create_table(str(turns.path), TableRequest("turns", trips([], 0).schema, ("id",), ("part",), "ts"))
    table = Table.open(str(turns.path))
    fed = write_rows(table, trips(range(12), 1), Operation.BULK_INSERT, progress=ProgressStep("feeder", None, "12")).instant
    share_table(table, SHARING, open_hudi_lock)
    tidy = {"hoodie.archive.automatic": "true", "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    opened = turns.open()
    for number in range(6):
        turns.theirs(
            trips([20 + number], 2), "insert", **tidy, **{"hoodie.clean.automatic": "true", "hoodie.cleaner.commits.retained": "1"}
        )
    for reader in (turns.open, opened.refresh):
        with pytest.raises(WritesMissed, match="archived before a Tideline process adopted them"):
            reader()
    with pytest.raises(WritesMissed):
        write_rows(opened, trips([40], 3), Operation.INSERT)
    shutil.rmtree(turns.path / ".hoodie" / ".tideline")
    anew = share_table(Table.open(str(turns.path)), SHARING, open_hudi_lock)
    assert sorted(anew.read(["id"])["id"].to_pylist()) == sorted(trips([*range(12), *range(20, 26)], 0)["id"].to_pylist())
    assert fed in archived_writes(anew)
    assert anew.state.progress == {"feeder": Progress("12", fed)}, "as the archive of Apache Hudi has it"
