"""Which completed writes of Apache Hudi prove a writer that does not take the common lock (docs/design/observed-tables.md).

Two proofs, and no guess: a write that completes while this process holds the lock, and a write that completes after the last
change of the lock's object while no writer holds it. No other write is accused. The reverse, that a writer was seen with the lock,
ends a probation.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from tideline_table.coordination.lock import HudiTableLock
from tideline_table.coordination.shared.adoption import is_of_a_job
from tideline_table.errors import MALFORMED, ObjectNotFound
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.hudi.writer_traces import name_of
from tideline_table.log.sharing import HudiLockKind
from tideline_table.log.state import TableState
from tideline_table.storage import Storage

LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
"""Of Hudi's `StorageBasedLockProvider`: changed when the lock is taken, renewed and released; it stays (format reference 13.3)."""
_RESOLUTION = timedelta(seconds=2)
"""Object stores tell times in seconds, and two objects of one second are in no order."""


def may_be_watched(state: TableState) -> bool:
    """Return whether a write of Apache Hudi is pending, which may complete while this process holds the lock."""
    return any(a.is_by_hudi and a.action in WRITE_ACTIONS for a in state.pending())


def new_completions(listed: ListedTimeline, state: TableState) -> frozenset[str]:
    """Return the writes that the timeline shows as completed and that the log does not: Apache Hudi completed them."""
    done = (i.time for i in listed.timeline.instants if i.action in WRITE_ACTIONS and i.state is State.COMPLETED)
    return frozenset(at for at in done if (known := state.actions.get(at)) is None or (known.is_pending and known.is_by_hudi))


def untraced_completions(storage: Storage, listed: ListedTimeline, state: TableState) -> frozenset[str]:
    """Return the new completions of a listing that are younger than the last change of the lock's object, which was free then.

    The object is read after the listing was made: a writer with the lock changed it before it completed and after. Three
    requests, only if there is a new completion. All times are the store's.
    """
    found = new_completions(listed, state) - listed.unwritten
    if not found or state.sharing is None or state.sharing.lock is not HudiLockKind.STORAGE:
        return frozenset()
    changed = _free_since(storage)
    if changed is None:
        return frozenset()
    times = {i.time: listed.time_of(i) for i in listed.timeline.instants if i.time in found and i.state is State.COMPLETED}
    return frozenset(at for at, time in times.items() if time > changed + _RESOLUTION)


def locked_completions(lock: HudiTableLock, storage: Storage, listed: ListedTimeline, state: TableState) -> frozenset[str]:
    """Return the new completions of a listing if all are of one writer, and a client of Hudi took the lock since Tideline had it.

    Asked on probation only, before this process takes the lock. Reads each commit file and the lock's trace. Raises
    `ObjectNotFound` if a file is gone, and errors of the lock.
    """
    found = new_completions(listed, state) - listed.unwritten if state.probation else frozenset()
    if not found or not lock.was_taken():
        return frozenset()
    names = set()
    for instant in (i for i in listed.timeline.instants if i.time in found and i.state is State.COMPLETED):
        path = listed.timeline.path(instant)
        content = storage.read(path)
        metadata = CommitMetadata.from_bytes(content, path)
        if is_of_a_job(instant.action, metadata.operation):
            names.add(name_of(metadata.extra, content))
    return found if len(names) == 1 else frozenset()


def _free_since(storage: Storage) -> datetime | None:
    """Return the time of the last change of the lock's object if no writer held the lock after it, None if that is not known."""
    with suppress(ObjectNotFound, *MALFORMED):
        before = storage.stat(LOCK_OBJECT).modified
        content: Any = json.loads(storage.read(LOCK_OBJECT))
        if content["expired"] is not True and datetime.fromtimestamp(int(content["validUntil"]) / 1000, UTC) > before:
            return None  # a writer that died behind its commit, or one that releases it now
        if storage.stat(LOCK_OBJECT).modified == before:
            return before
    return None
