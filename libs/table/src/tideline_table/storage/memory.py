"""Storage in memory: for tests and for the simulator. Same contract as the real ones."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import BinaryIO

import pyarrow as pa

from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import ObjectExists, ObjectNotFound, UnsafePath
from tideline_table.storage.port import Folder, ObjectStat, checked_path


class MemoryStorage:
    """`Storage` in a dictionary."""

    def __init__(self, root: str = "memory:/table", clock: Clock | None = None) -> None:
        self._root = root
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.RLock()

    @property
    def root(self) -> str:
        """See `Storage.root`."""
        return self._root

    def read(self, path: str) -> bytes:
        """See `Storage.read`."""
        return self._get(path)[0]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See `Storage.read_range`."""
        return self._get(path)[0][start : start + length]

    def stat(self, path: str) -> ObjectStat:
        """See `Storage.stat`."""
        content, modified = self._get(path)
        return ObjectStat(path, len(content), modified)

    def put(self, path: str, data: bytes) -> None:
        """See `Storage.put`."""
        with self._lock:
            self._objects[checked_path(path)] = (bytes(data), self._clock.now())

    def put_if_absent(self, path: str, data: bytes) -> None:
        """See `Storage.put_if_absent`."""
        with self._lock:
            if checked_path(path) in self._objects:
                raise ObjectExists(path)
            self._objects[path] = (bytes(data), self._clock.now())

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """See `ConditionalStorage.read_versioned`."""
        content, _ = self._get(path)
        return content, _entity_tag(content)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        """See `ConditionalStorage.put_if_version`."""
        with self._lock:
            there = self._objects.get(checked_path(path))
            if version != (_entity_tag(there[0]) if there is not None else ""):
                return False
            self._objects[path] = (bytes(data), self._clock.now())
            return True

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        with self._lock:
            self._objects.pop(checked_path(path), None)

    def delete_below(self, folder: str) -> None:
        """See `Storage.delete_below`."""
        if not checked_path(folder):
            raise UnsafePath("an empty folder name", expected="a folder below the root")
        for found in list(self.list_objects(folder)):
            self.delete(found.path)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Storage.list_objects`."""
        start = f"{checked_path(prefix)}/" if prefix else ""
        with self._lock:
            found = [ObjectStat(p, len(c), m) for p, (c, m) in self._objects.items() if p.startswith(start) and p > after]
        yield from sorted(found, key=lambda s: s.path)

    def list_folder(self, path: str) -> Folder:
        """See `Storage.list_folder`."""
        start = f"{path}/" if path else ""
        folders: set[str] = set()
        objects: list[ObjectStat] = []
        for found in self.list_objects(path):
            head, _, rest = found.path[len(start) :].partition("/")
            if rest:
                folders.add(head)
            else:
                objects.append(found)
        return Folder(tuple(sorted(folders)), tuple(objects))

    def open_input(self, path: str) -> pa.NativeFile:
        """See `Storage.open_input`."""
        return pa.BufferReader(self._get(path)[0])

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.open_output`."""
        checked_path(path)
        sink = _KeptBytes()
        yield sink
        self.put(path, sink.getvalue())

    def _get(self, path: str) -> tuple[bytes, datetime]:
        with self._lock:
            try:
                return self._objects[checked_path(path)]
            except KeyError:
                raise ObjectNotFound(path) from None


def _entity_tag(content: bytes) -> str:
    """As object stores make it: equal contents have equal ones."""
    return hashlib.sha256(content).hexdigest()


class _KeptBytes(io.BytesIO):
    """A buffer whose content outlives `close`: Arrow's Parquet writer closes its sink."""

    def close(self) -> None:
        return None
