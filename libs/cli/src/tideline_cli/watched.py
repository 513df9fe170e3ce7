"""Storage that counts the files that a command reads and deletes, for its progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tideline_table.hudi import is_log_path
from tideline_table.storage import Storage, StorageWrapper

_COUNTED = frozenset({"read", "read_range", "open_input", "delete"})


class WatchedStorage(StorageWrapper):
    """Calls `seen` once for each data file, when the file is first opened or deleted. Thread-safe.

    With `every`, the object also calls `seen` once for each other path of a request: metadata that is read or written, folders
    that are listed.
    """

    only: frozenset[str] | None = None
    """The data files to count; None for all."""

    def __init__(self, inner: Storage, seen: Callable[[], None], *, every: bool = False) -> None:
        super().__init__(inner)
        self._seen = seen
        self._every = every
        self._paths: set[str] = set()
        self._lock = threading.Lock()

    def on_request(self, kind: str, path: str) -> None:
        """Count a data file that is opened or deleted for the first time."""
        is_data = not path.startswith(".hoodie/") and (path.endswith(".parquet") or is_log_path(path))
        if not self._every and not (is_data and kind in _COUNTED):
            return
        if self.only is not None and path not in self.only:
            return
        with self._lock:
            if path in self._paths:
                return
            self._paths.add(path)
        self._seen()
