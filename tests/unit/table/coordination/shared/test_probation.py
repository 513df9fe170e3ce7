"""No plan is published on a shared table until each writer of Apache Hudi was seen with the common lock."""

from __future__ import annotations

import json
import re

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.coordination.shared.test_shared_gaps import ONE, unlocked_job
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import contents, new_table

from tideline_locks import open_hudi_lock
from tideline_locks.hudi_storage_lock import LOCK_OBJECT
from tideline_table.action import NotDue, leave, request_clean, request_compaction
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import FindingKind, Table, TableType, find_writers, findings_of, resume_services, share_table

JOB = "Spark or Flink job (0.x)"
SQL = "Spark SQL (0.x)"
SQL_TRACE = {"_hoodie.spark.sql.writes.prepped": "true"}


def _shared(*writers: str) -> tuple[Storage, ManualClock]:
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage(clock=clock), type=TableType.MOR)
    put(table, [("a", "p", 1, "1")])
    put(table, [("a", "p", 2, "2")])
    share_table(table, SHARING, open_hudi_lock, writers=writers)
    return storage, clock


def _hudi_takes_the_lock(storage: Storage, clock: ManualClock) -> None:
    """What its client leaves when it takes the lock and lets it go."""
    free = {"expired": True, "validUntil": int(clock.now().timestamp() * 1000), "owner": "a-job"}
    storage.put(LOCK_OBJECT, json.dumps(free).encode())


def _write(storage: Storage, clock: ManualClock, key: str, *, locked: bool = True) -> None:
    put(peer_of(storage, clock), [(key, "p", 3, "3")])
    if locked:
        _hudi_takes_the_lock(storage, clock)


def _mirrored(storage: Storage, clock: ManualClock) -> Table:
    table = opened(storage, clock, "mirror")
    table.timeline.heal(0.0)
    return table


def _probation(table: Table) -> list[str]:
    return [found.text for found in findings_of(table) if found.kind is FindingKind.PROBATION]


def test_services_wait_until_each_writer_was_seen() -> None:
    storage, clock = _shared(JOB, SQL)
    services = opened(storage, clock, "services", **ONE)
    for request in (request_compaction, request_clean):
        answer = request(services)
        assert isinstance(answer, NotDue)
        assert answer.reason == f"probation: seen 0 of 2 writers with the lock of the table, not yet: {SQL}, {JOB}"
        assert "--resume" in answer.until
    (text,) = _probation(services)
    assert "seen 0 of 2 writers" in text
    assert "while a mirror runs" in text
    _write(storage, clock, "z")
    assert "seen 1 of 2 writers" in _mirrored(storage, clock).state.probation
    again = opened(storage, clock, "again")  # the log says it to everybody
    assert again.state.writers == {JOB: again.state.completed_writes()[-1].instant, SQL: ""}
    resume_services(again)  # an operator vouches for the other one
    assert _probation(again) == []
    assert schedule_compaction(opened(storage, clock, "services"), ONE) is not None


@pytest.mark.parametrize("locked", [True, False])
def test_a_table_without_writers_of_hudi_waits_for_the_first_one(locked: bool) -> None:
    storage, clock = _shared()
    assert _mirrored(storage, clock).state.probation == ""
    _write(storage, clock, "x")
    assert "seen 0 of 1" in _mirrored(storage, clock).state.probation, "its kind was not known before"
    _write(storage, clock, "y", locked=locked)
    mirror = _mirrored(storage, clock)
    assert (mirror.state.probation == "") is locked
    assert isinstance(request_compaction(mirror, ONE), str) is locked
    assert {row[0] for row in contents(mirror)} == {"a", "x", "y"}


def test_nobody_is_seen_where_the_trace_may_be_that_of_another_writer() -> None:
    storage, clock = _shared(JOB)
    _write(storage, clock, "x", locked=False)
    last = _last_commit(storage)
    beside = last.replace(instant := last.split("/")[1].split(".")[0], str(int(instant) + 1))
    content = {"partitionToWriteStats": {}, "extraMetadata": SQL_TRACE, "operationType": "UPSERT"}
    for suffix, text in ((".requested", ""), (".inflight", ""), ("", json.dumps(content))):
        storage.put(f"{beside}{suffix}", text.encode())
    _hudi_takes_the_lock(storage, clock)
    assert "seen 0 of 2" in _mirrored(storage, clock).state.probation


def _last_commit(storage: Storage) -> str:
    return max(o.path for o in storage.list_folder(".hoodie").objects if o.path.endswith(".deltacommit"))


def test_a_proof_against_a_writer_takes_back_that_it_was_seen() -> None:
    storage, clock = _shared(JOB)
    _write(storage, clock, "x")
    assert _mirrored(storage, clock).state.probation == ""
    job = unlocked_job(storage, clock)
    clock.advance(10)
    put(job, [("z", "p", 3, "3")])
    mirror = _mirrored(storage, clock)
    assert mirror.state.unlocked
    assert mirror.state.writers == {JOB: ""}
    resume_services(mirror)
    assert mirror.state.probation == ""


@pytest.mark.parametrize("version", [6, 9])
def test_tidelines_own_writes_before_leave_are_no_writer_of_hudi(version: int) -> None:
    """They were a writer of unknown release: whoever shared the table again waited for it for ever."""
    table, storage, clock = shared_table(TableType.MOR, version)
    put(table, [("a", "p", 1, "1")])
    leave(opened(storage, clock, "leaving"), open_hudi_lock)
    left = Table.open(storage.root, storage=storage, clock=clock)
    assert find_writers(left).writers == ()
    if version == 6:
        last = _last_commit(storage)
        content = storage.read(last)
        storage.put(last, re.sub(rb',\s*"tidelineRecord": "[^"]*"', b"", content))
        found = find_writers(left)
        assert (found.commits, [(writer.name, writer.instants) for writer in found.writers]) == (1, [(JOB, [last[8:-12]])])


def test_who_vouches_for_all_writers_needs_no_probation() -> None:
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage(clock=clock), type=TableType.MOR)
    put(table, [("a", "p", 1, "1")])
    share_table(table, SHARING, open_hudi_lock)
    _write(storage, clock, "x", locked=False)
    mirror = _mirrored(storage, clock)
    assert (mirror.state.writers, mirror.state.probation) == (None, "")
