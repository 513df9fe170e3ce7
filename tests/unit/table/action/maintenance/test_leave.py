"""Tables that are returned to the writers of Apache Hudi."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.simulation.faults import SAMPLE_STEP
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import QUIET, contents, new_table

from tideline_locks import open_hudi_lock
from tideline_table.action import leave, run_clustering
from tideline_table.clock import ManualClock
from tideline_table.coordination.shared.leaving import remove_tideline
from tideline_table.errors import StorageError, TableFrozen, TidelineError, UnsupportedTable, WriteConflict
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Bare
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.storage import MemoryStorage, Storage, StorageWrapper
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation

ROWS = [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")]
BEATS: dict[str, Any] = {"hoodie.client.heartbeat.interval_in_ms": 60_000}
ONE = {"hoodie.compact.inline.max.delta.commits": 1}
SMALL = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9}


def _as_hudi_has_it(storage: Storage, clock: ManualClock) -> Table:
    """The table as it is now, which has nothing of Tideline."""
    assert [o.path for o in storage.list_objects(".hoodie") if ".tideline" in o.path or ".heartbeat/" in o.path] == []
    table = opened(storage, clock, "after")
    assert not table.capabilities.keeps_log
    assert [a.instant for a in table.state.pending()] == []
    return table


@pytest.mark.parametrize("table_type", list(TableType))
def test_a_shared_table_is_returned_with_its_rows(table_type: TableType) -> None:
    table, storage, clock = shared_table(table_type)
    put(table, ROWS)
    put(table, [("a", "p", 2, "2")])
    rows = contents(table)
    leave(table, open_hudi_lock)
    assert contents(_as_hudi_has_it(storage, clock)) == rows


@pytest.mark.parametrize("table_type", list(TableType))
def test_an_exclusive_table_is_returned_with_its_rows(table_type: TableType) -> None:
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage(clock=clock), type=table_type)
    put(table, ROWS)
    put(table, [("a", "p", 2, "2")])
    rows = contents(table)
    leave(table, open_hudi_lock)
    assert contents(_as_hudi_has_it(storage, clock)) == rows


def test_it_can_be_shared_again_and_left_again() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    leave(table, open_hudi_lock)
    again = share_table(_as_hudi_has_it(storage, clock), SHARING, open_hudi_lock)
    put(again, [("a", "p", 2, "2")])
    rows = contents(again)
    leave(again, open_hudi_lock)
    after = _as_hudi_has_it(storage, clock)
    assert contents(after) == rows
    leave(after, open_hudi_lock)
    assert contents(_as_hudi_has_it(storage, clock)) == rows


def test_a_clustering_of_a_shared_table_is_cancelled() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS[:1])
    put(table, ROWS[1:2], Operation.INSERT)
    clustering = schedule_clustering(table, SMALL)
    assert clustering
    rows = contents(table)
    assert leave(table, open_hudi_lock).cancelled == [clustering]
    assert contents(_as_hudi_has_it(storage, clock)) == rows


def test_plans_of_an_exclusive_table_are_cancelled() -> None:
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage(clock=clock), type=TableType.MOR)
    put(table, ROWS)
    put(table, [("a", "p", 2, "2")])
    compaction = schedule_compaction(table, ONE)
    put(table, [("a", "p", 3, "3")])
    rows = contents(table)
    assert leave(table, open_hudi_lock).cancelled == [compaction]
    assert contents(_as_hudi_has_it(storage, clock)) == rows


def _begin(table: Table) -> str:
    def draft(state: TableState) -> Draft:
        return Draft(table.timeline.mint(state), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare())

    return table.timeline.append(draft).instant


def test_a_living_write_is_waited_for_and_a_dead_one_is_rolled_back() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    begun = _begin(table)
    with pytest.raises(WriteConflict, match=begun):
        leave(opened(storage, clock), open_hudi_lock)
    assert opened(storage, clock).capabilities.keeps_log
    clock.advance(3600)
    assert leave(opened(storage, clock, **BEATS), open_hudi_lock).rolled_back == [begun]
    assert len(contents(_as_hudi_has_it(storage, clock))) == len(ROWS)


def test_writers_that_have_it_open_stop() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    other = opened(storage, clock, "other")
    leave(table, open_hudi_lock)
    with pytest.raises((TableFrozen, UnsupportedTable)):
        put(other, [("a", "p", 2, "2")])
    with pytest.raises(TableFrozen, match="tideline leave"):
        _begin(other)
    assert sorted(contents(_as_hudi_has_it(storage, clock))) == ROWS


def test_a_suspended_writer_of_a_table_that_was_exclusive_stops() -> None:
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage(clock=clock))
    put(table, ROWS)
    sleeper = opened(storage, clock, "sleeper")
    begun = _begin(sleeper)
    clock.advance(3600)
    leave(opened(storage, clock, **BEATS), open_hudi_lock)
    with pytest.raises(TidelineError, match="tideline leave"):
        sleeper.timeline.append(lambda _: Draft(begun, Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", Bare()))
    assert sorted(contents(_as_hudi_has_it(storage, clock))) == ROWS


class _Dies(StorageWrapper):
    """Refuses every change from the n-th on."""

    def __init__(self, inner: Storage, changes: int) -> None:
        super().__init__(inner)
        self.left = changes

    def on_request(self, kind: str, path: str) -> None:
        if kind not in {"put", "put_if_absent", "delete", "delete_below", "put_if_version", "open_output"}:
            return
        self.left -= 1
        if self.left < 0:
            raise StorageError(f"the process died before {kind} {path}")


@pytest.mark.parametrize("is_shared", [True, False])
def test_any_step_can_be_the_last_of_a_process(*, is_shared: bool) -> None:
    steps = 0
    while _survives(steps, is_shared=is_shared):
        steps += SAMPLE_STEP
    assert steps >= 10


def _survives(steps: int, *, is_shared: bool) -> bool:
    """Whether a process that dies after so many changes did not end; a later one has to."""
    clock = ManualClock()
    inner = MemoryStorage(clock=clock)
    table, _, _ = new_table(clock, inner, type=TableType.COW if is_shared else TableType.MOR)
    if is_shared:
        table = share_table(table, SHARING, open_hudi_lock)
    put(table, ROWS)
    put(table, [("a", "p", 2, "2")])
    put(table, [("d", "p", 2, "2")], Operation.INSERT)
    planned = schedule_clustering(table, SMALL) if is_shared else schedule_compaction(table, ONE)
    assert planned
    rows = contents(table)
    dying = _Dies(inner, steps)
    mortal = Table.open(inner.root, options=dict(QUIET), clock=clock, writer_id="mortal", storage=dying, hudi_lock=open_hudi_lock)
    try:
        leave(mortal, open_hudi_lock)
        died = False
    except TidelineError:
        died = True
    clock.advance(2 * 3600)
    leave(opened(inner, clock, **BEATS), open_hudi_lock)
    assert contents(_as_hudi_has_it(inner, clock)) == rows
    return died


def test_an_upgraded_table_is_returned_as_it_is() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    remove_tideline(storage)
    assert sorted(contents(_as_hudi_has_it(storage, clock))) == ROWS


def test_a_table_to_which_apache_hudi_added_a_vector_is_not_written_and_can_be_left() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS[:1])
    put(table, ROWS[1:2], Operation.INSERT)
    clustering = schedule_clustering(table, SMALL)
    done = put(peer_of(storage, clock), ROWS[2:])
    path = f".hoodie/{done.instant}.commit"
    document = json.loads(storage.read(path))
    schema = json.loads(document["extraMetadata"]["schema"])
    vector = {"type": "fixed", "name": "emb", "size": 8, "logicalType": "vector", "dimension": 2, "elementType": "FLOAT"}
    schema["fields"].append({"name": "emb", "type": ["null", vector], "default": None})
    document["extraMetadata"]["schema"] = json.dumps(schema)
    storage.put(path, json.dumps(document).encode())
    table = opened(storage, clock)
    rows = contents(table)
    assert len(rows) == len(ROWS)
    files = {o.path for o in storage.list_objects("") if ".tideline" not in o.path}
    for refused in (lambda: put(table, [("e", "p", 1, "1")]), lambda: run_clustering(table, clustering)):
        with pytest.raises(UnsupportedTable, match="type VECTOR"):
            refused()
    assert {o.path for o in storage.list_objects("") if ".tideline" not in o.path} == files
    assert leave(opened(storage, clock), open_hudi_lock).cancelled == [clustering]
    assert contents(_as_hudi_has_it(storage, clock)) == rows
