"""The storage port: what the engine asks of a disk or an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Protocol

import pyarrow as pa

from tideline_table.errors import ObjectNotFound, UnsafePath


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """One object: its path relative to the storage root, size and modification time (UTC)."""

    path: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Folder:
    """One level of a listing: names of sub-folders and the objects directly inside, both sorted."""

    folders: tuple[str, ...]
    objects: tuple[ObjectStat, ...]


class Storage(Protocol):
    """Bytes by path below one root. All paths are relative; `checked_path` holds them inside.

    Errors: `ObjectNotFound` where something must be there, `ObjectExists` from `put_if_absent`, `StorageError` for failures that
    may pass (a put that fails so may have taken effect), `StorageRefused` where the store refused and nothing changed, `UnsafePath` for a
    path that leaves the root. An object becomes visible whole or not at all; reads and listings follow writes at once.
    """

    @property
    def root(self) -> str:
        """The root as an absolute URI without a trailing slash, for example `file:/data/trips`."""
        ...

    def read(self, path: str) -> bytes:
        """The whole object."""
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` (fewer at the end of the object)."""
        ...

    def stat(self, path: str) -> ObjectStat:
        """Size and modification time."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace; durable when it returns."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create; exactly one of many racing callers wins, the others get `ObjectExists`. Durable when it returns.

        What exists may be one's own, from an attempt whose answer got lost: whoever has to know reads it back.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove; that nothing was there is no error, and object stores do not tell."""
        ...

    def delete_below(self, folder: str) -> None:
        """Remove every object below a folder, and the folder itself where folders exist; an absent one is no error."""
        ...

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """All objects below the folder `prefix` at any depth, in order of path, those with path > `after`."""
        ...

    def list_folder(self, path: str) -> Folder:
        """One level; an absent folder is an empty one."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Random access for Arrow readers."""
        ...

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A sink for a new object that appears, durable and whole, when the context ends without an error."""
        ...


class ConditionalStorage(Storage, Protocol):
    """Storage that also replaces an object only if it is still the one that was seen: object stores, by entity tags."""

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """The whole object and what tells this version of it from any other."""
        ...

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        """Replace the object if it has that version still (empty: create it if there is none); False when it has not.

        False may be said of one's own put, from an attempt whose answer got lost: whoever has to know reads it back.
        """
        ...


def exists(storage: Storage, path: str) -> bool:
    """Whether there is an object at `path`. One request; raises `StorageError` where the storage does not say."""
    try:
        storage.stat(path)
    except ObjectNotFound:
        return False
    return True


def holds(storage: Storage, path: str, content: bytes) -> bool:
    """Whether there is an object at `path` and it is `content`. One request."""
    try:
        return storage.read(path) == content
    except ObjectNotFound:
        return False


def checked_path(path: str) -> str:
    """`path` if it is relative and stays below the root, otherwise `UnsafePath`."""
    if path.startswith("/") or "\x00" in path or "\\" in path:
        raise UnsafePath(f"path {path!r}", expected="a relative path with '/' between its parts")
    parts = path.split("/")
    if any(part in ("..", ".") for part in parts) or ("" in parts and path != ""):
        raise UnsafePath(f"path {path!r}", expected="a path without '.', '..' or empty parts")
    return path
