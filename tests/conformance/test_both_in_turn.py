"""Apache Hudi and Tideline write one table in turn: after every step both read equal rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import FAST, Turns, abandoned_write, trips
from tests.conformance.matrix import Cell, Comparison, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import leave, roll_back_dead, run_clean, run_clustering, run_compaction
from tideline_table.config import SCHEMA_EVOLUTION
from tideline_table.errors import UnsupportedTable, WriteConflict
from tideline_table.hudi.instant import Action, State
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

WHOLE = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9, "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
BY_SERVER = {"hoodie.write.markers.type": "TIMELINE_SERVER_BASED", "hoodie.embed.timeline.server": "true"}
IMPATIENT = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": 1}


@dataclass
class Story:
    """One table of one kind, and the matrix cells that its chapters fill."""

    turns: Turns
    matrix: Matrix

    @contextmanager
    def chapter(self, *topics: Topic) -> Iterator[Comparison]:
        kind = self.turns.kind
        cells = [Cell(topic, kind, Direction.IN_TURN) for topic in topics]
        with self.matrix.cells(*cells, label=f"in turn, {kind}: {topics[0]}") as compare:
            yield compare


@pytest.fixture(scope="module", params=list(Kind))
def story(
    request: pytest.FixtureRequest, apache_hudi: ApacheHudi, matrix: Matrix, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    """A table of Tideline that Hudi writes too. The chapters below go on with what the ones before left."""
    turns = Turns(apache_hudi, tmp_path_factory.mktemp("in-turn") / "a table, 50% é", request.param)
    table = turns.create_here()
    assert table.sharing is not None
    assert not table.capabilities.log_is_truth
    return Story(turns, matrix)


def test_writes(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.BULK_INSERT, Topic.INSERT, Topic.UPSERT, Topic.TYPES) as compare:
        turns.ours(trips(range(10), 1), Operation.BULK_INSERT)
        turns.agree(compare, "our bulk insert", 10)
        turns.theirs(trips(range(10, 14), 1), "bulk_insert")
        turns.theirs(trips(range(5, 16), 2))
        turns.agree(compare, "their bulk insert and upsert of what both inserted", 16)
        turns.ours(trips(range(3, 12), 3))
        turns.agree(compare, "our upsert of what both wrote", 16)
        turns.theirs(trips(range(16, 18), 1), "insert")
        turns.ours(trips(range(18, 20), 1), Operation.INSERT)
        turns.theirs(trips(range(15, 20), 4))
        found = turns.agree(compare, "both insert, they upsert", 20)
        assert sorted(found.column("ts").to_pylist()) == [1] * 3 + [2] * 3 + [3] * 9 + [4] * 5
    with story.chapter(Topic.DELETE) as compare:
        turns.theirs(trips([0], 5), "delete")
        turns.ours(trips([1], 5), Operation.DELETE)
        turns.agree(compare, "both delete what the other side wrote", 18)
        turns.ours(trips([0], 6))
        turns.theirs(trips([1], 6))
        turns.agree(compare, "both bring back what the other side deleted", 20)


def test_compaction(story: Story) -> None:
    turns = story.turns
    if turns.kind is Kind.COW:
        with pytest.raises(UnsupportedTable):
            schedule_compaction(turns.open())
        return
    with story.chapter(Topic.COMPACTION) as compare:
        assert schedule_compaction(turns.open(), AT_ONCE) is not None
        turns.theirs(trips(range(4, 9), 7))
        turns.ours(trips(range(6, 9), 8))
        turns.agree(compare, "both append under our plan", 20)
        turns.call(f"run_compaction(op => 'run', path => '{turns.path}')")
        turns.agree(compare, "they run our plan", 20)
        turns.theirs(trips(range(4, 9), 9))
        turns.ours(trips(range(5, 10), 10))
        turns.call(f"run_compaction(op => 'schedule', path => '{turns.path}')", **{k: str(v) for k, v in AT_ONCE.items()})
        turns.ours(trips(range(5, 8), 11))
        turns.agree(compare, "we append under their plan", 20)
        done = run_compaction(turns.open())
        assert done is not None
        turns.agree(compare, "we run their plan", 20)
        turns.theirs(trips(range(4, 9), 12))
        turns.ours(trips(range(2, 5), 12))
        turns.agree(compare, "both append to what we compacted", 20)


def test_clustering(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.CLUSTERING) as compare:
        assert schedule_clustering(turns.open(), WHOLE) is not None
        turns.call(f"run_clustering(path => '{turns.path}', op => 'execute')")
        turns.agree(compare, "they run our plan", 20)
        turns.theirs(trips(range(20, 24), 1), "bulk_insert")
        turns.ours(trips(range(24, 28), 1), Operation.BULK_INSERT)
        turns.call(f"run_clustering(path => '{turns.path}', op => 'schedule', order => 'price')")
        with pytest.raises(WriteConflict, match="Apache Hudi, which lets no writer pass"):
            turns.ours(trips([20], 2), **{"tideline.write.conflict.retries": 0})
        turns.agree(compare, "their plan is pending, our update waits", 28)
        done = run_clustering(turns.open())
        assert done is not None
        turns.agree(compare, "we run their plan", 28)
        turns.ours(trips(range(20, 23), 2))
        turns.theirs(trips(range(22, 26), 3))
        turns.agree(compare, "both update what we clustered", 28)


def test_clean(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.CLEAN) as compare:
        before = len(turns.open().state.every_slice())
        turns.theirs(trips(range(22, 24), 4), **{"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"})
        table = turns.open()
        assert any(a.action is Action.CLEAN and a.is_by_hudi for a in table.state.actions.values())
        assert len(table.state.every_slice()) < before
        turns.agree(compare, "they clean what both wrote", 28)
        turns.ours(trips(range(20, 24), 5))
        turns.theirs(trips(range(20, 24), 6))
        turns.ours(trips(range(20, 24), 7))
        if turns.kind is Kind.MOR:
            assert schedule_compaction(turns.open(), AT_ONCE) is not None
            assert run_compaction(turns.open()) is not None
            turns.ours(trips(range(20, 24), 7))
        assert schedule_clean(turns.open(), {"hoodie.cleaner.commits.retained": 1}) is not None
        assert run_clean(turns.open())
        turns.agree(compare, "we clean what both wrote", 28)
        turns.theirs(trips(range(20, 24), 8))
        turns.agree(compare, "they go on after our clean", 28)
        on_disk = {str(p.relative_to(turns.path)) for p in turns.path.rglob("p*/*.parquet")}
        assert on_disk == {p for s in turns.open().state.every_slice() for p in s.paths if p.endswith(".parquet")}


def test_insert_overwrite(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.INSERT_OVERWRITE) as compare:
        turns.theirs(trips(range(20, 28), 8), "insert_overwrite")
        turns.agree(compare, "they overwrite what both wrote", 8)
        turns.ours(trips(range(0, 28, 2), 8), Operation.INSERT_OVERWRITE)
        turns.agree(compare, "we overwrite a partition of theirs", 18)
        turns.theirs(trips(range(28), 8))
        turns.agree(compare, "they bring everything back", 28)


def test_rollback(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.ROLLBACK) as compare:
        spoiled = {"price": "if(id = 'k0029', cast(raise_error('spoiled') as double), price)"}
        with pytest.raises(PeerFailed):
            turns.theirs(trips(range(26, 30), 9), "bulk_insert", computed=spoiled, **BY_SERVER)
        turns.agree(compare, "their failed write is not seen", 28)
        dead = [a for a in turns.open().state.pending() if a.is_by_hudi]
        assert len(dead) == 1
        impatient = Table.open(str(turns.path), options={**FAST, **IMPATIENT}, hudi_lock=open_hudi_lock)
        turns.wait_for_death(dead[0].instant)
        assert roll_back_dead(impatient) == [dead[0].instant]
        assert not list(turns.path.rglob(f"p*/*_{dead[0].instant}.parquet"))
        turns.agree(compare, "we rolled it back", 28)
        ours = abandoned_write(turns.open(), trips(range(26, 32), 9))
        turns.agree(compare, "our dead write is not seen", 28)
        turns.theirs(trips(range(26, 28), 10), **{"hoodie.clean.automatic": "true"})
        table = turns.open()
        assert table.state.actions[ours].state is State.ROLLED_BACK
        assert not list(turns.path.rglob(f"p*/*_{ours}.parquet"))
        turns.ours(trips(range(27, 29), 11))
        turns.agree(compare, "they rolled ours back and both went on", 29)


def test_schema_evolution(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.SCHEMA_EVOLUTION) as compare:
        note = trips(range(30, 33), 1).append_column("note", pa.array(["a", None, "c"]))
        turns.theirs(note)
        turns.agree(compare, "they add a column", 32)
        grade = (
            trips(range(31, 34), 2).append_column("note", pa.array([None, "d", "e"])).append_column("grade", pa.array([1, 2, None]))
        )
        turns.ours(grade, **{SCHEMA_EVOLUTION.key: "evolve"})
        found = turns.agree(compare, "we add another", 33)
        assert found.schema.names[-2:] == ["note", "grade"]
        turns.theirs(grade)
        turns.agree(compare, "they write both", 33)


@pytest.mark.parametrize("kind", list(Kind))
def test_leaving(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """The table is Apache Hudi's again: rows and instants stay, and its writers go on."""
    turns, compare = Turns(apache_hudi, workdir / "table", kind), Comparison()
    turns.create_here()
    turns.ours(trips(range(10), 1), Operation.BULK_INSERT)
    turns.theirs(trips(range(5, 12), 2))
    turns.ours(trips(range(8), 3))
    plan = schedule_compaction(turns.open(), AT_ONCE) if kind is Kind.MOR else schedule_clustering(turns.open(), WHOLE)
    assert plan is not None
    leave(turns.open(), open_hudi_lock)
    assert list((turns.path / ".hoodie/.tideline").rglob("*")) == []
    assert not Table.open(str(turns.path)).capabilities.keeps_log
    turns.agree(compare, "after leaving", 12)
    turns.theirs(trips(range(3, 14), 4))
    turns.theirs(trips([0, 5], 5), "delete")
    turns.agree(compare, "Apache Hudi alone", 12)
