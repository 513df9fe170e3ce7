"""Storage on a local (or locally mounted) disk."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from stat import S_ISLNK
from typing import Any, BinaryIO
from urllib.parse import quote

import pyarrow as pa
import tenacity

from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError, UnsafePath
from tideline_table.storage.port import (
    Folder,
    ObjectStat,
    checked_folder,
    checked_path,
    entity_tag,
    failed_access,
    place_of,
    refused_write,
    writing,
)

_LOGGER = logging.getLogger(__name__)
STAGING = ".hoodie/.tideline/staging"
"""Folder of partially written objects. Hudi readers ignore its name, and it is on the same file system as the targets."""
_GUARD = "put-guard"
"""Name of the file beside the staging folder that `put_if_version` locks. It is no object, and its content means nothing."""
_GUARD_TURN_S = 0.01
_GUARD_DEADLINE_S = 30.0
"""Another process holds the guard for one put, so that only one that was paused or hangs exceeds this."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
"""Replies to `flock` of file systems that have no such locks."""
_MOST_MADE = 10_000
"""Folders that are remembered as durable: long-running writers make some for each commit."""
_NAME_BYTES = 255


class LocalStorage:
    """`Storage` on a folder. An object is written to the staging folder, fsynced, then linked or renamed to its path."""

    def __init__(self, root: Path, staging: str = STAGING) -> None:
        self._root = Path(os.path.abspath(root))
        self._staging = self._root / staging
        self._guard = self._staging.parent / _GUARD
        self._made: set[Path] = set()

    @property
    def root(self) -> str:
        return "file:" + quote(str(self._root), safe="/=:@+,~!$&'()*;")

    def local_path(self, path: str) -> Path:
        """Return the file of `path`. Raise `UnsafePath` for symbolic links that lead out of the root and for too long names."""
        if len(encoded := os.fsencode(checked_path(path))) > _NAME_BYTES and max(map(len, encoded.split(b"/"))) > _NAME_BYTES:
            raise UnsafePath(f"path {path!r}", expected=f"names of at most {_NAME_BYTES} bytes, the limit of file systems")
        target = self._root / path
        if not path or self._has_link(path):
            root, parent = self._root.resolve(), target.parent.resolve()
            if root not in (parent, *parent.parents):
                raise UnsafePath(f"path {path!r} leads to {parent}", expected=f"a place below {root}")
            if target.is_symlink() and root not in (found := target.resolve()).parents:
                raise UnsafePath(f"path {path!r} leads to {found}", expected=f"a place below {root}")
        return target

    def _has_link(self, path: str) -> bool:
        """Return whether a part of `path` is a symbolic link. A path without one stays below the root.

        Every request pays for this check. `Path.resolve` of the folder and of the root took most of the time of a small read.
        """
        reached = str(self._root)
        for part in path.split("/"):
            reached = f"{reached}/{part}"
            try:
                if S_ISLNK(os.lstat(reached).st_mode):
                    return True
            except OSError:
                return False  # nothing is there, and nothing below it
        return False

    def read(self, path: str) -> bytes:
        with _translated(path):
            return self.local_path(path).read_bytes()

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with _translated(path), self.local_path(path).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def stat(self, path: str) -> ObjectStat:
        with _translated(path):
            return _object_stat(path, self.local_path(path).stat())

    def put(self, path: str, data: bytes) -> None:
        target = self.local_path(path)
        with _translated(path):
            staged = self._write_staged(path, target, data)
            try:
                self._install(staged, path, target)
            except BaseException:
                _discard(staged)
                raise

    def put_if_absent(self, path: str, data: bytes) -> None:
        target = self.local_path(path)
        with _translated(path):
            staged = self._write_staged(path, target, data)
            try:
                # link(2) fails if the name exists, on every POSIX file system. The content of the losing writer is never visible.
                self._name(path, target, os.link, staged)
            except FileExistsError:
                # An earlier attempt of the caller may have created the name and failed to sync it.
                _sync_folder(target.parent)
                raise ObjectExists(path) from None
            finally:
                _discard(staged)
            _sync_folder(target.parent)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        content = self.read(path)
        return content, entity_tag(content)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        """Other processes wait meanwhile, by a lock of the operating system that ends with the process."""
        with _translated(path), self._guarded(path):
            try:
                there = entity_tag(self.read(path))
            except ObjectNotFound:
                there = ""
            if there != version:
                return False
            self.put(path, data)
            return True

    def delete(self, path: str) -> None:
        """Also deletes Hadoop's checksum file: a stale one makes Spark reject a later file of that name.

        Tideline's folder goes with its last file, which the release of a lock leaves in a table that was returned.
        """
        target = self.local_path(path)
        with _translated(path):
            (target.parent / f".{target.name}.crc").unlink(missing_ok=True)
            target.unlink(missing_ok=True)
        if target.parent == self._guard.parent:
            with contextlib.suppress(OSError):  # it has files
                target.parent.rmdir()

    def delete_below(self, folder: str) -> None:
        target = self.local_path(checked_folder(folder))
        with _translated(folder):
            # Other processes may delete and create objects meanwhile: a folder with a new one stays.
            for parent, folders, names in os.walk(target, topdown=False, onerror=_unless_changed):
                links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
                for name in (*names, *links):
                    Path(parent, name).unlink(missing_ok=True)
                try:
                    os.rmdir(parent)
                except OSError as error:
                    _unless_changed(error)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        yield from sorted((s for s in self._walk(prefix) if s.path > after), key=lambda s: s.path)

    def list_folder(self, path: str, after: str = "") -> Folder:
        folders: list[str] = []
        objects: list[ObjectStat] = []
        within = f"{path}/" if path else ""
        with _translated(path):
            try:
                found = os.scandir(self.local_path(path) if path else self._root)
                last = after.removeprefix(within)
                entries = sorted([e for e in found if e.name > last] if after else list(found), key=attrgetter("name"))
            except (FileNotFoundError, NotADirectoryError):
                return Folder((), ())
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    # Partially written files are not objects yet.
                    if Path(entry.path) != self._staging:
                        folders.append(entry.name)
                    continue
                if entry.name == _GUARD and Path(entry.path) == self._guard:
                    continue
                # A file that was deleted between the listing and the stat is left out.
                with contextlib.suppress(FileNotFoundError):
                    objects.append(_object_stat(within + entry.name, entry.stat()))
        return Folder(tuple(folders), tuple(objects))

    def open_input(self, path: str) -> pa.NativeFile:
        with _translated(path):
            return pa.OSFile(str(self.local_path(path)), "rb")

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        target = self.local_path(path)
        staged = self._staging / uuid.uuid4().hex
        try:
            with writing(path, self._root):
                self._make_folders(target.parent, self._staging)
                file = _StagedFile(staged, path, self._root)
            with io.BufferedWriter(file) as sink:
                yield sink
                sink.flush()
                with writing(path, self._root):
                    os.fsync(sink.fileno())
            with _translated(path):
                self._install(staged, path, target)
        except BaseException:
            _discard(staged)
            raise

    @contextmanager
    def _guarded(self, path: str) -> Iterator[None]:
        """Keep out other callers of `put_if_version` in all processes, until the end of the context.

        Raises `StorageError` if another process holds the guard for too long.
        """
        with writing(path, self._root):
            self._make_folders(self._guard.parent)
            descriptor = _locked(self._guard)
        try:
            yield
        finally:
            # Not by closing alone: a child process that was forked meanwhile holds the lock with its copy of the descriptor.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _install(self, staged: Path, path: str, target: Path) -> None:
        self._name(path, target, os.replace, staged)
        (target.parent / f".{target.name}.crc").unlink(missing_ok=True)
        _sync_folder(target.parent)

    def _name(self, path: str, target: Path, act: Callable[[Path, Path], None], staged: Path) -> None:
        """Give a staged object its name by `act`. Another process may have deleted the folder since this one made it.

        Translates rejections. After other errors it may have happened (network file systems).
        """
        try:
            try:
                act(staged, target)
            except FileNotFoundError:
                self._make_folders(target.parent)
                act(staged, target)
        except OSError as error:
            refused = refused_write(error, place_of(path, self._root))
            if refused is None:
                raise
            raise refused from error

    def _write_staged(self, path: str, target: Path, data: bytes) -> Path:
        with writing(path, self._root):
            self._make_folders(target.parent, self._staging)
            staged = self._staging / uuid.uuid4().hex
            try:
                with staged.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                _discard(staged)
                raise
        return staged

    def _make_folders(self, *folders: Path) -> None:
        for folder in folders:
            if folder in self._made and folder.exists():
                continue
            inside = [p for p in (folder, *folder.parents) if self._root in p.parents]
            missing = [p for p in (folder, *folder.parents) if not p.exists()]
            self._made.difference_update(missing)
            if len(self._made) > _MOST_MADE:
                self._made.clear()
            folder.mkdir(parents=True, exist_ok=True)
            # Sync existing folders too, once: the process that created them may have stopped before it made their names durable.
            unsure = [p for p in inside if p not in self._made]
            for named in dict.fromkeys([*unsure, *missing]):
                _sync_folder(named.parent)
            self._made.update(inside)

    def _walk(self, prefix: str) -> Iterator[ObjectStat]:
        level = self.list_folder(prefix)
        yield from level.objects
        for name in level.folders:
            yield from self._walk(f"{prefix}/{name}" if prefix else name)


class _StagedFile(io.FileIO):
    """A new file whose writes raise errors of the storage port, even if Arrow or a buffer calls them."""

    def __init__(self, file: Path, path: str, root: Path) -> None:
        super().__init__(file, "xb")
        self._path, self._root = path, root

    def write(self, data: Any, /) -> int:
        with writing(self._path, self._root):
            return super().write(data)


def _locked(guard: Path) -> int:
    """Return a descriptor of the file that holds the lock of it, or no lock where the file system has none.

    Raises `StorageError`.
    """
    while True:
        descriptor = _opened(guard)
        try:
            if not _holds_lock(descriptor, guard) or os.path.samestat(os.fstat(descriptor), guard.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process has deleted the folder meanwhile: others lock another file


def _holds_lock(descriptor: int, guard: Path) -> bool:
    """Wait for the lock of the file.

    Return False if its file system has no locks. Raises `StorageError` if it is not free in time.
    """
    waiting = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BlockingIOError),
        wait=tenacity.wait_fixed(_GUARD_TURN_S),
        stop=tenacity.stop_after_delay(_GUARD_DEADLINE_S),
        reraise=True,
    )
    try:
        waiting(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held = StorageError(
            f"another process has held the lock of {str(guard)!r} for {_GUARD_DEADLINE_S:g} s",
            remedy="find and end it (lsof shows it), then retry",
        )
        held.changed_nothing = True
        raise held from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _LOGGER.warning(
            "the file system of %r has no locks (%s): of two processes that change the properties of a table at once, "
            "one may undo the change of the other",
            str(guard),
            error.strerror,
        )
        return False
    return True


def _opened(guard: Path) -> int:
    try:
        return os.open(guard, os.O_CREAT | os.O_RDWR, 0o666)
    except PermissionError:
        return os.open(guard, os.O_RDONLY)  # a file of another user can be locked, too


def _unless_changed(error: OSError) -> None:
    """Raise `error` unless it says that another process deleted the folder, or created something in it."""
    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
        raise error


def _discard(staged: Path) -> None:
    # The orphan-file cleanup deletes a file that remains. It must not make a successful write fail.
    with contextlib.suppress(OSError):
        staged.unlink()


def _object_stat(path: str, stat: os.stat_result) -> ObjectStat:
    return ObjectStat(path, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC))


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return  # another process has deleted it, and with it the name that was to be made durable
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ObjectNotFound(path) from None
    except OSError as error:
        raise failed_access(error, repr(path)) from error
