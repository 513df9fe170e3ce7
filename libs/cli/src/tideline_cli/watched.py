"""Counts the data files that a command reads and deletes, for its progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import pyarrow as pa

from tideline_table.storage import ConditionalStorage, Folder, ObjectStat, Storage


@dataclass(slots=True)
class WatchedStorage:
    """Passes all requests on to `inner`. Calls `seen` once for each data file: when it is first opened, or deleted. Thread-safe."""

    inner: Storage
    seen: Callable[[], None]
    only: frozenset[str] | None = None
    """The data files to count; None for all."""
    _paths: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def root(self) -> str:
        """See `Storage.root`."""
        return self.inner.root

    def read(self, path: str) -> bytes:
        """See `Storage.read`."""
        self._count(path)
        return self.inner.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See `Storage.read_range`."""
        self._count(path)
        return self.inner.read_range(path, start, length)

    def stat(self, path: str) -> ObjectStat:
        """See `Storage.stat`."""
        return self.inner.stat(path)

    def put(self, path: str, data: bytes) -> None:
        """See `Storage.put`."""
        self.inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """See `Storage.put_if_absent`."""
        self.inner.put_if_absent(path, data)

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        self._count(path)
        self.inner.delete(path)

    def delete_below(self, folder: str) -> None:
        """See `Storage.delete_below`."""
        self.inner.delete_below(folder)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Storage.list_objects`."""
        return self.inner.list_objects(prefix, after)

    def list_folder(self, path: str) -> Folder:
        """See `Storage.list_folder`."""
        return self.inner.list_folder(path)

    def open_input(self, path: str) -> pa.NativeFile:
        """See `Storage.open_input`."""
        self._count(path)
        return self.inner.open_input(path)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """See `Storage.open_output`."""
        return self.inner.open_output(path)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """See `ConditionalStorage.read_versioned`; only for such a storage."""
        return cast("ConditionalStorage", self.inner).read_versioned(path)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        """See `ConditionalStorage.put_if_version`; only for such a storage."""
        return cast("ConditionalStorage", self.inner).put_if_version(path, data, version)

    def _count(self, path: str) -> None:
        if path.startswith(".hoodie/") or not (path.endswith(".parquet") or ".log." in path):
            return
        if self.only is not None and path not in self.only:
            return
        with self._lock:
            if path in self._paths:
                return
            self._paths.add(path)
        self.seen()
