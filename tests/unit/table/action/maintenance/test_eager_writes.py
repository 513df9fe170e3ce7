"""A write of Apache Hudi without a heartbeat file, as a job with eager cleaning makes it: nobody takes it for dead for an hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.plans import schedule_clustering
from tests.unit.table.action.maintenance.test_leave import SMALL
from tests.unit.table.shared import opened, put, shared_table

from tideline_locks import open_hudi_lock
from tideline_table.action import leave, maintain
from tideline_table.action.decision import TableService
from tideline_table.action.maintenance.cancel import cancel_plan
from tideline_table.action.maintenance.verdict import Outcome, Rules, judge
from tideline_table.clock import ManualClock
from tideline_table.coordination import may_live
from tideline_table.coordination.heartbeat import heartbeat_path
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import State, next_instant
from tideline_table.storage import Storage, StorageWrapper
from tideline_table.table import FindingKind, Table, findings_of
from tideline_table.writer.marker import MarkerType, create_marker

ONLY_ROLLBACK = Rules(services=frozenset({TableService.ROLLBACK}))
QUARTER_S = 900.0
BEATS: dict[str, Any] = {"hoodie.client.heartbeat.interval_in_ms": 60_000}


def _eager_write(table: Table, storage: Storage, clock: ManualClock) -> str:
    """Begin one; after a quarter of an hour it writes its last marker."""
    put(table, [("a", "p", 1, "1")])
    instant = next_instant(clock.now(), table.state.last_instant)
    for ending in ("commit.requested", "inflight"):
        storage.put(f".hoodie/{instant}.{ending}", b"")
    clock.advance(QUARTER_S)
    create_marker(storage, instant, "p/a-0_0-0-0_1.parquet", MarkerType.CREATE)
    return instant


def _plan_clustering_as_hudi(table: Table, storage: Storage, clock: ManualClock) -> str:
    plan = schedule_clustering(table, SMALL)
    assert plan is not None
    content = storage.read(f".hoodie/{plan}.replacecommit.requested")
    cancel_plan(table, plan)
    clock.advance(60)
    instant = next_instant(clock.now(), table.state.last_instant)
    storage.put(f".hoodie/{instant}.replacecommit.requested", content)
    return instant


def _dead(table: Table) -> list[str]:
    return [found.text for found in findings_of(table) if found.kind is FindingKind.DEAD_WRITER]


def _state_after_maintenance(storage: Storage, clock: ManualClock, instant: str) -> tuple[Table, State]:
    table = opened(storage, clock, **BEATS)
    maintain(table, ONLY_ROLLBACK)
    return table, table.refresh().actions[instant].state


def test_maintenance_and_findings_leave_it_alone_for_an_hour_after_its_last_marker() -> None:
    shared, storage, clock = shared_table()
    instant = _eager_write(shared, storage, clock)
    for _ in range(4):
        table, state = _state_after_maintenance(storage, clock, instant)
        assert state is State.INFLIGHT
        assert _dead(table) == []
        assert judge(table, TableService.ROLLBACK, ONLY_ROLLBACK).outcome is Outcome.NOT_DUE
        clock.advance(QUARTER_S)
    clock.advance(1)
    assert instant in _dead(table)[0]
    assert _state_after_maintenance(storage, clock, instant)[1] is State.ROLLED_BACK


def test_a_dead_write_is_left_to_the_jobs_of_apache_hudi_for_half_as_long_again() -> None:
    """Two processes that rolled it back at the same time: the job of Apache Hudi failed."""
    shared, storage, clock = shared_table()
    put(shared, [("a", "p", 1, "1")])
    instant = next_instant(clock.now(), shared.state.last_instant)
    storage.put(heartbeat_path(instant), b"")
    for ending in ("commit.requested", "inflight"):
        storage.put(f".hoodie/{instant}.{ending}", b"")
    clock.advance(121)
    table, state = _state_after_maintenance(storage, clock, instant)
    assert (state, len(_dead(table))) == (State.INFLIGHT, 1)
    clock.advance(60)
    assert _state_after_maintenance(storage, clock, instant)[1] is State.ROLLED_BACK


class _Counting(StorageWrapper):
    """Notes the kinds of requests."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked: list[str] = []

    def on_request(self, kind: str, path: str) -> None:
        del path
        self.asked.append(kind)


def test_to_ask_costs_one_request_and_lists_the_markers_only_of_a_write_that_is_an_hour_old() -> None:
    shared, storage, clock = shared_table()
    instant = _eager_write(shared, storage, clock)
    table, counting = opened(storage, clock, **BEATS), _Counting(storage)
    record = table.timeline.view().actions[instant]

    def ask() -> tuple[bool, list[str]]:
        counting.asked.clear()
        return may_live(counting, record, clock, table.options), list(counting.asked)

    assert ask() == (True, ["stat"])
    clock.advance(3 * QUARTER_S + 10)
    assert ask() == (True, ["stat", "list_objects"])
    storage.put(heartbeat_path(instant), b"")
    assert ask() == (True, ["stat"])
    clock.advance(QUARTER_S)
    assert ask() == (False, ["stat"])
    storage.delete(heartbeat_path(instant))
    assert ask() == (False, ["stat", "list_objects"])


def test_the_table_is_not_left_before_and_the_error_names_it_and_the_time() -> None:
    shared, storage, clock = shared_table()
    instant = _eager_write(shared, storage, clock)
    ends = clock.now() + timedelta(hours=1)
    clock.advance(QUARTER_S)
    with pytest.raises(WriteConflict, match=instant) as refused:
        leave(opened(storage, clock, **BEATS), open_hudi_lock)
    assert f"{ends:%Y-%m-%d %H:%M:%S} UTC" in str(refused.value)
    assert opened(storage, clock, **BEATS).refresh().actions[instant].state is State.INFLIGHT
    clock.advance(4 * QUARTER_S)
    assert leave(opened(storage, clock, **BEATS), open_hudi_lock).rolled_back == [instant]
    assert not opened(storage, clock, **BEATS).capabilities.keeps_log


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_clustering_of_hudi_without_a_heartbeat_does_not_hinder_to_leave_and_stays(is_begun: bool) -> None:
    shared, storage, clock = shared_table()
    for key in "ab":
        put(shared, [(key, "p", 1, "1")])
    instant = _plan_clustering_as_hudi(shared, storage, clock)
    if is_begun:
        storage.put(f".hoodie/{instant}.replacecommit.inflight", b"")
    clock.advance(QUARTER_S)
    left = leave(opened(storage, clock, **BEATS), open_hudi_lock)
    assert (left.rolled_back, left.cancelled, left.run) == ([], [], [])
    after = opened(storage, clock)
    assert not after.capabilities.keeps_log
    assert [a.instant for a in after.refresh().pending() if a.is_clustering] == [instant]
