"""Decisions ask storage nothing: whatever they need from it is gathered before, on the same state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.archives import FEW, live
from tests.unit.table.shared import SHARING, opened, put
from tests.unit.table.tables import DEATH_S, cluster, compact, contents, create, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import archive, create_savepoint, delete_savepoint, restore_to_savepoint, roll_back_dead, run_clean
from tideline_table.action.decision import TableService
from tideline_table.action.planned_run import begin_attempt
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination import ActiveTimeline
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import CLUSTER, Action
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation


class Sealed(MemoryStorage):
    """A storage that fails the test if a thread asks it anything while that thread decides."""

    deciding = threading.local()

    def __getattribute__(self, name: str) -> Any:
        if name not in ("root", "deciding") and not name.startswith("_") and getattr(Sealed.deciding, "now", False):
            raise AssertionError(f"{name} was asked in a decision")
        return super().__getattribute__(name)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Action]:
    """The actions decided so far; storage is sealed during each decision."""
    found: list[Action] = []
    append = ActiveTimeline.append

    def sealed(timeline: ActiveTimeline, decide: Callable[..., Any], *facts: Any, **more: Any) -> Any:
        def alone(*given: Any) -> Any:
            Sealed.deciding.now = True
            try:
                draft = decide(*given)
            finally:
                Sealed.deciding.now = False
            found.append(draft.action)
            return draft

        return append(timeline, alone, *facts, **more)

    monkeypatch.setattr(ActiveTimeline, "append", sealed)
    return found


def place(*, shared: bool, kind: TableType) -> tuple[Table, ManualClock]:
    clock = ManualClock()
    storage = Sealed(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock)
    if not shared:
        return table, clock
    share_table(table, SHARING, open_hudi_lock)
    return opened(storage, clock), clock


@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("shared", [False, True])
def test_writes_services_and_recovery(decided: list[Action], kind: TableType, *, shared: bool) -> None:
    table, clock = place(shared=shared, kind=kind)
    for n, key in enumerate("abcd"):
        put(table, [(key, "p", n, "1")], Operation.INSERT)
    other = opened(table.storage, clock, "other")
    mine = WriteTransaction.begin(table.timeline, table.lock, "INSERT", table.write_action())
    put(other, [("e", "p", 1, "1")])
    mine.roll_back()
    put(table, [("a", "p", 9, "2"), ("n", "q", 9, "2")])
    plan = schedule_clustering(table, {"hoodie.clustering.plan.strategy.small.file.limit": 10**9})
    assert plan is not None
    begin_attempt(other, plan, TableService.CLUSTERING, CLUSTER, other.options)
    with pytest.raises(WriteConflict, match="being run by other"):
        cluster(table)
    clock.advance(DEATH_S)
    assert cluster(table) is not None
    if kind is TableType.MOR:
        put(table, [("a", "p", 10, "3")])
        assert compact(table) is not None
    dead = WriteTransaction.begin(other.timeline, other.lock, "INSERT", table.write_action())
    clock.advance(DEATH_S)
    assert roll_back_dead(table) == [dead.instant]
    put(table, [("a", "p", 11, "4")])
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1}) is not None
    assert run_clean(table) is not None
    assert contents(table)[0] == ("a", "p", 11, "4")
    assert {Action.REPLACE_COMMIT, Action.ROLLBACK, Action.CLEAN, table.write_action()} <= set(decided)
    assert (Action.COMPACTION in decided) == (kind is TableType.MOR)


def test_savepoints_and_restore(decided: list[Action]) -> None:
    table, _ = place(shared=False, kind=TableType.COW)
    write(table, [("a", "p", 1, "1")])
    kept = create_savepoint(table)
    write(table, [("a", "p", 2, "2")])
    restore_to_savepoint(table, kept.instant)
    assert contents(table) == [("a", "p", 1, "1")]
    delete_savepoint(table, kept.instant)
    assert decided.count(Action.SAVEPOINT) == 2
    assert decided.count(Action.RESTORE) == 3


def test_archival(decided: list[Action]) -> None:
    table, _ = place(shared=False, kind=TableType.COW)
    live(table)
    done, *_ = archive(table, FEW)
    assert done is not None
    assert decided.count(Action.ARCHIVAL) == 3


def test_the_seal_holds(decided: list[Action]) -> None:
    table, _ = place(shared=False, kind=TableType.COW)
    with pytest.raises(AssertionError, match="stat was asked"):
        table.timeline.append(lambda _: table.storage.stat("x"))  # type: ignore[arg-type,return-value]
    assert decided == []
