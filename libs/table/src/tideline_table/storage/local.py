"""Storage on a local (or locally mounted) disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import pyarrow as pa

from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError, UnsafePath
from tideline_table.storage.port import Folder, ObjectStat, checked_path

STAGING = ".hoodie/.tideline/staging"
"""Where half-written objects live: below a name that every Hudi reader ignores, on the same file system as their target."""
_NAME_BYTES = 255


class LocalStorage:
    """`Storage` on a folder. Objects are written beside the table, fsynced, then linked or renamed into place."""

    def __init__(self, root: Path, staging: str = STAGING) -> None:
        self._root = Path(os.path.abspath(root))
        self._staging = self._root / staging
        self._made: set[Path] = set()

    @property
    def root(self) -> str:
        """See `Storage.root`."""
        return "file:" + quote(str(self._root), safe="/=:@+,~!$&'()*;")

    def local_path(self, path: str) -> Path:
        """The file behind `path`; refuses a symbolic link that leads out of the root, and names that no file can have."""
        target = self._root / checked_path(path)
        if any(len(os.fsencode(part)) > _NAME_BYTES for part in path.split("/")):
            raise UnsafePath(f"path {path!r}", expected=f"names of at most {_NAME_BYTES} bytes, as file systems take them")
        parent = target.parent
        if parent not in self._made:
            resolved, root = parent.resolve(), self._root.resolve()
            if resolved != root and root not in resolved.parents:
                raise UnsafePath(f"path {path!r} leads to {resolved}", expected=f"a place below {root}")
        if target.is_symlink() and self._root.resolve() not in target.resolve().parents:
            raise UnsafePath(f"path {path!r} leads to {target.resolve()}", expected=f"a place below {self._root}")
        return target

    def read(self, path: str) -> bytes:
        """See `Storage.read`."""
        with _translated(path):
            return self.local_path(path).read_bytes()

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See `Storage.read_range`."""
        with _translated(path), self.local_path(path).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def stat(self, path: str) -> ObjectStat:
        """See `Storage.stat`."""
        with _translated(path):
            return _object_stat(path, self.local_path(path).stat())

    def put(self, path: str, data: bytes) -> None:
        """See `Storage.put`."""
        target = self.local_path(path)
        with _translated(path):
            self._make_folder(target.parent)
            staged = self._write_staged(data)
            try:
                self._install(staged, target)
            finally:
                staged.unlink(missing_ok=True)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """See `Storage.put_if_absent`."""
        target = self.local_path(path)
        with _translated(path):
            self._make_folder(target.parent)
            staged = self._write_staged(data)
            try:
                # link(2) fails when the name exists, on every POSIX file system; the loser's bytes are never seen.
                os.link(staged, target)
            except FileExistsError:
                # The name may be ours, from an attempt whose sync failed: the caller may take it for won.
                _sync_folder(target.parent)
                raise ObjectExists(path) from None
            finally:
                staged.unlink()
            _sync_folder(target.parent)

    def delete(self, path: str) -> None:
        """See `Storage.delete`. Hadoop's checksum sibling goes too: a stale one makes Spark refuse a later file of that name."""
        target = self.local_path(path)
        with _translated(path):
            (target.parent / f".{target.name}.crc").unlink(missing_ok=True)
            target.unlink(missing_ok=True)

    def delete_below(self, folder: str) -> None:
        """See `Storage.delete_below`."""
        target = self.local_path(folder)
        if target == self._root:
            raise UnsafePath("an empty folder name", expected="a folder below the root")
        with _translated(folder), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(target)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Storage.list_objects`."""
        yield from sorted((s for s in self._walk(prefix) if s.path > after), key=lambda s: s.path)

    def list_folder(self, path: str) -> Folder:
        """See `Storage.list_folder`."""
        folders: list[str] = []
        objects: list[ObjectStat] = []
        with _translated(path):
            try:
                entries = sorted(os.scandir(self.local_path(path) if path else self._root), key=lambda e: e.name)
            except (FileNotFoundError, NotADirectoryError):
                return Folder((), ())
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    # What is half written there is no object yet.
                    if Path(entry.path) != self._staging:
                        folders.append(entry.name)
                    continue
                # A file may vanish between the listing and the stat: then it was not there.
                with contextlib.suppress(FileNotFoundError):
                    objects.append(_object_stat(_join(path, entry.name), entry.stat()))
        return Folder(tuple(folders), tuple(objects))

    def open_input(self, path: str) -> pa.NativeFile:
        """See `Storage.open_input`."""
        with _translated(path):
            return pa.OSFile(str(self.local_path(path)), "rb")

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.open_output`."""
        target = self.local_path(path)
        with _translated(path):
            self._make_folder(target.parent)
            staged = self._staged_name()
        try:
            with staged.open("xb") as sink:
                yield sink
                with _translated(path):
                    sink.flush()
                    os.fsync(sink.fileno())
            with _translated(path):
                self._install(staged, target)
        finally:
            staged.unlink(missing_ok=True)

    def _install(self, staged: Path, target: Path) -> None:
        os.replace(staged, target)
        (target.parent / f".{target.name}.crc").unlink(missing_ok=True)
        _sync_folder(target.parent)

    def _staged_name(self) -> Path:
        self._make_folder(self._staging)
        return self._staging / uuid.uuid4().hex

    def _write_staged(self, data: bytes) -> Path:
        staged = self._staged_name()
        try:
            with staged.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            staged.unlink(missing_ok=True)
            raise
        return staged

    def _make_folder(self, folder: Path) -> None:
        if folder in self._made and folder.exists():
            return
        inside = [p for p in (folder, *folder.parents) if self._root in p.parents]
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        # Also those that are there already: whoever made them may not have got as far as making their names durable.
        for named in dict.fromkeys([*inside, *missing]):
            _sync_folder(named.parent)
        self._made.add(folder)

    def _walk(self, prefix: str) -> Iterator[ObjectStat]:
        level = self.list_folder(prefix)
        yield from level.objects
        for name in level.folders:
            yield from self._walk(_join(prefix, name))


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _object_stat(path: str, stat: os.stat_result) -> ObjectStat:
    return ObjectStat(path, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
        raise StorageError(f"{error.strerror or error} at {path!r}", remedy="check the disk and its rights, then retry") from error
