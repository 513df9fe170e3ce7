"""Storage calls that fail, or take effect without an answer, at every step of an operation on a table that Apache Hudi's
writers share.

The process that runs the operation lives on: it says that it is done, that it failed, or that it cannot tell. What it said is
what everybody reads, at once, after it tried again, and after a fresh process recovered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.simulation.crashes_of_shared import (
    CHANGES_ROWS,
    OPERATIONS,
    arrange,
    by_timeline_alone,
    check_sound,
    outcome,
    recover,
    start,
    upsert,
)
from tests.simulation.faults import MUTATING, FaultyStorage, fail_at, heal, sampled
from tests.unit.table.tables import contents, open_table

from tideline_locks.hudi_storage_lock import LOCK_OBJECT
from tideline_table.errors import CommitUnknown, StorageError, TidelineError
from tideline_table.table import Table

Operation = Callable[[Table], None]
OUTAGE = 8
"""Calls that fail one after the other: more than anybody tries."""
FAR = 3
"""Outages begin at every third call: each lasts over the next one's beginning."""


def live_through(operation: Operation, inject: Callable[[FaultyStorage], None], *, writes_on: bool) -> str:
    """What the operation said: `done`, `failed` or `unknown`.

    A writer that did not hear that it is done tries again; then a fresh process recovers.
    """
    done = outcome(operation)
    faulty, disk, clock = arrange(operation)
    table = start(operation, faulty, clock)
    inject(faulty)
    said, allowed = "done", [list(done.after)]
    try:
        operation(table)
    except CommitUnknown:
        said, allowed = "unknown", done.allowed
    except TidelineError:
        said, allowed = "failed", [list(done.before)]
    heal(faulty)
    now = contents(open_table(disk, clock))
    assert now in allowed, f"it said: {said}"
    assert by_timeline_alone(disk, clock) == now, "the timeline is the commit point"
    if operation in CHANGES_ROWS and said != "done":
        operation(table)
        now = list(done.after)
    recover(disk, clock)
    check_sound(disk, clock, [now], writes_on=writes_on)
    return said


def test_the_operations_do_something() -> None:
    for operation in OPERATIONS:
        done = outcome(operation)
        assert (done.before != done.after) == (operation in CHANGES_ROWS), operation
        assert len(done.mutating) >= 5, operation


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_error_at_every_call(operation: Operation) -> None:
    for number in sampled(range(len(outcome(operation).calls))):
        live_through(operation, lambda s, n=number: fail_at(s, n, 1, "before"), writes_on=number % FAR == 0)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_reply_lost_at_every_call(operation: Operation) -> None:
    """Of calls that change nothing a lost reply is an error like any other."""
    numbers = [number for number, call in enumerate(outcome(operation).calls) if call in MUTATING]
    for number in sampled(numbers):
        live_through(operation, lambda s, n=number: fail_at(s, n, 1, "after"), writes_on=number % FAR == 0)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_outage(operation: Operation, when: str) -> None:
    """Nobody hears anything for longer than anybody tries; what is sent takes effect, or does not."""
    said = {
        live_through(operation, lambda s, n=number: fail_at(s, n, OUTAGE, when), writes_on=False)
        for number in range(0, len(outcome(operation).calls), FAR)
    }
    assert "failed" in said


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", CHANGES_ROWS, ids=lambda o: o.__name__)
def test_commit_without_an_answer_is_not_told_to_have_failed(operation: Operation, when: str) -> None:
    """The completed file is there, and the storage says nothing for as long as the writer tries."""

    def silence(storage: FaultyStorage) -> None:
        def after(number: int, call: str, path: str) -> None:
            if call == "put_if_absent" and path.endswith((".commit", ".deltacommit", ".replacecommit")):
                fail_at(storage, 0, OUTAGE, when)
                raise StorageError(f"no answer about {path}")

        storage.after = after

    assert live_through(operation, silence, writes_on=True) == "unknown"


def test_commit_that_got_no_answer_is_not_sent_again_without_the_lock() -> None:
    """The put took longer than the lock lasts: whichever process holds it by now has looked, and saw no commit."""
    faulty, disk, clock = arrange(upsert)
    table = start(upsert, faulty, clock)
    sent: list[str] = []

    def outlast_the_lock(_: int, call: str, path: str) -> None:
        if call == "put_if_absent" and path.endswith(".commit"):
            sent.append(path)
            valid_until = int((clock.now() + timedelta(hours=1)).timestamp() * 1000)
            disk.put(LOCK_OBJECT, json.dumps({"expired": False, "validUntil": valid_until, "owner": "hudi"}).encode())
            raise StorageError(f"no answer about {path}")

    faulty.before = outlast_the_lock
    with pytest.raises(CommitUnknown):
        upsert(table)
    assert len(sent) == 1
    recover(disk, clock)
    check_sound(disk, clock, [list(outcome(upsert).before)])
