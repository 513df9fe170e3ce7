"""Apache Hudi and Tideline write one table of version 9 or 8 in turn: after every step both read the rows that are expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import FAST, Turns, abandoned_write, trips
from tests.conformance.matrix import Cell, Comparison, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.simulation.faults import SAMPLE_STEP

import tideline
from tideline_locks import open_hudi_lock
from tideline_table.action import leave, roll_back_dead, run_clean, run_clustering, run_compaction, run_log_compaction
from tideline_table.errors import TableUpgraded, UnsupportedTable, WriteConflict
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import list_timeline
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log_format import LogBlock, scan_log
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)


TABLES = [(9, Kind.MOR), (9, Kind.COW), (8, Kind.MOR), (8, Kind.COW)][: None if SAMPLE_STEP == 1 else 1]
WHOLE = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9, "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
IMPATIENT = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": 1}
ARCHIVAL = {
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


@dataclass
class Model:
    """The table and what it must hold: key → ordering value. Each upsert of the test is later than those before."""

    turns: Turns
    compare: Comparison
    rows: dict[str, int]

    @property
    def path(self) -> Path:
        return self.turns.path

    def open(self) -> Table:
        return self.turns.open()

    def ours(self, rows: pa.Table, operation: Operation = Operation.UPSERT, *, replaces: bool = False) -> None:
        self.turns.ours(rows, operation)
        self._wrote(rows, is_deletion=operation is Operation.DELETE, replaces=replaces)

    def theirs(self, rows: pa.Table, operation: str = "upsert", *, replaces: bool = False, **options: str) -> None:
        self.turns.theirs(rows, operation, **options)
        self._wrote(rows, is_deletion=operation == "delete", replaces=replaces)

    def call(self, procedure: str, **options: str) -> None:
        self.turns.call(procedure, **options)

    def _wrote(self, rows: pa.Table, *, is_deletion: bool, replaces: bool) -> None:
        keys, parts = rows["id"].to_pylist(), set(rows["part"].to_pylist())
        if replaces:
            for key in [key for key in self.rows if f"p{int(key[1:]) % 2}" in parts]:
                del self.rows[key]
        for key, ts in zip(keys, rows["ts"].to_pylist(), strict=True):
            if is_deletion:
                self.rows.pop(key, None)
            else:
                self.rows[key] = ts

    def check(self, what: str) -> None:
        """Both readers see these rows and no others."""
        found = self.turns.agree(self.compare, what, len(self.rows))
        assert dict(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True)) == self.rows, what


def check_times(table: Table) -> None:
    """No completion time equals another time, and each is later than its instant; the log says those of the timeline."""
    listing = list_timeline(table.storage, table.timeline.format)
    done = {i.time: listing.named_completion(i.time) for i in listing.instants if i.state is State.COMPLETED}
    assert all(ended > begun for begun, ended in done.items())
    assert len({*done, *done.values()}) == 2 * len(done)
    known = table.refresh().actions
    assert {at: known[at].completion for at in done} == done


@dataclass
class Story:
    """One table that both write; the chapters below go on with what the ones before left."""

    turns: Turns
    matrix: Matrix
    rows: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def chapter(self, *topics: Topic) -> Iterator[Model]:
        cells = [Cell(topic, self.turns.kind, Direction.IN_TURN) for topic in topics]
        label = f"version {self.turns.version} in turn, {self.turns.kind}: {topics[0]}"
        with self.matrix.cells(*cells, label=label) as compare:
            yield Model(self.turns, compare, self.rows)
        check_times(self.turns.open())


@pytest.fixture(scope="module", params=TABLES, ids=str)
def story(
    request: pytest.FixtureRequest, apache_hudi: ApacheHudi, matrix: Matrix, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    version, kind = request.param
    turns = Turns(apache_hudi, tmp_path_factory.mktemp("versions") / "a table, 50% é", kind, version=version)
    assert turns.create_here().sharing is not None
    return Story(turns, matrix)


def test_writes(story: Story) -> None:
    with story.chapter(Topic.INSERT, Topic.UPSERT, Topic.DELETE) as table:
        table.ours(trips(range(10), 1))
        table.theirs(trips(range(5, 14), 2))
        table.check("they upsert what we wrote")
        table.ours(trips(range(3, 12), 3))
        table.check("we upsert what both wrote")
        table.theirs(trips(range(10, 20), 4))
        table.ours(trips([4, 12], 5), Operation.DELETE)
        table.check("we delete")
        table.theirs(trips([5, 11], 5), "delete")
        table.check("they delete")
        table.ours(trips(range(4, 13), 6))
        table.theirs(trips([7, 19], 7))
        table.check("both upsert what both deleted")


def test_compaction(story: Story) -> None:
    if story.turns.kind is Kind.COW:
        pytest.skip("no log files")
    with story.chapter(Topic.COMPACTION) as table:
        assert schedule_compaction(table.open(), AT_ONCE) is not None
        table.theirs(trips(range(4, 9), 8))
        table.ours(trips(range(6, 9), 9))
        table.check("both append under our plan")
        table.call(f"run_compaction(op => 'run', path => '{table.path}')")
        table.check("they run our plan")
        table.theirs(trips(range(4, 9), 10))
        table.ours(trips(range(5, 10), 11))
        table.call(f"run_compaction(op => 'schedule', path => '{table.path}')", **{k: str(v) for k, v in AT_ONCE.items()})
        table.ours(trips(range(5, 8), 12))
        table.theirs(trips(range(7, 10), 13))
        table.check("both append under their plan")
        assert run_compaction(table.open()) is not None
        table.check("we run their plan")
        table.theirs(trips(range(4, 9), 14))
        table.ours(trips(range(2, 5), 15))
        table.check("both append to what we compacted")


def test_compaction_between_two_looks(story: Story) -> None:
    """They plan, append behind the plan and compact before any process of ours looks: times say which slice got what."""
    if story.turns.kind is Kind.COW:
        pytest.skip("no log files")
    with story.chapter(Topic.COMPACTION) as table:
        table.theirs(trips(range(4), 16))
        table.call(f"run_compaction(op => 'schedule', path => '{table.path}')", **{k: str(v) for k, v in AT_ONCE.items()})
        table.theirs(trips(range(2, 6), 17))
        table.call(f"run_compaction(op => 'run', path => '{table.path}')")
        table.check("they compacted, and we read it")
        table.ours(trips([3], 18))
        table.check("we append to what they compacted")


def test_clustering(story: Story) -> None:
    with story.chapter(Topic.CLUSTERING) as table:
        assert schedule_clustering(table.open(), WHOLE) is not None
        table.call(f"run_clustering(path => '{table.path}', op => 'execute')")
        table.check("they run our plan")
        table.theirs(trips(range(20, 24), 19), "bulk_insert")
        table.ours(trips(range(24, 28), 19), Operation.BULK_INSERT)
        table.call(f"run_clustering(path => '{table.path}', op => 'schedule', order => 'price')")
        with pytest.raises(WriteConflict, match="Apache Hudi, which lets no writer pass"):
            table.turns.ours(trips([24], 20), **{"tideline.write.conflict.retries": 0})
        table.check("their plan is pending, our update waits")
        assert run_clustering(table.open()) is not None
        table.check("we run their plan")
        table.ours(trips(range(20, 23), 20))
        table.theirs(trips(range(22, 26), 21))
        table.check("both update what we clustered")


def test_clean(story: Story) -> None:
    with story.chapter(Topic.CLEAN) as table:
        before = len(table.open().state.every_slice())
        table.theirs(trips(range(22, 24), 22), **{"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"})
        found = table.open().state
        assert any(a.action is Action.CLEAN and a.is_by_hudi for a in found.actions.values())
        assert len(found.every_slice()) < before
        table.check("they clean what both wrote")
        table.ours(trips(range(20, 24), 23))
        if table.turns.kind is Kind.MOR:
            assert schedule_compaction(table.open(), AT_ONCE) is not None
            assert run_compaction(table.open()) is not None
        table.theirs(trips(range(20, 24), 24))
        table.ours(trips(range(20, 24), 25))
        assert schedule_clean(table.open(), {"hoodie.cleaner.commits.retained": 1}) is not None
        assert run_clean(table.open())
        table.check("we clean what both wrote")
        table.theirs(trips(range(20, 24), 26))
        table.check("they go on after our clean")


def test_insert_overwrite(story: Story) -> None:
    with story.chapter(Topic.INSERT_OVERWRITE) as table:
        table.theirs(trips(range(20, 28), 27), "insert_overwrite", replaces=True)
        table.check("they overwrite what both wrote")
        table.ours(trips(range(0, 28, 2), 28), Operation.INSERT_OVERWRITE, replaces=True)
        table.check("we overwrite a partition of theirs")
        table.theirs(trips(range(28), 29))
        table.check("they bring everything back")


def test_rollback(story: Story) -> None:
    turns = story.turns
    with story.chapter(Topic.ROLLBACK) as table:
        spoiled = {"price": "if(id = 'k0029', cast(raise_error('spoiled') as double), price)"}
        with pytest.raises(PeerFailed):
            turns.theirs(trips(range(26, 30), 30), computed=spoiled)
        table.check("their failed write is not seen")
        dead = [a for a in table.open().state.pending() if a.is_by_hudi]
        assert len(dead) == 1
        impatient = Table.open(str(turns.path), options={**FAST, **IMPATIENT}, hudi_lock=open_hudi_lock)
        turns.wait_for_death(dead[0].instant)
        assert roll_back_dead(impatient) == [dead[0].instant]
        assert not list(turns.path.glob(f"p*/*_{dead[0].instant}.*"))
        table.check("we rolled it back")
        ours = abandoned_write(table.open(), trips(range(26, 32), 30))
        table.check("our dead write is not seen")
        table.theirs(trips(range(26, 28), 31), **{"hoodie.clean.automatic": "true"})
        assert table.open().state.actions[ours].state is State.ROLLED_BACK
        assert not list(turns.path.glob(f"p*/*_{ours}.*"))
        table.ours(trips(range(27, 29), 32))
        table.check("they rolled ours back and both went on")


def test_archival(story: Story) -> None:
    """Apache Hudi archives what both wrote; the log goes on, and both read all rows."""
    with story.chapter(Topic.ARCHIVAL) as table:
        for ts in range(33, 39):
            table.theirs(trips(range(ts, ts + 2), ts), **ARCHIVAL)
            table.ours(trips(range(ts, ts + 1), ts + 100))
        assert table.open().timeline.format.has_archive(table.open().storage)
        table.check("archived")
        table.theirs(trips(range(30, 40), 200))
        table.check("after archival")


OF_HUDI = [(9, Kind.MOR), (9, Kind.COW), (8, Kind.MOR)][: None if SAMPLE_STEP == 1 else 1]


@pytest.mark.parametrize(("version", "kind"), OF_HUDI)
def test_a_table_of_apache_hudi_is_shared_and_returned(
    apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, version: int, kind: Kind
) -> None:
    """It has the metadata table that Apache Hudi 1.2 makes by default, a plan that is pending, and rows behind the plan."""
    turns = Turns(apache_hudi, workdir / "theirs", kind, version=version)
    alone = replace(turns, metadata=True)
    cell = Cell(Topic.COMPACTION if kind is Kind.MOR else Topic.CLUSTERING, kind, Direction.IN_TURN)
    with matrix.cells(cell, label=f"a table of Apache Hudi, version {version}, {kind}") as compare:
        table, before = Model(turns, compare, {}), Model(alone, compare, {})
        before.theirs(trips(range(10), 1), "bulk_insert")
        before.theirs(trips(range(5, 12), 2))
        service = "compaction" if kind is Kind.MOR else "clustering"
        options = {**{k: str(v) for k, v in AT_ONCE.items()}, "hoodie.metadata.enable": "true"}
        turns.call(f"run_{service}(op => 'schedule', path => '{turns.path}')", **options)
        before.theirs(
            trips(range(9, 14) if kind is Kind.MOR else range(14, 18), 3), "upsert" if kind is Kind.MOR else "bulk_insert"
        )
        before.check("Apache Hudi alone")
        assert (turns.path / ".hoodie/metadata").exists()
        shared = turns.share()
        assert not (turns.path / ".hoodie/metadata").exists()
        assert [a.is_by_hudi for a in shared.state.pending()] == [True]
        table.rows = before.rows
        table.check("shared")
        if kind is Kind.MOR:
            table.ours(trips(range(8, 11), 4))
            table.theirs(trips(range(10, 13), 5))
            table.check("both append under the plan from before")
            assert run_compaction(table.open()) is not None
        else:
            assert run_clustering(table.open()) is not None
        table.check("we run their plan")
        table.theirs(trips(range(3, 9), 6))
        table.ours(trips(range(5, 16), 7))
        table.check("both write")
        leave(turns.open(), open_hudi_lock)
        assert list((turns.path / ".hoodie/.tideline").rglob("*")) == []
        before.rows = table.rows
        before.theirs(trips(range(4, 8), 8))
        before.theirs(trips([9], 9), "delete")
        assert (turns.path / ".hoodie/metadata").exists()
        before.check("Apache Hudi alone again, with its metadata table")


@pytest.mark.of_peers
@pytest.mark.parametrize("kind", list(Kind))
def test_a_table_that_apache_hudi_upgraded_is_shared(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, kind: Kind) -> None:
    """From 6 to 9 by its writer: log files of the older slices are named after the slice, newer ones after their writes."""
    before, turns = (Turns(apache_hudi, workdir / "upgraded", kind, version=version) for version in (6, 9))
    with matrix.cells(Cell(Topic.UPSERT, kind, Direction.IN_TURN), label=f"an upgraded table, {kind}") as compare:
        old, table = Model(before, compare, {}), Model(turns, compare, {})
        old.theirs(trips(range(10), 1), "bulk_insert")
        old.theirs(trips(range(5, 12), 2))
        table.rows = old.rows
        table.theirs(trips(range(3, 7), 3), **{"hoodie.write.auto.upgrade": "true"})
        assert turns.share().definition.version == 9
        table.check("shared after the upgrade")
        table.ours(trips(range(6, 14), 4))
        table.theirs(trips(range(8, 11), 5))
        table.check("both write")
        if kind is Kind.MOR:
            assert schedule_compaction(table.open(), AT_ONCE) is not None
            assert run_compaction(table.open()) is not None
        table.theirs(trips(range(2, 5), 6), **{"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"})
        table.ours(trips(range(4), 7))
        table.check("compacted and cleaned")
        leave(turns.open(), open_hudi_lock)
        table.theirs(trips(range(1, 3), 8))
        table.check("returned")


@pytest.mark.of_peers
@pytest.mark.parametrize("kind", list(Kind))
def test_a_table_of_ours_that_apache_hudi_upgraded_is_shared_as_it_is(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """An exclusive copy-on-write table, and a shared merge-on-read table with our plan pending and a row behind it."""
    six, nine = (Turns(apache_hudi, workdir / "ours", kind, version=version) for version in (6, 9))
    if kind is Kind.COW:
        Turns.write(six.create_exclusive(), trips(range(8), 1))
    else:
        six.create_here()
        six.ours(trips(range(8), 1), Operation.BULK_INSERT)
        six.ours(trips(range(4), 2))
        assert schedule_compaction(six.open(), AT_ONCE) is not None
        six.ours(trips(range(3), 3))
    compare = Comparison()
    before = rows_of(six.agree(compare, "before", 8))
    six.theirs(trips([8], 4), **{"hoodie.write.table.version": "9", "hoodie.write.auto.upgrade": "true"})
    hidden = rows_of(six.agree(compare, "upgraded", 9))
    leave(Table.open(str(six.path), hudi_lock=open_hudi_lock), open_hudi_lock)
    if kind is Kind.MOR:
        assert {key: ts for key, ts in hidden.items() if before.get(key) != ts} == {"k0000": 2, "k0001": 2, "k0002": 2, "k0008": 4}
        (planned,) = (a.instant for a in nine.open().state.pending())
        with pytest.raises(UnsupportedTable, match=f"behind the plan of compaction {planned}"):
            nine.share()
        nine.call(f"run_compaction(op => 'run', path => '{nine.path}', timestamp => {planned})")
    assert nine.share().definition.version == 9
    assert rows_of(nine.agree(compare, "shared", 9)) == {**before, "k0008": 4}
    nine.ours(trips(range(2, 6), 5))
    nine.theirs(trips(range(4, 10), 6))
    nine.agree(compare, "both write", 10)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
def test_a_shared_table_follows_the_versions_that_apache_hudi_gives_it(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """From 6 to 9 by a job, down to 8 and to 6 by its procedure, each time over a plan of ours that is pending then."""
    path, compare = workdir / "followed", Comparison()
    at = {version: Turns(apache_hudi, path, kind, version=version) for version in (6, 8, 9)}
    uid = at[6].create_here().uid
    at[6].ours(trips(range(8), 1), Operation.BULK_INSERT)
    at[6].theirs(trips(range(4, 10), 2))
    plan_of_ours(at[6])
    at[6].theirs(trips([10], 3), **{"hoodie.write.table.version": "9", "hoodie.write.auto.upgrade": "true"})
    expected = {f"k{n:04}": ts for ts, numbers in ((1, range(4)), (2, range(4, 10)), (3, [10])) for n in numbers}
    apache_hudi.sql(f"create table followed_{kind} using hudi location '{path}'")
    sequence, ts = 0, 3
    for version in (9, 8, 6):
        if version < 9:
            plan_of_ours(at[9 if version == 8 else 8])
            name = {8: "EIGHT", 6: "SIX"}[version]
            at[version].call(f"downgrade_table(table => 'followed_{kind}', to_version => '{name}')")
        assert apache_hudi.properties(path)["hoodie.table.version"] == str(version)
        assert rows_of(at[version].agree(compare, f"version {version}")) == expected
        with pytest.raises(TableUpgraded, match="tideline share"):
            at[version].ours(trips([1], ts + 1))
        shared = at[version].share()
        assert (shared.uid, shared.definition.version) == (uid, version)
        assert shared.state.sequence > sequence
        run = run_compaction if kind is Kind.MOR else run_clustering
        assert run(at[version].open()) is not None
        assert rows_of(at[version].agree(compare, f"followed to {version}, our plan run")) == expected
        for write, numbers in ((at[version].ours, range(2, 6)), (at[version].theirs, range(4, 8))):
            ts += 1
            chosen = [*numbers, 20 + ts]  # a new key is a file more, so that a clustering is due
            write(trips(chosen, ts))
            expected |= {f"k{n:04}": ts for n in chosen}
            assert rows_of(at[version].agree(compare, f"{write.__name__} at {version}")) == expected
        sequence = at[version].open().state.sequence


@pytest.mark.of_peers
@pytest.mark.parametrize("version", [8, 6])
def test_a_downgrade_over_log_files_behind_a_plan_of_ours(apache_hudi: ApacheHudi, workdir: Path, version: int) -> None:
    """To 8 it is followed. In 6 the names of these log files mean slices that nobody began: Apache Hudi runs the plan first."""
    path, compare = workdir / "down", Comparison()
    nine, low = (Turns(apache_hudi, path, Kind.MOR, version=at) for at in (9, version))
    nine.create_here()
    nine.ours(trips(range(8), 1), Operation.BULK_INSERT)
    nine.theirs(trips(range(4, 8), 2))
    plan_of_ours(nine)
    nine.theirs(trips(range(6), 3))
    before = rows_of(nine.agree(compare, "before"))
    apache_hudi.sql(f"create table down_{version} using hudi location '{path}'")
    nine.call(f"downgrade_table(table => 'down_{version}', to_version => '{'EIGHT' if version == 8 else 'SIX'}')")
    assert rows_of(low.agree(compare, "downgraded")) == before
    (planned,) = (a.instant for a in low.open().state.pending())
    if version == 6:
        with pytest.raises(UnsupportedTable, match=f"behind the plan of compaction {planned}"):
            low.share()
        low.call(f"run_compaction(op => 'run', path => '{path}', timestamp => {planned})")
    assert low.share().definition.version == version
    if version == 8:
        assert run_compaction(low.open()) is not None
    assert rows_of(low.agree(compare, "shared")) == before
    low.ours(trips(range(2), 4))
    low.theirs(trips(range(1, 3), 5))
    assert rows_of(low.agree(compare, "both write")) == {**before, "k0000": 4, "k0001": 5, "k0002": 5}


def plan_of_ours(turns: Turns) -> None:
    """Of a compaction or a clustering of all file groups; it stays."""
    plan = schedule_compaction(turns.open(), AT_ONCE) if turns.kind is Kind.MOR else schedule_clustering(turns.open(), WHOLE)
    assert plan is not None


@pytest.mark.pairs
@pytest.mark.parametrize("version", [9, 8])
def test_both_compact_logs_in_turn(apache_hudi: ApacheHudi, workdir: Path, version: int) -> None:
    """One that Apache Hudi planned and ran, one that it left to us, one of ours; then a compaction of each."""
    turns, compare = Turns(apache_hudi, workdir / "logs", Kind.MOR, version=version), Comparison()
    own = {"hoodie.log.compaction.blocks.threshold": 2}
    theirs = {"hoodie.log.compaction.enable": "true", "hoodie.log.compaction.blocks.threshold": "1"}
    table = Model(turns, compare, {})
    turns.create_here()
    table.ours(trips(range(8), 1), Operation.BULK_INSERT)
    table.ours(trips(range(4), 2))
    point = turns.open().newest_point()
    table.theirs(trips(range(2, 6), 3), **theirs, **{"hoodie.log.compaction.inline": "true"})
    assert list((turns.path / ".hoodie/timeline").glob("*.logcompaction.requested")), "Apache Hudi compacts logs here"
    table.check("theirs")
    # Rows that it moved have its instant: they count for the writes that it merged.
    read = turns.open()
    rows = pa.Table.from_batches(read.changes(since=point).scan(["id", "ts"])).to_pylist()
    assert {row["after"]["id"] for row in rows if row["before"] != row["after"]} == {f"k{n:04}" for n in range(2, 6)}
    assert {row["id"] for row in read.incremental(since=point).read(["id"]).to_pylist()} >= {f"k{n:04}" for n in range(2, 6)}
    table.ours(trips(range(1, 3), 4))
    table.theirs(trips([1], 5), "delete")
    table.check("both write behind it")
    planned = schedule_log_compaction(turns.open(), own)
    assert planned is not None
    table.ours(trips([3], 6))
    assert run_log_compaction(turns.open()) is not None
    table.check("ours")
    assert any(log.merges_earlier for found in turns.open().slices() for log in found.log_files)
    table.theirs(trips(range(1, 7), 7))
    table.check("they write behind it")
    table.theirs(trips([2], 8), **{"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"})
    table.check("they compact")
    table.ours(trips([2], 9))
    table.theirs(trips([2, 3], 10))
    assert schedule_log_compaction(turns.open(), own) is not None
    table.theirs(trips([4], 11), **theirs, **{"hoodie.log.compaction.inline": "true"})
    table.check("they ran ours, or left it")
    assert schedule_compaction(turns.open(), AT_ONCE) is not None or turns.open().state.pending_log_compactions()
    run_log_compaction(turns.open())
    schedule_compaction(turns.open(), AT_ONCE)
    assert run_compaction(turns.open()) is not None
    table.check("we compact")
    table.theirs(trips(range(3), 12), **ARCHIVAL)
    table.theirs(trips(range(5), 13), **ARCHIVAL)
    table.check("archived")


def test_apache_hudi_compacts_logs_of_version_6(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Readers open what it merged, too, and by commit time what is written later comes behind it."""
    by_commit_time = {"merge": "commit_time", "ordering_field": ""}
    turns, compare = Turns(apache_hudi, workdir / "logs", Kind.MOR, request=by_commit_time), Comparison()
    theirs = {
        f"hoodie.log.compaction.{key}": value for key, value in (("enable", "true"), ("inline", "true"), ("blocks.threshold", "1"))
    }
    table = Model(turns, compare, {})
    turns.create_here()
    table.ours(trips(range(8), 1), Operation.BULK_INSERT)
    table.ours(trips(range(4), 2))
    table.theirs(trips(range(2, 6), 3), **theirs)
    assert list((turns.path / ".hoodie").glob("*.logcompaction.requested")), "Apache Hudi compacts logs here"
    table.ours(trips(range(1, 3), 4))
    table.check("we write behind it")
    table.theirs(trips([1], 5), "delete", **theirs)
    assert schedule_compaction(turns.open(), AT_ONCE) is not None
    table.ours(trips([5], 6))
    assert run_compaction(turns.open()) is not None
    table.check("we compact")


def rows_of(found: pa.Table) -> dict[str, int]:
    return dict(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))


@pytest.mark.of_peers
@pytest.mark.parametrize("kind", list(Kind))
def test_apache_hudi_restores_what_both_wrote(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, kind: Kind) -> None:
    turns = Turns(apache_hudi, workdir / "restored", kind, version=9)
    turns.create_here()
    with matrix.cells(Cell(Topic.SAVEPOINT, kind, Direction.IN_TURN), label=f"a restore, version 9, {kind}") as compare:
        table = Model(turns, compare, {})
        table.ours(trips(range(8), 1))
        table.theirs(trips(range(4, 10), 2))
        saved, rows = max(a.instant for a in table.open().state.completed_writes()), dict(table.rows)
        table.call(f"create_savepoint(path => '{turns.path}', commit_time => '{saved}')")
        table.ours(trips(range(6, 12), 3))
        table.theirs(trips(range(2, 5), 4))
        table.check("both wrote behind the savepoint")
        table.call(f"rollback_to_savepoint(path => '{turns.path}', instant_time => '{saved}')")
        table.rows = rows
        table.check("restored")
        table.ours(trips(range(7, 13), 5))
        table.theirs(trips(range(5, 9), 6))
        table.check("both go on")


def test_apache_hudi_compacts_the_partitions_that_our_plan_left_out(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """It plans for what was written since the last compaction, and for what the last plan names as left out."""
    turns = Turns(apache_hudi, workdir / "left out", Kind.MOR, version=9)
    turns.create_here()
    turns.ours(trips(range(8), 1), Operation.BULK_INSERT)
    turns.theirs(trips(range(8), 2))
    assert schedule_compaction(turns.open(), {**AT_ONCE, "tideline.compaction.max.groups": 1}) is not None
    (taken,) = planned_partitions(turns)
    assert run_compaction(turns.open()) is not None
    turns.theirs(trips([int(taken[1:])], 3))
    turns.call(f"run_compaction(op => 'schedule', path => '{turns.path}')", **{key: str(value) for key, value in AT_ONCE.items()})
    assert planned_partitions(turns) == ["p0", "p1"]


def planned_partitions(turns: Turns) -> list[str]:
    """Those of the one plan that is pending."""
    (plan,) = turns.open().refresh().plans.values()
    assert isinstance(plan, CompactionPlanned)
    return sorted({operation["partitionPath"] for operation in plan.plan["operations"]})


def test_partial_records_of_apache_hudi(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """MERGE INTO writes the columns that it sets. They are read right below and above whole rows of ours, and compacted by us."""
    options = {"hoodie.spark.sql.merge.into.partial.updates": "true"}
    turns = Turns(apache_hudi, workdir / "parts", Kind.MOR, options, version=9)
    turns.create_here()
    turns.ours(trips(range(8), 1), Operation.BULK_INSERT)
    begin = turns.open().newest_point()
    columns = ["id", "ts", "price", "amount", "tags"]
    whole = {row["id"]: row for row in turns.open().read(columns).to_pylist()}
    apache_hudi.sql(f"create table parts using hudi location '{turns.path}'")

    def merge(numbers: range, ts: int, *columns: str) -> None:
        rows = " union all ".join(
            f"select 'k{n:04}' as id, 'p{n % 2}' as part, {ts}L as ts, {ts}.5D as price, array('merged') as tags" for n in numbers
        )
        changed = ", ".join(f"{name} = s.{name}" for name in ("ts", *columns))
        apache_hudi.sql(
            f"merge into parts t using ({rows}) s on t.id = s.id and t.part = s.part when matched then update set {changed}",
            turns.hudi_options,
        )

    compare = Comparison()
    merge(range(6), 3, "price")
    between = turns.open().newest_point()
    merge(range(2, 4), 2, "tags")
    late = {row["after"]["id"]: row for row in pa.Table.from_batches(turns.open().changes(between).scan()).to_pylist()}
    assert {(key, row["after"]["ts"]) for key, row in late.items() if row["before"] != row["after"]} == {("k0002", 3), ("k0003", 3)}
    paths = [path for found in turns.open().slices() for path in found.log_paths]
    assert any(block.is_partial for path in paths for block in scan_log(turns.open().storage, path).blocks)
    turns.agree(compare, "they merged", 8)
    turns.ours(trips(range(4, 8), 4))
    merge(range(3, 7), 5, "tags")
    before = turns.agree(compare, "we upserted between", 8)
    images = {row["after"]["id"]: row for row in pa.Table.from_batches(turns.open().changes(begin).scan()).to_pylist()}
    assert {key: {name: row["before"][name] for name in columns} for key, row in images.items()} == whole
    now = {row["id"]: row for row in before.select(columns).to_pylist()}
    assert {key: {name: row["after"][name] for name in columns} for key, row in images.items()} == now
    changed = turns.open().incremental().read()
    assert changed.select(columns).sort_by("id").equals(before.select(columns).sort_by("id"))
    assert schedule_compaction(turns.open(), AT_ONCE)
    assert run_compaction(turns.open())
    after = turns.agree(compare, "we compacted", 8)
    assert after.select(columns).sort_by("id").equals(before.select(columns).sort_by("id"))
    merge(range(1, 3), 6, "price")
    turns.agree(compare, "they merged into our base files", 8)


@pytest.mark.parametrize(("version", "blocks"), [(9, "parquet"), (8, "avro")])
def test_partial_records_of_tideline(apache_hudi: ApacheHudi, workdir: Path, version: int, blocks: str) -> None:
    """Updates and merges write the columns that they assign. Apache Hudi and hudi-rs read them, and both sides compact them."""
    partial = {"hoodie.spark.sql.merge.into.partial.updates": "true"}
    turns = Turns(apache_hudi, workdir / "parts", Kind.MOR, partial, version=version, request={"ordering_field": ""})
    turns.create_here()
    turns.ours(trips(range(8), 1), Operation.BULK_INSERT)
    theirs = {key: text for key, text in turns.hudi_options.items() if key != "hoodie.datasource.write.precombine.field"}
    apache_hudi.sql(f"create table own_parts_{version} using hudi location '{turns.path}'")
    options = {**FAST, **partial, "hoodie.logfile.data.block.format": blocks}
    compare = Comparison()

    def agree(what: str) -> list[dict[str, object]]:
        found = turns.agree(compare, what, 8)
        compare.rows(found, read_hudi_rs(turns.path), f"{what}, by hudi-rs")
        return found.select(["id", "ts", "price", "amount", "tags"]).sort_by("id").to_pylist()

    def change(write: Callable[[tideline.Table], object]) -> None:
        write(tideline.open(turns.path, options=options))

    change(lambda table: table.update({"price": 7.5}, "id < 'k0006'"))
    assert {block.is_partial for block in log_blocks(turns)} == {True}
    source = pa.table({"id": ["k0001", "k0003", "k0009"], "part": ["p1"] * 3, "ts": [3] * 3, "price": [3.0] * 3})
    on = "target.id = source.id and target.part = source.part"
    change(lambda table: table.merge(source, on).when_matched_update({"ts": "source.ts", "tags": ["merged"]}).execute())
    before = agree("we updated and merged")
    assert [row["price"] for row in before][:6] == [7.5] * 6
    assert [(row["ts"], row["tags"]) for row in before if row["id"] in ("k0001", "k0003")] == [(3, ["merged"])] * 2
    apache_hudi.write(turns.path, trips(range(2, 4), 4), {**theirs, "hoodie.datasource.write.operation": "upsert"})
    change(lambda table: table.update({"tags": None}, "id = 'k0003' or id = 'k0005'"))
    before = agree("we updated rows that they wrote")
    assert schedule_compaction(turns.open(), AT_ONCE)
    assert run_compaction(turns.open())
    assert agree("we compacted") == before
    change(lambda table: table.update({"amount": "amount + 1"}, "id > 'k0004'"))
    before = agree("we updated behind our compaction")
    at_once = {key: str(value) for key, value in AT_ONCE.items()}
    apache_hudi.sql(f"call run_compaction(op => 'scheduleAndExecute', path => '{turns.path}')", {**theirs, **at_once})
    assert not log_blocks(turns)
    assert agree("they compacted") == before
    change(lambda table: table.update({"price": 9.5}, "id = 'k0001' or id = 'k0002'"))
    rows = "select 'k0001' as id, 'p1' as part, 9L as ts, array('theirs') as tags"
    apache_hudi.sql(
        f"merge into own_parts_{version} t using ({rows}) s on t.id = s.id and t.part = s.part "
        "when matched then update set ts = s.ts, tags = s.tags",
        theirs,
    )
    found = {row["id"]: (row["ts"], row["price"], row["tags"]) for row in agree("they merged behind our update")}
    assert (found["k0001"], found["k0002"][:2]) == ((9, 9.5, ["theirs"]), (4, 9.5))


def log_blocks(turns: Turns) -> list[LogBlock]:
    """The blocks of the newest slices."""
    table = turns.open()
    return [block for found in table.slices() for path in found.log_paths for block in scan_log(table.storage, path).blocks]
