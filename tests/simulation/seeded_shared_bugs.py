"""Protections of shared tables, switched off one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.simulation.sabotage import sabotage
from tests.simulation.world import World

from tideline_locks import ProviderHudiLock
from tideline_locks.hudi_table_lock import HeldLease
from tideline_table.action import decision
from tideline_table.action.write import transaction as write
from tideline_table.coordination import SharedTimeline, conflict
from tideline_table.coordination.shared import follower
from tideline_table.coordination.shared.follower import LogFollower
from tideline_table.hudi.listing import ListedTimeline


def _list_alone(log: LogFollower) -> None:
    log.replica.refresh()
    log.listed = ListedTimeline.read(log.replica.storage, log.replica.log.format)


def _no_conflict(own: Any, state: Any, inserted_since: Any) -> None:
    return None


def _whoever_has_it(state: Any, instant: str) -> None:
    return None


def _held_by_its_own_word(lease: HeldLease) -> bool:
    return True


@contextmanager
def _unlocked(lock: ProviderHudiLock) -> Iterator[Any]:
    class Nobody:
        def is_held(self) -> bool:
            return True

    with nullcontext(Nobody()) as held:
        yield held


def _at_once(timeline: SharedTimeline, draft: Any) -> None:
    return None


def _none_late(listed: Any, state: Any) -> list[str]:
    return []


def _nobody_writes(state: Any) -> None:
    return None


def _nobody_waits(state: Any) -> None:
    return None


def _look_away(timeline: SharedTimeline, held: Any, own: str = "") -> None:
    return None


SHARED_BUGS: dict[str, Callable[[World], Any]] = {
    "what Hudi did is not adopted": sabotage((LogFollower, "adopt", _list_alone)),
    "no conflicts with what was adopted": sabotage((write, "find_conflict", _no_conflict)),
    "commits of what Hudi rolled back": sabotage(
        (SharedTimeline, "_check_begun", _at_once),
        (conflict, "check_still_own", _whoever_has_it),
        (write, "check_still_own", _whoever_has_it),
    ),
    "lock not looked at before a step": sabotage((HeldLease, "is_held", _held_by_its_own_word)),
    # 1,000 histories did not show that a late reply to a renewal is no lock: `test_shared_stops.py` tests it.
    "Hudi's lock ignored": sabotage((ProviderHudiLock, "hold", _unlocked)),
    "plan over inflight": sabotage((decision, "write_of_hudi", _nobody_writes)),
    "plan on probation": sabotage((decision, "why_stopped", _nobody_waits)),
    "missed writer without a lock": sabotage((SharedTimeline, "_watch_lock", _look_away)),
    "late files of what was rolled back stay": sabotage((follower, "late_files", _none_late)),
}
"""Name → the protection that it takes away."""
