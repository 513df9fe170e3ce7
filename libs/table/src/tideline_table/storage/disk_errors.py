"""Translation of operating system errors about files into errors of the storage port."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tideline_table.errors import StorageError, StorageFull, StorageRefused

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
