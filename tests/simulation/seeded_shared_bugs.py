"""Protections of shared tables, switched off one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.simulation.sabotage import sabotage
from tests.simulation.world import World

from tideline_locks import HudiPeerLock
from tideline_locks.errors import LeaseLost, LockUnreachable
from tideline_locks.peer_lock import HeldLease
from tideline_table.transaction import SharedTimeline, conflict, shared_timeline, write
from tideline_table.transaction.adoption import ListedTimeline


def _list_alone(timeline: SharedTimeline) -> None:
    timeline.refresh()
    timeline._listed = ListedTimeline.read(timeline.storage)


def _no_conflict(own: Any, state: Any, inserted_since: Any) -> None:
    return None


def _whoever_has_it(state: Any, instant: str) -> None:
    return None


def _held_by_its_own_word(lease: HeldLease) -> bool:
    return True


def _held_however_late(lease: HeldLease) -> bool:
    try:
        lease._lease.renew()
    except (LeaseLost, LockUnreachable):
        return False
    return True


@contextmanager
def _unlocked(lock: HudiPeerLock) -> Iterator[Any]:
    class Nobody:
        def is_held(self) -> bool:
            return True

    with nullcontext(Nobody()) as held:
        yield held


def _at_once(timeline: SharedTimeline, draft: Any) -> None:
    return None


def _none_late(listed: Any, state: Any) -> list[str]:
    return []


SHARED_BUGS: dict[str, Callable[[World], Any]] = {
    "what Hudi did is not adopted": sabotage((SharedTimeline, "_adopt", _list_alone)),
    "no conflicts with what was adopted": sabotage((write, "find_conflict", _no_conflict)),
    "commits of what Hudi rolled back": sabotage(
        (SharedTimeline, "_check_begun", _at_once),
        (conflict, "check_still_own", _whoever_has_it),
        (write, "check_still_own", _whoever_has_it),
    ),
    "lock not looked at before a step": sabotage((HeldLease, "is_held", _held_by_its_own_word)),
    "lock held by an answer that came late": sabotage((HeldLease, "is_held", _held_however_late)),
    "Hudi's lock ignored": sabotage((HudiPeerLock, "_held", _unlocked)),
    "late files of what was rolled back stay": sabotage((shared_timeline, "late_files", _none_late)),
}
"""Name → the protection that it takes away."""
