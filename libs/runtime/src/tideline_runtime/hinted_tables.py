"""The tables that events named since the last tick took them."""

from __future__ import annotations

import threading

MOST_TABLES = 10_000
"""Most tables that are noted. Tables beyond this number wait for the next visit of all tables."""


class HintedTables:
    """Uids of tables that may have changed. Thread-safe: a watcher adds them, a tick takes them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._uids: dict[str, None] = {}

    def add(self, uid: str) -> None:
        """Note a table."""
        with self._mutex:
            if len(self._uids) < MOST_TABLES:
                self._uids[uid] = None

    def take(self) -> list[str]:
        """Return the noted tables, the longest noted first, and forget them."""
        with self._mutex:
            taken, self._uids = list(self._uids), {}
        return taken
