"""A job of Apache Hudi that completes without the common lock is noticed, and services stop on its table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.coordination.shared.test_shared_gaps import ONE, SMALL, taken_back, unlocked_job
from tests.unit.table.shared import opened, peer_of, put, shared_table
from tests.unit.table.tables import contents, new_table

from tideline_table.action import NotDue, request_clean, request_clustering, request_compaction, roll_back_dead, withdraw_plans
from tideline_table.clock import ManualClock
from tideline_table.coordination import SharedTimeline
from tideline_table.coordination.shared.adoption import missing_steps
from tideline_table.coordination.shared.lock_witness import LOCK_OBJECT
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.formats import format_to_create
from tideline_table.hudi.instant import State
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.log.state import TableState
from tideline_table.storage import MemoryStorage, ObjectStat, Storage
from tideline_table.table import FindingKind, Table, TableType, findings_of, resume_services

LATE = ("z", "p", 3, "3")


def _table() -> tuple[Storage, ManualClock]:
    table, storage, clock = shared_table(TableType.MOR)
    put(table, [("a", "p", 1, "1"), ("b", "q", 1, "1")])
    put(table, [("a", "p", 2, "2")])
    return storage, clock


def _found(table: Table) -> list[str]:
    return [found.text for found in findings_of(table) if found.kind is FindingKind.UNLOCKED_WRITER]


def _within_the_lock(table: Table, act: Callable[[], object], *, then: Callable[[], object] = lambda: None) -> None:
    """A write of `table`; `act()` happens while it has the lock and has listed the timeline, `then` before it lets the lock go."""
    timeline = table.timeline
    assert isinstance(timeline, SharedTimeline)
    take_step, mirror, acts = timeline._take_step, timeline._mirror, [act]

    def first(*arguments: object) -> None:
        for once in acts:
            once()
        acts.clear()
        take_step(*arguments)  # type: ignore[arg-type]

    def last(*arguments: object) -> object:
        entry = mirror(*arguments)  # type: ignore[arg-type]
        then()
        return entry

    timeline._take_step, timeline._mirror = first, last  # type: ignore[method-assign, assignment]
    try:
        put(table, [("o", "q", 1, "1")])
    finally:
        timeline._take_step, timeline._mirror = take_step, mirror  # type: ignore[method-assign]


def _proved(storage: Storage, clock: ManualClock) -> Table:
    """A job without the lock completes while a writer of Tideline has it. Returns the table of that writer."""
    put(unlocked_job(storage, clock), [LATE])
    complete = taken_back(storage)
    ours = opened(storage, clock, "ours")
    _within_the_lock(ours, complete)
    return ours


def test_a_write_that_completes_while_tideline_has_the_lock_is_a_proof() -> None:
    storage, clock = _table()
    ours = _proved(storage, clock)
    (write,) = ours.refresh().unlocked
    (text,) = _found(ours)
    assert write in text
    assert "Spark or Flink job (0.x)" in text
    assert "tideline share PATH --resume" in text
    again = opened(storage, clock)  # the log says it to everybody
    assert again.state.unlocked == ours.state.unlocked
    assert LATE in contents(again)


def test_a_completed_file_without_content_is_a_write_that_still_completes() -> None:
    """Apache Hudi before 1.0 creates the file and then writes it: taken as a commit of no files, it hid the rows for ever."""
    storage, clock = _table()
    put(unlocked_job(storage, clock), [LATE])
    complete = taken_back(storage)
    instant = max(a.instant for a in opened(storage, clock, "before").state.pending())
    path = f".hoodie/{instant}.deltacommit"
    ours = opened(storage, clock, "ours")
    _within_the_lock(ours, lambda: storage.put(path, b""))
    assert LATE not in contents(ours)
    for table in (ours, opened(storage, clock, "another")):
        table.timeline.heal(0.0)
        assert [a.instant for a in table.refresh().pending()] == [instant]
        assert isinstance(request_compaction(table, options=ONE), NotDue)
    clock.advance(1e6)  # its job makes no heartbeats
    assert roll_back_dead(opened(storage, clock, "recovery")) == []
    complete()
    assert LATE in contents(opened(storage, clock, "reader")), "before it is adopted"
    ours.timeline.heal(0.0)
    assert list(ours.refresh().unlocked) == [instant], "what was seen while it was empty is not forgotten"
    assert LATE in contents(opened(storage, clock))


def test_a_completed_file_that_stays_empty_delays_no_step_and_accuses_no_writer() -> None:
    storage, clock = _table()
    put(unlocked_job(storage, clock), [LATE])
    taken_back(storage)
    ours = opened(storage, clock, "ours")
    instant = max(a.instant for a in ours.state.pending())
    storage.put(f".hoodie/{instant}.deltacommit", b"")
    ours.timeline.heal(0.0)
    before = clock.monotonic_s()
    for _ in range(3):
        put(ours, [("o", "q", 1, "1")])
    assert clock.monotonic_s() == before + 3, "each of `put` is a second; no step waits for its content"
    assert list(ours.refresh().unlocked) == []
    assert instant in {a.instant for a in ours.state.pending()}


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("{}.commit.requested", "{}.inflight", "{}.commit"), [State.INFLIGHT]),
        (("{}.deltacommit.requested", "{}.deltacommit.inflight", "{}.deltacommit"), [State.INFLIGHT]),
        (("{}.replacecommit.requested", "{}.replacecommit.inflight", "{}.replacecommit"), [State.INFLIGHT]),
        (("{}.clean.requested", "{}.clean.inflight", "{}.clean"), [State.INFLIGHT]),
        (("{}.rollback.requested", "{}.rollback.inflight", "{}.rollback"), [State.INFLIGHT]),
        (("{}.restore.requested", "{}.restore.inflight", "{}.restore"), [State.INFLIGHT]),
        (("{}.compaction.requested", "{}.compaction.inflight", "{}.commit"), [State.INFLIGHT]),
        (("{}.compaction.requested",), []),
        (("{}.clean.requested",), []),
        (("{}.rollback.requested",), []),
        (("{}.deltacommit.requested",), [State.REQUESTED]),
        (("{}.replacecommit.requested",), [State.REQUESTED]),
        (("{}.commit.requested", "{}.inflight"), [State.INFLIGHT]),
    ],
    ids=lambda one: one[-1] if one and isinstance(one[0], str) else "",
)
def test_no_step_is_taken_from_a_file_that_is_not_written_yet(names: tuple[str, ...], steps: list[State]) -> None:
    """The last file is empty, those before have content."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    sizes = [*(9 for _ in names[1:]), 0]
    files = [ObjectStat(f".hoodie/{name.format('20260101000001000')}", size, at) for name, size in zip(names, sizes, strict=True)]
    assert [step.after for step in missing_steps(ListedTimeline.of(files, format_to_create(6)), TableState())] == steps


def test_who_lost_the_lock_meanwhile_says_nothing() -> None:
    storage, clock = _table()
    put(unlocked_job(storage, clock), [LATE])
    complete = taken_back(storage)
    ours = opened(storage, clock, "ours")

    def take_away() -> None:
        free = {"expired": True, "validUntil": int(clock.now().timestamp() * 1000), "owner": "another"}
        storage.put(LOCK_OBJECT, json.dumps(free).encode())

    _within_the_lock(ours, complete, then=take_away)
    assert ours.refresh().unlocked == {}


def test_writes_with_the_lock_prove_nothing() -> None:
    storage, clock = _table()
    put(peer_of(storage, clock), [LATE])
    ours = opened(storage, clock, "ours")
    ours.timeline.heal(0.0)
    _within_the_lock(ours, lambda: None)
    assert ours.refresh().unlocked == {}
    assert _found(ours) == []
    assert LATE in contents(ours)


@pytest.mark.parametrize(("after_s", "is_proof"), [(1.0, False), (10.0, True)])
def test_a_write_younger_than_the_last_change_of_a_free_lock_is_a_proof(after_s: float, is_proof: bool) -> None:
    """Object stores tell times in seconds: what is no younger than that proves nothing."""
    storage, clock = _table()
    job = unlocked_job(storage, clock)
    clock.advance(after_s)
    put(job, [LATE])
    ours = opened(storage, clock, "ours")
    ours.timeline.heal(0.0)
    assert bool(ours.state.unlocked) is is_proof


def test_a_lock_that_is_held_is_that_of_the_write() -> None:
    storage, clock = _table()
    held = {"expired": False, "validUntil": int(clock.now().timestamp() * 1000) + 3000, "owner": "job"}
    storage.put(LOCK_OBJECT, json.dumps(held).encode())
    job = unlocked_job(storage, clock)
    clock.advance(10)
    put(job, [LATE])
    clock.advance(60)
    ours = opened(storage, clock, "ours")
    ours.timeline.heal(0.0)
    assert ours.state.completed_writes()[-1].is_by_hudi
    assert ours.state.unlocked == {}


def test_services_stop_and_begin_again_when_an_operator_says_so() -> None:
    storage, clock = _table()
    assert isinstance(request_compaction(opened(storage, clock, "services"), ONE), str | NotDue)
    storage, clock = _table()
    ours = _proved(storage, clock)
    services = opened(storage, clock, "services", **ONE, **SMALL, **{"hoodie.cleaner.commits.retained": 1})
    for request in (request_compaction, request_clustering, request_clean):
        answer = request(services)
        assert isinstance(answer, NotDue)
        assert "without the lock" in answer.reason
        assert "--resume" in answer.until
    assert len(resume_services(services)) == 1
    assert resume_services(services) == ()
    assert _found(services) == []
    assert schedule_compaction(services, ONE) is not None
    assert ours.refresh().unlocked == {}
    assert LATE in contents(opened(storage, clock))


def test_a_clustering_that_nobody_began_is_withdrawn_and_a_compaction_stays() -> None:
    storage, clock = _table()
    put(unlocked_job(storage, clock), [LATE])
    complete = taken_back(storage)
    services = opened(storage, clock, "services")
    complete()
    clustering = schedule_clustering(services, SMALL)
    assert clustering is not None
    before = contents(services)
    put(unlocked_job(storage, clock), [("y", "p", 3, "3")])
    complete = taken_back(storage)
    _within_the_lock(opened(storage, clock, "ours"), complete)
    services.refresh()
    assert withdraw_plans(services) == (clustering,)
    assert withdraw_plans(services) == ()
    assert not services.refresh().is_pending(clustering)
    assert set(before) < set(contents(opened(storage, clock)))


def test_a_compaction_stays_pending_because_rows_may_lie_behind_its_plan() -> None:
    storage, clock = _table()
    services = opened(storage, clock, "services")
    compaction = schedule_compaction(services, ONE)
    assert compaction is not None
    _proved(storage, clock)
    services.refresh()
    assert withdraw_plans(services) == ()
    assert services.state.is_pending(compaction)
    assert LATE in contents(opened(storage, clock))


def test_an_exclusive_table_has_no_services_to_resume() -> None:
    clock = ManualClock()
    exclusive, _, _ = new_table(clock, MemoryStorage(clock=clock))
    with pytest.raises(UnsupportedTable, match="is not shared"):
        resume_services(exclusive)
