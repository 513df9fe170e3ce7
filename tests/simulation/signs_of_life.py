"""Who was alive, by what lies on the disk: nobody takes over, or undoes, what a living process works on.

A process is certainly alive as long as its transition and its heartbeats follow each other within the time after which it
counts as dead, with the heartbeat file there. The process that ends it then cannot have looked. Histories in which clocks jump
say nothing: there a fresh heartbeat may look old.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.simulation.scheduler import EPOCH, SECOND

from tideline_table.hudi.instant import Action, State
from tideline_table.log.entry import Entry

HEARTBEATS = ".hoodie/.heartbeat/"
INTERVAL_S = 31
"""Dead after 62 s: above the deadline of a healer, and short enough that many die in one history."""
_DEAD_AFTER_US = 2 * INTERVAL_S * SECOND
_REPEATABLE = frozenset({Action.CLEAN, Action.RESTORE, Action.ARCHIVAL})
"""Two that do it at once do no harm: what follows is done once or deletes what is to go."""


@dataclass(slots=True)
class _Signs:
    owner: str
    last_us: int
    was_silent: bool = False
    """For longer than the living are, once at least since its owner began; or its heartbeat was taken away."""

    def sign(self, now_us: int) -> None:
        self.was_silent |= now_us - self.last_us > _DEAD_AFTER_US
        self.last_us = now_us


class SignsOfLife:
    """Follows transitions and heartbeats."""

    def __init__(self) -> None:
        self._running: dict[str, _Signs] = {}
        self._undone_by: dict[str, str] = {}

    def beat(self, path: str, now_us: int) -> None:
        """A heartbeat was written."""
        signs = self._running.get(path.removeprefix(HEARTBEATS))
        if signs is not None:
            signs.sign(now_us)

    def ended(self, path: str) -> None:
        """A heartbeat is gone: its process ended in order, or the disk lost it."""
        signs = self._running.get(path.removeprefix(HEARTBEATS))
        if signs is not None:
            signs.was_silent = True

    def transition(self, entry: Entry, now_us: int) -> list[str]:
        """What is wrong with an entry because of who was alive."""
        found: list[str] = []
        if entry.after is not State.INFLIGHT:
            return found
        if entry.before is State.INFLIGHT and entry.action not in _REPEATABLE:
            found += self._ended_alive(entry, entry.instant, now_us)
        elif entry.action is Action.ROLLBACK:
            earlier = self._undone_by.setdefault(entry.target, entry.instant)
            if earlier != entry.instant:
                found.append(f"entry {entry.sequence} of {entry.writer_id} rolls {entry.target} back, which {earlier} does already")
            found += self._ended_alive(entry, entry.target, now_us)
        # What others go by is when it was recorded: its put may have taken long.
        recorded_us = (datetime.fromisoformat(entry.recorded) - EPOCH) // timedelta(microseconds=1)
        self._running[entry.instant] = _Signs(entry.writer_id, recorded_us)
        return found

    def forget(self, entry: Entry) -> None:
        """An entry that was never durable."""
        self._running.pop(entry.instant, None)
        if self._undone_by.get(entry.target) == entry.instant:
            del self._undone_by[entry.target]

    def _ended_alive(self, entry: Entry, instant: str, now_us: int) -> list[str]:
        signs = self._running.get(instant)
        if signs is None or signs.owner == entry.writer_id:
            return []
        signs.sign(now_us)
        if signs.was_silent:
            return []
        return [
            f"entry {entry.sequence} of {entry.writer_id} ends {instant} of {signs.owner}, which gave signs of life all the time"
        ]
