"""Updates wait for a clustering with priority while another process may run it, and never lose a row to it, whichever process
goes first."""

from datetime import timedelta

import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import contents as rows_in
from tests.unit.table.tables import create, open_table, rows_of, write

from tideline_table.action import delete_partitions, roll_back_dead, run_clustering, write_rows
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.clock import ManualClock
from tideline_table.config import CLUSTERING_PRIORITY_LAPSE_S, PRIORITY_WAIT_S
from tideline_table.coordination import Heartbeat
from tideline_table.coordination.heartbeat import heartbeat_path
from tideline_table.errors import ClockSkew, ClusteringFirst, WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType, summarise
from tideline_table.writer import Operation

LAPSE_S, WAIT_S = CLUSTERING_PRIORITY_LAPSE_S.default, PRIORITY_WAIT_S.default
ALIVE = {"hoodie.client.heartbeat.interval_in_ms": 60_000}
"""As it is by default: the lapse is longer than a heartbeat may be missing."""
NO_RETRY = {"tideline.write.conflict.retries": 0}
BEFORE = [(f"k{n}", "p", 1, "x") for n in range(3)]
UPDATE = ("k0", "p", 2, "update")
AFTER = [UPDATE, *BEFORE[1:]]


class WatchedClock(ManualClock):
    """Something happens whenever another process sleeps."""

    def __init__(self):
        super().__init__()
        self.slept, self.happens = 0.0, lambda: None

    def sleep(self, duration_s):
        super().sleep(duration_s)
        self.slept += duration_s
        self.happens()


class Place:
    """A table with three small files in a partition and a clustering of them that has priority."""

    def __init__(self, table_type):
        self.clock = WatchedClock()
        self.storage = MemoryStorage(clock=self.clock)
        create(self.storage, self.clock, type=table_type)
        self.table, self.service = self.open("w"), self.open("service")
        for row in BEFORE:
            write(self.table, [row])
        self.schedule()

    def open(self, writer, **options):
        return open_table(self.storage, self.clock, writer, **ALIVE, **options)

    def schedule(self):
        self.service.refresh()
        self.plan = schedule_clustering(self.service, {"tideline.clustering.yields": 0, "tideline.clustering.min.input.files": 1})
        assert self.service.state.has_priority(self.plan)

    def cluster(self, meanwhile=lambda: None):
        def run(tasks):
            done = [cluster_group(task, self.storage) for task in tasks]
            meanwhile()
            return done

        self.service.refresh()
        return run_clustering(self.service, self.plan, run=run)

    def end_of_plan(self):
        return self.open("reader").state.actions[self.plan].state

    def contents(self):
        return rows_in(self.open("reader"))

    def problems(self):
        self.service.refresh()
        return summarise(self.service).health.problems


@pytest.fixture(params=[TableType.COW, TableType.MOR], ids=lambda t: t.value)
def place(request):
    return Place(request.param)


def update(place, heard=None, **options):
    return write_rows(
        place.table,
        rows_of([UPDATE]),
        Operation.UPSERT,
        options=NO_RETRY | options,
        on_conflict=lambda conflict, _: heard.append(conflict) if heard is not None else None,
        parallelism=1,
    )


def test_an_update_waits_until_the_clustering_is_done_and_needs_no_retry_for_it(place):
    heard = []

    def runs_late():
        if place.clock.slept >= LAPSE_S / 2:
            place.clock.happens = lambda: None
            place.cluster()

    place.clock.happens = runs_late
    committed = update(place, heard)
    assert (committed.attempts, [type(c) for c in heard], heard[0].with_instant) == (2, [ClusteringFirst], place.plan)
    assert LAPSE_S / 2 <= place.clock.slept < LAPSE_S / 2 + 10
    assert place.end_of_plan() is State.COMPLETED
    assert place.contents() == AFTER


def test_partitions_are_deleted_behind_it_too(place):
    place.clock.happens = lambda: place.clock.slept < 60 or place.end_of_plan() is State.COMPLETED or place.cluster()
    delete_partitions(place.table, ["p"], options=NO_RETRY)
    assert place.clock.slept >= 60
    assert place.end_of_plan() is State.COMPLETED
    assert place.contents() == []


def test_one_that_lives_is_waited_for_as_long_as_the_options_say(place):
    def beats():
        place.storage.put(heartbeat_path(place.plan), b"")

    def meanwhile():
        place.clock.happens = beats
        with pytest.raises(ClusteringFirst, match="was waited for") as told:
            update(place)
        assert (told.value.with_instant, "tideline run clustering" in told.value.remedy) == (place.plan, True)
        assert PRIORITY_WAIT_S.key in told.value.expected

    assert WAIT_S > LAPSE_S
    assert place.cluster(meanwhile).instant == place.plan
    assert WAIT_S <= place.clock.slept < WAIT_S + 5
    assert place.contents() == BEFORE
    update(place)
    assert place.contents() == AFTER


def test_the_wait_is_one_for_all_attempts_and_0_does_without(place):
    with pytest.raises(ClusteringFirst, match="was waited for"):
        update(place, **{PRIORITY_WAIT_S.key: 20, "tideline.write.conflict.retries": 10})
    slept_s = place.clock.slept
    assert 20 <= slept_s < 25
    with pytest.raises(ClusteringFirst, match="waited for 0 s"):
        update(place, **{PRIORITY_WAIT_S.key: 0})
    assert place.clock.slept == slept_s


def test_the_wait_is_one_for_all_clusterings_that_a_write_meets(place):
    plans = [place.plan]

    def one_behind_the_other():
        if place.clock.slept >= 6 * len(plans) and len(plans) < 10:
            assert place.cluster().instant == plans[-1]
            place.schedule()
            plans.append(place.plan)

    place.clock.happens = one_behind_the_other
    heard = []
    with pytest.raises(ClusteringFirst, match="was waited for") as told:
        update(place, heard, **{PRIORITY_WAIT_S.key: 20})
    assert [conflict.with_instant for conflict in heard] == plans
    assert told.value.with_instant == plans[-1]
    assert len(plans) > 2
    assert 20 <= place.clock.slept < 25


def test_one_that_nobody_runs_loses_its_priority_and_then_yields(place):
    committed = update(place)
    assert committed.attempts == 2
    assert place.clock.slept == pytest.approx(LAPSE_S, abs=5)
    place.clock.advance(timedelta(days=30).total_seconds())
    roll_back_dead(place.service)
    slept_s = place.clock.slept
    assert update(place).attempts == 1
    assert place.clock.slept == slept_s
    with pytest.raises(WriteConflict, match="was written by"):
        place.cluster()
    assert place.end_of_plan() is State.ROLLED_BACK
    assert place.contents() == AFTER


def test_whoever_runs_it_has_its_priority_again(place):
    update(place)
    place.clock.advance(LAPSE_S)

    def meanwhile():
        with pytest.raises(ClusteringFirst):
            update(place, **{PRIORITY_WAIT_S.key: 10})

    with pytest.raises(WriteConflict):
        place.cluster(meanwhile)
    assert place.contents() == AFTER


@pytest.mark.parametrize("change", ["upsert", "delete", "insert_overwrite", "delete_partition"])
def test_what_passed_a_clustering_that_seemed_dead_is_never_lost(place, change):
    """Its heartbeat was late, not gone: it comes to its commit, priority or not, and yields."""

    def meanwhile():
        place.storage.delete(heartbeat_path(place.plan))
        place.clock.advance(LAPSE_S + 1)
        if change == "delete_partition":
            assert delete_partitions(place.table, ["p"], options=NO_RETRY).attempts == 1
        else:
            done = write_rows(place.table, rows_of([UPDATE]), Operation(change), options=NO_RETRY, parallelism=1)
            assert done.attempts == 1

    with pytest.raises(WriteConflict):
        place.cluster(meanwhile)
    assert place.end_of_plan() is State.ROLLED_BACK
    assert place.contents() == {"upsert": AFTER, "delete": BEFORE[1:], "insert_overwrite": [UPDATE]}.get(change, [])


def test_a_machine_whose_clock_is_ahead_passes_nobody(place):
    ahead = ManualClock(place.clock.now())
    ahead.advance(LAPSE_S + 1)
    fast = open_table(place.storage, ahead, "fast", **ALIVE)
    with pytest.raises(ClockSkew):
        write(fast, [UPDATE], **NO_RETRY, **{PRIORITY_WAIT_S.key: 0})
    place.clock.advance(LAPSE_S + 1)
    write(fast, [UPDATE], **NO_RETRY, **{PRIORITY_WAIT_S.key: 0})
    assert place.contents() == AFTER


def test_a_write_that_found_it_lapsed_stays_with_that(place, monkeypatch):
    """Another process runs it while the write is under way: it yields, the write's files are not lost."""
    place.clock.advance(LAPSE_S + 1)
    stage, beating = place.table.timeline.append, []

    def append(*arguments, **more):
        if place.table.state.pending_clusterings() and place.table.state.last_instant > place.plan and not beating:
            beating.append(Heartbeat(place.storage, place.plan, place.table.options))
            beating[0].__enter__()
        return stage(*arguments, **more)

    monkeypatch.setattr(place.table.timeline, "append", append)
    try:
        assert update(place).attempts == 1
        assert beating
    finally:
        beating[0].stop()


def test_with_reject_it_is_a_conflict_at_once(place):
    rejects = {"tideline.clustering.update.strategy": "reject"}
    with pytest.raises(ClusteringFirst, match="goes first") as told:
        update(place, **rejects)
    assert place.clock.slept == 0
    assert "waited" not in told.value.found
    place.clock.advance(2 * LAPSE_S)
    with pytest.raises(ClusteringFirst):
        update(place, **rejects)


def test_health_names_it_with_the_repair(place):
    assert place.problems() == ()
    place.clock.advance(LAPSE_S)
    (problem,) = place.problems()
    assert place.plan in problem
    assert "no executor ran it since 2026-01-01" in problem
    assert "updates of its 3 file group(s) wait" in problem
    assert problem.endswith("run: tideline run clustering PATH")
    heard = []
    place.cluster(lambda: heard.extend(place.problems()))
    assert heard == []
    assert place.problems() == ()


def test_health_names_the_service_that_ends_what_died(place):
    def meanwhile():
        place.storage.delete(heartbeat_path(place.plan))
        place.clock.advance(LAPSE_S)
        (problem,) = place.problems()
        assert "shows no heartbeat" in problem
        assert problem.endswith("run: tideline run clustering PATH")
        assert roll_back_dead(place.service) == [], "rollback would not end it"

    place.cluster(meanwhile)
