"""The tables of a service that rest: they are not open, and most visits of all tables pass over them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tideline_runtime.looks import Looks
from tideline_runtime.policy import TablePolicy

SWEEP_S = 60.0
"""Time from the end of a visit that asks of each table whether it still rests until the next visit may be such a one. The visits in
between ask of those only of which the mirror tells news, or whose time has come."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A table that was closed because it rests: its sequence, until when it rests, and its policy then."""

    sequence: int
    until_s: float
    policy: TablePolicy


class Resting:
    """Which tables rest. Used by the thread that ticks."""

    def __init__(self) -> None:
        self._closed: dict[str, Closed] = {}
        """By base path; of the other tables that rest, this process has opened none yet."""
        self._waiting: dict[str, str] = {}
        """Base path → uid."""
        self._by_uid: dict[str, str] | None = None
        self._moved: set[str] = set()
        """The base paths of the tables that rest and of which the mirror told news that no visit has seen yet, or tells nothing."""
        self._swept: tuple[object, ...] | None = None
        """What all tables shared in the last visit of each; None: the next visit looks at each."""
        self._sweep_at_s = -math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def by_uid(self) -> Mapping[str, str]:
        """Return the base paths of the tables that rest, by uid."""
        if self._by_uid is None:
            self._by_uid = {uid: base_path for base_path, uid in self._waiting.items()}
        return self._by_uid

    def close(self, base_path: str, uid: str, closed: Closed) -> None:
        """Note that a table was closed."""
        self.keep(base_path, closed)
        self.wait(base_path, uid)

    def keep(self, base_path: str, closed: Closed) -> None:
        """Put back what `taken` returned: the table rests on."""
        self._closed[base_path] = closed

    def taken(self, base_path: str) -> Closed | None:
        """Return how a table was closed, and forget it; None for one that this process has not opened yet."""
        return self._closed.pop(base_path, None)

    def wait(self, base_path: str, uid: str) -> None:
        """Note that a table rests."""
        if self._waiting.get(base_path) != uid:
            self._waiting[base_path] = uid
            self._by_uid = None

    def wake(self, base_path: str) -> None:
        """Note that a table does not rest."""
        if self._waiting.pop(base_path, None) is not None:
            self._by_uid = None

    def look(self, base_path: str) -> None:
        """Note that a visit looks at a table, and so at all its news so far."""
        self._moved.discard(base_path)

    def untold(self, base_path: str) -> None:
        """Note that the mirror tells nothing of a table that rests: each visit looks at it."""
        self._moved.add(base_path)

    def open_once(self) -> None:
        """Have each table opened once more."""
        self._closed.clear()
        self._swept = None

    def retain(self, base_paths: Collection[str]) -> None:
        """Forget all other tables."""
        for base_path in self._waiting.keys() - base_paths:
            self.wake(base_path)
        for base_path in self._closed.keys() - base_paths:
            del self._closed[base_path]
        self._moved.intersection_update(base_paths)

    def awake(self, tables: Sequence[str], looks: Looks, now_s: float, shared: tuple[object, ...] | None) -> Sequence[str]:
        """Return those of all tables at which a visit looks; `swept` tells that it has ended.

        Each, if `shared`, what decides about all tables, is not that of the last such visit, and unless a mirror lives that tells
        all news. `shared` is None if some tables have not been opened yet, whose turn comes.
        """
        moved = looks.moved()
        if moved is None or shared is None or shared != self._swept or now_s >= self._sweep_at_s:
            self._swept = None
            return tables
        self._moved.update(moved & self._waiting.keys())

        def is_due(base_path: str) -> bool:
            closed = self._closed.get(base_path)
            return closed is not None and now_s >= min(closed.until_s, looks.audit_at_s(base_path))

        return [path for path in tables if path not in self._waiting or path in self._moved or is_due(path)]

    def swept(self, now_s: float, shared: tuple[object, ...]) -> None:
        """Note that a visit has ended that looked at all tables."""
        if self._swept is None:
            self._swept, self._sweep_at_s = shared, now_s + SWEEP_S
