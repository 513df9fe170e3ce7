"""A storage around another one, for what is to be seen or counted of its requests."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

import pyarrow as pa

from tideline_table.errors import StorageError
from tideline_table.storage.port import Folder, ObjectStat, Storage


class StorageWrapper:
    """Passes all requests on to `inner`. A subclass overrides `on_request`. As thread-safe as `inner` and the override."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def on_request(self, kind: str, path: str) -> None:
        """Called before each request, with the name of the method of the port. Does nothing here."""

    @property
    def root(self) -> str:
        return self.inner.root

    def read(self, path: str) -> bytes:
        self.on_request("read", path)
        return self.inner.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self.on_request("read_range", path)
        return self.inner.read_range(path, start, length)

    def stat(self, path: str) -> ObjectStat:
        self.on_request("stat", path)
        return self.inner.stat(path)

    def put(self, path: str, data: bytes) -> None:
        self.on_request("put", path)
        self.inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.on_request("put_if_absent", path)
        self.inner.put_if_absent(path, data)

    def delete(self, path: str) -> None:
        self.on_request("delete", path)
        self.inner.delete(path)

    def delete_below(self, folder: str) -> None:
        self.on_request("delete_below", folder)
        self.inner.delete_below(folder)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        self.on_request("list_objects", prefix)
        return self.inner.list_objects(prefix, after)

    def list_folder(self, path: str, after: str = "") -> Folder:
        self.on_request("list_folder", path)
        return self.inner.list_folder(path, after) if after else self.inner.list_folder(path)

    def open_input(self, path: str) -> pa.NativeFile:
        self.on_request("open_input", path)
        return self.inner.open_input(path)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        self.on_request("open_output", path)
        return self.inner.open_output(path)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        self.on_request("read_versioned", path)
        return self.inner.read_versioned(path)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        self.on_request("put_if_version", path)
        return self.inner.put_if_version(path, data, version)


_WRITES = frozenset({"put", "put_if_absent", "put_if_version", "delete", "delete_below", "open_output"})


class ReadOnlyStorage(StorageWrapper):
    """The storage of a table in which a process may write nothing: every attempt raises `StorageError`."""

    def on_request(self, kind: str, path: str) -> None:
        if kind in _WRITES:
            raise StorageError(
                f"{kind} of {path} in a table that is observed",
                expected="reads only",
                remedy="policy mode: services, or tideline share PATH for a table that only Apache Hudi writes",
            )


class LogOnlyStorage(ReadOnlyStorage):
    """The storage of a shared table in which a process may only continue the table log, under the lock of both sides."""

    def on_request(self, kind: str, path: str) -> None:
        if not path.startswith((".hoodie/.tideline/", ".hoodie/lock", ".hoodie/.lock.crc", ".hoodie/.locks/")):
            super().on_request(kind, path)


def continues_log_only(storage: Storage) -> bool:
    """Return whether a `LogOnlyStorage` is among the wrappers of a storage."""
    while isinstance(storage, StorageWrapper):
        if isinstance(storage, LogOnlyStorage):
            return True
        storage = storage.inner
    return False


def unwrapped(storage: Storage) -> Storage:
    """Return the adapter of a disk or an object store behind all wrappers."""
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    return storage
