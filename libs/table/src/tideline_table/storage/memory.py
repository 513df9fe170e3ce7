"""Storage in memory for tests and the simulator, with the same contract as the other adapters."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import BinaryIO

import pyarrow as pa

from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import ObjectExists, ObjectNotFound
from tideline_table.storage.port import Folder, ObjectStat, checked_folder, checked_path, entity_tag


class MemoryStorage:
    """`Storage` in a dictionary."""

    def __init__(self, root: str = "memory:/table", clock: Clock | None = None) -> None:
        self._root = root
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.RLock()

    @property
    def root(self) -> str:
        return self._root

    def read(self, path: str) -> bytes:
        return self._get(path)[0]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._get(path)[0][start : start + length]

    def stat(self, path: str) -> ObjectStat:
        content, modified = self._get(path)
        return ObjectStat(path, len(content), modified)

    def put(self, path: str, data: bytes) -> None:
        with self._lock:
            self._objects[checked_path(path)] = (bytes(data), self._clock.now())

    def put_if_absent(self, path: str, data: bytes) -> None:
        with self._lock:
            if checked_path(path) in self._objects:
                raise ObjectExists(path)
            self._objects[path] = (bytes(data), self._clock.now())

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        content, _ = self._get(path)
        return content, entity_tag(content)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        with self._lock:
            there = self._objects.get(checked_path(path))
            if version != (entity_tag(there[0]) if there is not None else ""):
                return False
            self._objects[path] = (bytes(data), self._clock.now())
            return True

    def delete(self, path: str) -> None:
        with self._lock:
            self._objects.pop(checked_path(path), None)

    def delete_below(self, folder: str) -> None:
        checked_folder(folder)
        for found in list(self.list_objects(folder)):
            self.delete(found.path)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        start = f"{checked_path(prefix)}/" if prefix else ""
        with self._lock:
            found = [ObjectStat(p, len(c), m) for p, (c, m) in self._objects.items() if p.startswith(start) and p > after]
        yield from sorted(found, key=lambda s: s.path)

    def list_folder(self, path: str, after: str = "") -> Folder:
        start = f"{path}/" if path else ""
        folders: set[str] = set()
        objects: list[ObjectStat] = []
        for found in self.list_objects(path, after):
            head, _, rest = found.path[len(start) :].partition("/")
            if rest:
                folders |= {head} if start + head > after else set()
            else:
                objects.append(found)
        return Folder(tuple(sorted(folders)), tuple(objects))

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._get(path)[0])

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
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


class _KeptBytes(io.BytesIO):
    """A buffer that keeps its content after `close`, because Arrow's Parquet writer closes its sink."""

    def close(self) -> None:
        return None
