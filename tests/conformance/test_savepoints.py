"""Savepoints and restores: ours as Apache Hudi and hudi-rs see them, and those of both sides on a table that both write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import FAST, NAME, Turns, trips
from tests.conformance.matrix import Cell, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_table.action import create_savepoint, restore_to_savepoint, run_clean, run_clustering, run_compaction, write_rows
from tideline_table.hudi.instant import Action
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(600)

NOW = {"hoodie.compact.inline.max.delta.commits": 1}
RETAIN_1 = {"hoodie.cleaner.commits.retained": 1}
AVRO = {"hoodie.logfile.data.block.format": "avro"}
KINDS = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)


def shown_savepoints(peer: ApacheHudi, base: str | Path) -> list[str]:
    """The savepoints that Hudi's procedure lists."""
    return [str(row["savepoint_time"]) for row in peer.call(f"show_savepoints(path => '{base}')")]


def without(model: pa.Table, numbers: range) -> pa.Table:
    gone = pa.array([f"k{number:04}" for number in numbers])
    return model.filter(pc.invert(pc.is_in(model.column("id"), value_set=gone)))


@KINDS
def test_ours_as_they_see_them(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, kind: Kind) -> None:
    base = tmp_path / "trips"
    create_table(str(base), replace(BASE, type=TableType(kind.value)))
    table = Table.open(str(base), options={"hoodie.parquet.small.file.limit": 0, **AVRO})
    readers = Readers(table, apache_hudi, matrix, f"savepoints here, {kind}")
    model = pa.concat_tables([rows(range(5), 5), rows(range(5, 12), 6)])
    with readers.step(Topic.SAVEPOINT, "savepoint") as step:
        write_rows(table, rows(range(10), 5), Operation.INSERT)
        write_rows(table, rows(range(5, 12), 6), Operation.UPSERT)
        at = create_savepoint(table, comment="before", user="tideline").instant
        step.agree(model)
        assert shown_savepoints(apache_hudi, base) == [at]
    with readers.step(Topic.SAVEPOINT, "cleaned behind the savepoint") as step:
        for number in range(3):
            write_rows(table, rows(range(number, 14 + number), 7), Operation.UPSERT)
            if kind is Kind.MOR:
                assert schedule_compaction(table, NOW) is not None
                assert run_compaction(table) is not None
        assert schedule_clean(table, RETAIN_1) is not None
        assert run_clean(table)
        step.agree(rows(range(16), 7))
        ours = Table.open(str(base)).read(as_of=at)
        step.compare.rows(ours.select(model.column_names), model, "as of the savepoint", "what was written", key=("id",))
        # Difference 20.
        with pytest.raises(PeerFailed, match="Cleaner cleaned up"):
            apache_hudi.read(base, as_of=at)
        step.compare.rows(ours, read_hudi_rs(base, at), "as of the savepoint", "hudi-rs")
    with readers.step(Topic.SAVEPOINT, "restored") as step:
        write_rows(table, rows(range(4), 9), Operation.DELETE)
        assert schedule_clustering(table, {"tideline.clustering.min.input.files": 1}) is not None
        assert run_clustering(table) is not None
        write_rows(table, rows(range(20, 22), 9), Operation.INSERT_OVERWRITE)
        done = restore_to_savepoint(table, at)
        assert len(done.undone) >= 6
        step.agree(model)
        assert shown_savepoints(apache_hudi, base) == [at]
    with readers.step(Topic.SAVEPOINT, "written on after the restore") as step:
        write_rows(table, rows(range(8, 14), 8), Operation.UPSERT)
        model = pa.concat_tables([without(model, range(8, 14)), rows(range(8, 14), 8)])
        step.agree(model)
        if kind is Kind.MOR:
            assert schedule_compaction(table, NOW) is not None
            assert run_compaction(table) is not None
            step.agree(model)


@KINDS
def test_they_write_on_after_our_restore(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, kind: Kind) -> None:
    """A table of Tideline with a savepoint and a restore, which Hudi then cleans, restores to that savepoint of Tideline, and
    writes on."""
    turns = Turns(apache_hudi, tmp_path / "table", kind)
    create_table(str(turns.path), TableRequest(NAME, trips([], 0).schema, ("id",), ("part",), "ts", TableType(kind.value)))
    own = Table.open(str(turns.path), options=FAST)
    with matrix.cells(Cell(Topic.SAVEPOINT, kind, Direction.IN_TURN), label=f"in turn, {kind}: our savepoint") as compare:
        write_rows(own, trips(range(10), 1), Operation.INSERT)
        write_rows(own, trips(range(4), 2), Operation.UPSERT)
        at = create_savepoint(own).instant
        saved = Table.open(str(turns.path)).read()
        write_rows(own, trips(range(3, 14), 3), Operation.UPSERT)
        restore_to_savepoint(own, at)
        turns.agree(compare, "our restore", 10)
        turns.share()
        turns.theirs(trips(range(8, 12), 4))
        turns.agree(compare, "they write on after our restore", 12)
        for ts in (5, 6):
            turns.ours(trips(range(12), ts))
            turns.theirs(trips(range(6), ts))
            if kind is Kind.MOR:
                assert schedule_compaction(turns.open(), NOW) is not None
                assert run_compaction(turns.open()) is not None
        turns.theirs(trips(range(6, 8), 7), **{"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"})
        turns.agree(compare, "they clean", 12)
        state = turns.open().state
        assert any(a.action is Action.CLEAN and a.is_by_hudi for a in state.actions.values())
        assert state.last_clean_retained > at
        travelled = Table.open(str(turns.path)).read(as_of=at)
        compare.rows(travelled, saved, "as of our savepoint, after their clean", "before it")
        apache_hudi.restore(turns.path, NAME, at, {**turns.hudi_options, "hoodie.metadata.enable": "false"})
        found = turns.agree(compare, "they restored our savepoint", 10)
        compare.rows(found, saved, "they restored our savepoint", "before it")
        turns.ours(trips(range(9, 13), 8))
        turns.theirs(trips(range(11, 14), 9))
        turns.agree(compare, "both go on", 14)


@KINDS
def test_their_savepoint_on_a_shared_table(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, kind: Kind) -> None:
    turns = Turns(apache_hudi, tmp_path / "table", kind)
    turns.create_here()
    with matrix.cells(Cell(Topic.SAVEPOINT, kind, Direction.IN_TURN), label=f"in turn, {kind}: their savepoint") as compare:
        turns.ours(trips(range(10), 1), Operation.INSERT)
        turns.theirs(trips(range(4), 2))
        at = turns.open().state.completed_writes()[-1].instant
        saved = Table.open(str(turns.path)).read()
        turns.call(f"create_savepoint(path => '{turns.path}', commit_time => '{at}')", **{"hoodie.write.table.version": "6"})
        assert set(turns.open().timeline.savepoints()) == {at}
        for ts in (3, 4, 5):
            turns.ours(trips(range(14), ts))
        if kind is Kind.MOR:
            assert schedule_compaction(turns.open(), NOW) is not None
            assert run_compaction(turns.open()) is not None
            turns.ours(trips(range(14), 6))
            assert schedule_compaction(turns.open(), NOW) is not None
            assert run_compaction(turns.open()) is not None
        assert schedule_clean(turns.open(), RETAIN_1) is not None
        assert run_clean(turns.open())
        travelled = Table.open(str(turns.path)).read(as_of=at)
        compare.rows(travelled, saved, "as of their savepoint, after our clean", "before it")
        apache_hudi.restore(turns.path, NAME, at, {**turns.hudi_options, "hoodie.metadata.enable": "false"})
        found = turns.agree(compare, "they restored it", 10)
        compare.rows(found, saved, "they restored it", "before it")
        assert any(a.action is Action.RESTORE and a.is_by_hudi for a in turns.open().state.actions.values())
        turns.ours(trips(range(8, 12), 7))
        turns.theirs(trips(range(10, 14), 8))
        turns.agree(compare, "both go on", 14)
