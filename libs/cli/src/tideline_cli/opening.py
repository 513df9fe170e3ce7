"""Opens tables for commands that write, and for commands whose progress bar counts the files that they read or write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tideline_cli.progress import Progress
from tideline_locks import open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_table.hudi import is_log_path
from tideline_table.storage import Storage, StorageWrapper, open_storage
from tideline_table.table import Table


def open_readable(
    path: str, settings: Mapping[str, object] | None = None, progress: Progress | None = None, *, every: bool = False
) -> Table:
    """Open the table at `path` for reading.

    `progress` counts each data file that is read; with `every`, each file of metadata, too.

    Raises the errors of `Table.open`.
    """
    storage = None if progress is None else WatchedStorage(open_storage(path), progress.advance, every=every)
    return Table.open(path, options=settings, hudi_lock=open_hudi_lock, storage=storage)


def open_writable(
    path: str, settings: Mapping[str, object], lock_url: str = "", progress: Progress | None = None, *, every: bool = False
) -> Table:
    """Open the table at `path` and check that it can be written, before any input is read. Commits use `lock_url` if given.

    `progress` and `every` are as in `open_readable`; deleted files count, too. Raises the errors of `Table.open` and
    `Table.check_writable`, and `InvalidOption` for a lock URL that no provider supports.
    """
    table = open_readable(path, settings, progress, every=every)
    attach_lock(table, lock_url)
    # The operation itself checks whether it needs record keys.
    table.check_writable(keyed=False)
    return table


def expect_files(table: Table, progress: Progress) -> None:
    """Let `progress` count only the files that a read of the whole table opens. `table` must have been opened with `progress`."""
    paths = frozenset(path for file_slice in table.slices() for path in file_slice.paths)
    assert isinstance(table.storage, WatchedStorage)
    table.storage.only = paths
    progress.expect(len(paths))


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
        is_data = not path.startswith(".hoodie/") and (path.endswith((".parquet", ".orc")) or is_log_path(path))
        if not self._every and not (is_data and kind in _COUNTED):
            return
        if self.only is not None and path not in self.only:
            return
        with self._lock:
            if path in self._paths:
                return
            self._paths.add(path)
        self._seen()
