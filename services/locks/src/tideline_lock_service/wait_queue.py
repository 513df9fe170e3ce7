"""The owners that wait for locks at this instance of the service. The API shows them, so that operators see why a writer waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any


class WaitQueue:
    """The requests that wait now, by the name of the lock, in order of arrival. Used from the loop of the HTTP server only."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[str, dict[int, tuple[str, datetime]]] = {}

    @contextmanager
    def waits(self, name: str, owner: str, since: datetime) -> Iterator[None]:
        """List `owner` as waiting for `name` until the context ends."""
        number = next(self._numbers)
        self._waiting.setdefault(name, {})[number] = (owner, since)
        try:
            yield
        finally:
            queue = self._waiting[name]
            del queue[number]
            if not queue:
                del self._waiting[name]

    def has_place(self, name: str, places: int) -> bool:
        """Return whether one more request may wait for `name`: fewer wait for it than `places`, the places for all locks, are free.

        So the waiting requests of one lock take at most half of the places, those of two locks two thirds, and another lock
        always gets one.
        """
        taken = sum(map(len, self._waiting.values()))
        return len(self._waiting.get(name, ())) < places - taken

    def shown(self, name: str) -> list[dict[str, Any]]:
        """Return the waiting requests for `name`, the first to arrive first."""
        return [{"owner": owner, "since": since.isoformat()} for owner, since in self._waiting.get(name, {}).values()]
