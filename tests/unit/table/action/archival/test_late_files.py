"""Who slept past its death and writes on leaves no file behind: its rollback, or whichever process took over, could not see
what came later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.simulation.faults import FaultyStorage, SimulatedCrash
from tests.unit.table.archives import seen_by_others
from tests.unit.table.tables import DEATH_S, cluster, compact, contents, create, open_table, write

from tideline_table.action import archive, create_savepoint, restore_to_savepoint, roll_back_dead, run_clustering, run_compaction
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.run import _begin_clustering, _commit_clustering
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.planned_run import delete_lost_attempt
from tideline_table.clock import ManualClock
from tideline_table.config import TASK_MAX_LIFETIME_S
from tideline_table.errors import StorageError, TransactionRolledBack, VerificationFailed
from tideline_table.hudi.instant import Action, State
from tideline_table.log_format.key_index import INDEX_FOLDER, index_path
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType


def asleep_before_file(
    storage: FaultyStorage, clock: ManualClock, meanwhile: Callable[[], object], *, before_marker: bool = False
) -> None:
    """The first data file, or its marker, is written only after the clock passed everybody's death and `meanwhile` happened."""

    def before(number: int, call: str, path: str) -> None:
        of_marker = call == "put" and path.startswith(".hoodie/.temp/")
        if of_marker if before_marker else call == "open_output" and not path.startswith(".hoodie"):
            storage.before = lambda number, call, path: None
            clock.advance(DEATH_S)
            meanwhile()

    storage.before = before


def data_files(storage: MemoryStorage) -> set[str]:
    return {o.path for o in storage.list_objects("") if not o.path.startswith(".hoodie/") and ".hoodie_partition" not in o.path}


def named_files(table: Table) -> set[str]:
    table.refresh()
    return {path for s in table.state.every_slice() for path in s.paths}


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def started(request: pytest.FixtureRequest) -> tuple[MemoryStorage, FaultyStorage, ManualClock]:
    clock = ManualClock()
    inner = MemoryStorage(clock=clock)
    create(inner, clock, type=request.param)
    first = open_table(inner, clock, "first")
    write(first, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    write(first, [("a", "p", 2, "y"), ("c", "p", 2, "y")])
    return inner, FaultyStorage(inner), clock


def test_a_write_that_was_rolled_back_while_its_writer_slept(started):
    inner, slow, clock = started
    undone: list[str] = []
    asleep_before_file(slow, clock, lambda: undone.extend(roll_back_dead(open_table(inner, clock, "cleaner"))))
    table = open_table(slow, clock, "sleeper")
    write(table, [("a", "p", 3, "z"), ("d", "q", 3, "z")])
    assert len(undone) == 1
    assert ("a", "p", 3, "z") in contents(table)
    assert data_files(inner) == named_files(table)
    assert {o.path for o in inner.list_objects(INDEX_FOLDER)} <= {index_path(path) for path in named_files(table)}
    assert list(inner.list_objects(".hoodie/.temp")) == []


@pytest.mark.parametrize("before_marker", [True, False], ids=["marker-stays", "marker-is-gone"])
def test_a_late_file_of_a_write_that_a_restore_undid_does_not_wait_for_archival(started, before_marker):
    """Its writer dies before it can delete the file.

    To other readers the timeline begins with the first write without a savepoint.
    """
    inner, slow, clock = started
    keeper = open_table(inner, clock, "keeper")
    saved = create_savepoint(keeper, keeper.state.completed_writes()[0].instant).instant

    def restore_and_die_later() -> None:
        restore_to_savepoint(open_table(inner, clock, "keeper"), saved)

        def die(number: int, call: str, path: str) -> None:
            if call == "list_objects" and path.startswith(".hoodie/.temp"):
                raise SimulatedCrash

        slow.before = die

    asleep_before_file(slow, clock, restore_and_die_later, before_marker=before_marker)
    with pytest.raises(SimulatedCrash):
        write(open_table(slow, clock, "sleeper"), [("a", "p", 3, "late")])
    table = open_table(inner, clock, "cleaner")
    assert data_files(inner) > named_files(table)
    write(open_table(inner, clock, "other"), [("b", "q", 5, "w")])
    roll_back_dead(table)
    if not before_marker:
        clock.advance(table.options[TASK_MAX_LIFETIME_S] + 1)
        assert len(archive(table)[1].deleted) == 1
    assert archive(table)[1].deleted == ()
    assert data_files(inner) == named_files(table)
    assert seen_by_others(inner, clock) == contents(table) == [("a", "p", 1, "x"), ("b", "q", 5, "w")]


def test_a_clustering_that_was_taken_over_while_its_runner_slept(started):
    inner, slow, clock = started
    table = open_table(slow, clock, "sleeper")
    before = contents(table)
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    asleep_before_file(slow, clock, lambda: cluster(open_table(inner, clock, "other")))
    with pytest.raises(TransactionRolledBack):
        cluster(table)
    assert contents(table) == before
    assert data_files(inner) == named_files(table)


def test_files_of_clustering_attempts_that_died_do_not_stay_behind_the_commit(started):
    """They carry the instant of the clustering: readers of the timeline alone would take them for committed."""
    inner, _, clock = started
    table = open_table(inner, clock, "other")
    before = contents(table)
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})

    def die(tasks):
        assert [cluster_group(task, inner) for task in tasks]
        raise SimulatedCrash

    for number in range(2):
        with pytest.raises(SimulatedCrash):
            run_clustering(open_table(inner, clock, f"dies {number}"), run=die)
        clock.advance(DEATH_S)
    assert cluster(table) is not None
    assert data_files(inner) == named_files(table)
    assert contents(table) == before == seen_by_others(inner, clock)


def test_a_clustering_that_was_taken_over_leaves_the_files_of_the_later_attempt(started):
    """The runner that lost tries to commit after the later attempt has written its files."""
    inner, _, clock = started
    table, other = open_table(inner, clock, "sleeper"), open_table(inner, clock, "other")
    before = contents(table)
    instant = schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    lost = _begin_clustering(table, instant, table.options)
    stats = [stat for task in lost.tasks for stat in cluster_group(task, inner).stats]
    clock.advance(DEATH_S)
    other.refresh()

    def run(tasks):
        results = [cluster_group(task, inner) for task in tasks]
        with pytest.raises(TransactionRolledBack, match="was taken over by other"):
            _commit_clustering(lost, stats, [])
        delete_lost_attempt(table, instant, lost.attempt, stats)
        return results

    assert run_clustering(other, run=run).instant == instant
    assert contents(table) == before == seen_by_others(inner, clock)
    assert data_files(inner) == named_files(table)


def test_an_attempt_that_completed_keeps_its_files_where_the_state_is_older(started):
    inner, _, clock = started
    table, stale = open_table(inner, clock, "runner"), open_table(inner, clock, "stale")
    before = contents(table)
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    attempts = []

    def run(tasks):
        attempts.append(table.state.sequence)
        return [cluster_group(task, inner) for task in tasks]

    done = run_clustering(table, run=run)
    assert done is not None
    assert stale.state.sequence < attempts[0]
    delete_lost_attempt(stale, done.instant, attempts[0], done.stats)
    assert contents(table) == before


def test_a_clustering_that_was_taken_over_is_not_undone_by_who_lost_it(started):
    """Found by the simulator: the runner whose attempt had ended failed, and rolled the living attempt of another one back."""
    inner, _, clock = started
    table, other = open_table(inner, clock, "sleeper"), open_table(inner, clock, "other")
    before = contents(table)
    instant = schedule_clustering(table, {"tideline.clustering.min.input.files": 1})

    def fail(tasks):
        stats = [cluster_group(task, inner) for task in tasks]
        clock.advance(DEATH_S)
        other.refresh()
        _begin_clustering(other, instant, other.options)
        raise StorageError(f"the disk is gone after {len(stats)} file group(s)")

    with pytest.raises(StorageError):
        run_clustering(table, run=fail)
    record = table.refresh().actions[instant]
    assert (record.state, record.writer_id, record.fenced_by) == (State.INFLIGHT, "other", "")
    assert data_files(inner) == named_files(table), "what the lost attempt wrote is gone"
    clock.advance(DEATH_S)
    assert cluster(other).instant == instant
    assert contents(table) == before
    assert data_files(inner) == named_files(table)


def test_who_knows_that_another_one_completed_its_clustering_fails_with_its_own_error(started):
    """Found by a history: it was told that the instant is completed, and left its files to others."""
    inner, _, clock = started
    table, other = open_table(inner, clock, "sleeper"), open_table(inner, clock, "other")
    before = contents(table)
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})

    def fail(tasks):
        clock.advance(DEATH_S)
        other.refresh()
        cluster(other)
        stats = [cluster_group(task, inner) for task in tasks]
        table.refresh()
        raise StorageError(f"the disk is gone after {len(stats)} file group(s)")

    with pytest.raises(StorageError, match="the disk is gone"):
        run_clustering(table, run=fail)
    assert contents(table) == before
    assert data_files(inner) == named_files(table)


def test_a_compaction_that_was_taken_over_while_its_runner_slept():
    clock = ManualClock()
    inner = MemoryStorage(clock=clock)
    create(inner, clock, type=TableType.MOR)
    slow = FaultyStorage(inner)
    table = open_table(slow, clock, "sleeper")
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 2, "y")])
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})

    def run(runner: Table, storage: MemoryStorage | FaultyStorage) -> object:
        return run_compaction(runner, run=lambda tasks: [compact_slice(task, storage) for task in tasks])

    asleep_before_file(slow, clock, lambda: run(open_table(inner, clock, "other"), inner))
    with pytest.raises(TransactionRolledBack):
        run(table, slow)
    assert contents(table) == [("a", "p", 2, "y")]
    assert data_files(inner) == named_files(table)


def test_a_compaction_does_not_complete_while_a_later_attempt_runs():
    """The plan is in flight and unfenced, but another executor's."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, "sleeper")
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 2, "y")])
    instant = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    taken: list[str] = []

    def die(tasks):
        taken.extend(compact_slice(task, storage).path for task in tasks)
        raise SimulatedCrash

    def run(tasks):
        stats = [compact_slice(task, storage) for task in tasks]
        clock.advance(DEATH_S)
        with pytest.raises(SimulatedCrash):
            run_compaction(open_table(storage, clock, "other"), run=die)
        return stats

    with pytest.raises(TransactionRolledBack, match="was taken over"):
        run_compaction(table, run=run)
    record = table.refresh().actions[instant]
    assert (record.state, record.writer_id) == (State.INFLIGHT, "other")
    assert set(taken) <= data_files(storage), "files of the later attempt stay"
    clock.advance(DEATH_S)
    assert compact(open_table(storage, clock, "third")).instant == instant
    assert contents(table) == [("a", "p", 2, "y")]
    assert data_files(storage) == named_files(table)


@pytest.mark.parametrize("error", [VerificationFailed, StorageError])
@pytest.mark.parametrize("ending", ["restored", "taken over"])
def test_a_compaction_that_fails_when_its_plan_is_no_longer_its_own(error, ending):
    """Found by a history: a restore took the plan back, late results did not fit it, and nobody took their files away."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table, other = open_table(storage, clock, "sleeper"), open_table(storage, clock, "other")
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    write(table, [("a", "p", 2, "y"), ("b", "q", 2, "y")])
    kept = create_savepoint(table).instant
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})

    def fail(tasks):
        stats = [compact_slice(task, storage) for task in tasks[:1]]
        clock.advance(DEATH_S)
        other.refresh()
        restore_to_savepoint(other, kept) if ending == "restored" else compact(other)
        stats += [compact_slice(task, storage) for task in tasks[1:]]
        if error is StorageError:
            raise StorageError(f"the disk is gone after {len(stats)} file group(s)")
        return stats[1:]

    with pytest.raises(error):
        run_compaction(table, run=fail)
    assert [row[2] for row in contents(open_table(storage, clock, "reader"))] == [2, 2]
    assert list(table.refresh().pending()) == []
    assert data_files(storage) == named_files(table)


def test_a_compaction_that_fails_tells_its_own_failure_though_the_log_cannot_be_read():
    clock = ManualClock()
    inner = MemoryStorage(clock=clock)
    create(inner, clock, type=TableType.MOR)
    storage = FaultyStorage(inner)
    table = open_table(storage, clock)
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 2, "y")])
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})

    def down(number: int, call: str, path: str) -> None:
        raise StorageError("the store is away")

    def fail(tasks):
        storage.before = down
        return []

    with pytest.raises(VerificationFailed):
        run_compaction(table, run=fail)
    storage.before = lambda number, call, path: None
    assert [a.action for a in table.refresh().pending()] == [Action.COMPACTION]
