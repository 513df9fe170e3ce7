"""The storage port: the operations that the engine needs from a disk or an object store, and what errors of a disk mean for it."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Protocol

import pyarrow as pa

from tideline_table.errors import ObjectNotFound, StorageError, StorageFull, StorageRefused, UnsafePath


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """An object: its path relative to the storage root, size and modification time (UTC)."""

    path: str
    size_bytes: int
    modified: datetime


UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)
"""The modification time of an object that a record names, with its size, and that the storage was not asked for."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One level of a listing: the names of sub-folders and the objects directly in the folder, both sorted."""

    folders: tuple[str, ...]
    objects: tuple[ObjectStat, ...]


class Storage(Protocol):
    """Objects addressed by paths relative to one root; `checked_path` rejects paths that leave it.

    Errors: `ObjectNotFound` for a missing object, `ObjectExists` from `put_if_absent`, `StorageError` for failures that may be
    temporary (a put may have taken effect), `StorageRefused` if the store refused and nothing changed, `UnsafePath` for a path that
    leaves the root. An object becomes visible completely or not at all. Reads and listings see completed writes at once.
    """

    @property
    def root(self) -> str:
        """The root as an absolute URI without a trailing slash, for example `file:/data/trips`."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of the object."""
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end of the object."""
        ...

    def stat(self, path: str) -> ObjectStat:
        """Return size and modification time."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object. It is durable when the call returns."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object. Of concurrent callers exactly one succeeds, the others get `ObjectExists`. Durable when it returns.

        The existing object may stem from an earlier attempt of the caller whose reply was lost; to find out, read it back.
        """
        ...

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the content of the object and an identifier of this version. Objects with equal contents may have equal ones."""
        ...

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        """Replace the object if it still has that version (empty: create it if there is none). Return False if it does not.

        Of concurrent callers that name one version exactly one succeeds; callers of `put` and `delete` are not kept out. An earlier
        attempt of the caller whose reply was lost also causes False; to find out, read the object back.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete the object. A missing object is no error, and object stores do not report it."""
        ...

    def delete_below(self, folder: str) -> None:
        """Delete all objects below a folder, and the folder itself where folders exist. A missing folder is no error."""
        ...

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """Yield all objects below the folder `prefix` at any depth whose path is greater than `after`, in path order."""
        ...

    def list_folder(self, path: str, after: str = "") -> Folder:
        """Return one level of the folder, of that what has a path greater than `after`. A missing folder is an empty one."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Open the object for random access by Arrow readers."""
        ...

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a sink for a new object, which becomes visible, complete and durable, when the context ends without an error."""
        ...


def exists(storage: Storage, path: str) -> bool:
    """Return whether an object exists at `path`, by one request. Raises `StorageError` if the storage does not answer."""
    try:
        storage.stat(path)
    except ObjectNotFound:
        return False
    return True


def holds(storage: Storage, path: str, content: bytes) -> bool:
    """Return whether the object at `path` exists and equals `content`, by one request."""
    try:
        return storage.read(path) == content
    except ObjectNotFound:
        return False


def entity_tag(content: bytes) -> str:
    """Return an identifier of a version of an object by its content."""
    return hashlib.sha256(content).hexdigest()


def checked_path(path: str) -> str:
    """Return `path` if it is relative and stays below the root. Otherwise raise `UnsafePath`."""
    if path.startswith("/") or "\x00" in path or "\\" in path:
        raise UnsafePath(f"path {path!r}", expected="a relative path with '/' between its parts")
    parts = path.split("/")
    if ".." in parts or "." in parts or ("" in parts and path != ""):
        raise UnsafePath(f"path {path!r}", expected="a path without '.', '..' or empty parts")
    return path


def checked_folder(path: str) -> str:
    """Return `path` if it is a folder below the root. Otherwise raise `UnsafePath`."""
    if not checked_path(path):
        raise UnsafePath("an empty folder name", expected="a folder below the root")
    return path


FREE_SPACE = "free space there, then retry; tideline plan clean and tideline run clean work on a full disk"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def refused_write(error: OSError, place: str) -> StorageRefused | None:
    """Return the error for a write to `place` that the system rejected, None if it may be temporary or have taken effect."""
    if error.errno in _FULL:
        return StorageFull(f"{error.strerror} while writing {place}", expected="free space, inodes and quota", remedy=FREE_SPACE)
    if error.errno in _REFUSED:
        return StorageRefused(
            f"{error.strerror} while writing {place}",
            expected="a place that this user can write to",
            remedy="check the mount options and permissions",
        )
    return None


def failed_access(error: OSError, place: str) -> StorageError:
    """Return the error for any other disk failure at `place`. A write may have taken effect."""
    return StorageError(f"{error.strerror or error} at {place}", remedy="check the disk and its permissions, then retry")


def place_of(path: str, root: object) -> str:
    """Return the place of an object, for messages."""
    return f"{path!r} below {str(root)!r}"


@contextmanager
def writing(path: str, root: object = None) -> Iterator[None]:
    """Translate operating system errors while a file that is not visible yet is written to `path`, below `root` if there is one."""
    try:
        yield
    except OSError as error:
        place = path if root is None else place_of(path, root)
        failed = refused_write(error, place) or failed_access(error, place)
        failed.changed_nothing = True
        raise failed from error
