"""File groups and their slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class FileGroupId(NamedTuple):
    """A file group of a table: partition path and file id."""

    partition_path: str
    file_id: str


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file of a slice. `instant` is the write that made it, empty where only its blocks tell (others append to files)."""

    name: str
    size_bytes: int
    instant: str
    version: int
    adds_keys: bool = True
    """Whether it may hold record keys that the base file of its slice does not: inserted ones, and those of a log file that was written
    while a compaction was pending, which may have dropped them from the base file."""
    deletes_keys: bool = True
    """Whether it may take record keys away."""


class SliceVersion(NamedTuple):
    """What a transaction read of a file group. No two versions are equal: a slice only ever gets more log files.

    A compaction that completes takes those away that it merged, and others may have added as many by then: hence the third field.
    """

    base_instant: str
    log_files: int
    awaits_base_file: bool = False
    """A pending compaction is to write its base file; until then log files of the slice before are among these."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One version of a file group: a base file and the log files on top of it, in the order in which they are merged.

    Without a base file `base_file` is empty and `size_bytes` 0. `rows` (of the base file) is -1 where only a footer would know.
    Log files of a slice that a pending compaction opened come after those of the slice before it (format reference 11.2).
    """

    group: FileGroupId
    base_instant: str
    base_file: str
    size_bytes: int
    rows: int
    log_files: tuple[LogFile, ...] = ()

    @property
    def path(self) -> str:
        """The base file below the base path; only where there is one."""
        return join_path(self.group.partition_path, self.base_file)

    @property
    def log_paths(self) -> tuple[str, ...]:
        """The log files below the base path, in the order in which they are merged."""
        return tuple(join_path(self.group.partition_path, log.name) for log in self.log_files)

    @property
    def paths(self) -> tuple[str, ...]:
        """All files below the base path."""
        return ((self.path,) if self.base_file else ()) + self.log_paths

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return self.size_bytes + sum(log.size_bytes for log in self.log_files)

    @property
    def version(self) -> SliceVersion:
        """What changes when anybody writes to the group."""
        named = f"_{self.base_instant}.log."
        return SliceVersion(self.base_instant, len(self.log_files), any(named not in log.name for log in self.log_files))

    def to_list(self) -> list[object]:
        """Compact form for checkpoints."""
        fixed: list[object] = [self.base_instant, self.base_file, self.size_bytes, self.rows]
        logs = [[log.name, log.size_bytes, log.instant, log.version, *_flags(log)] for log in self.log_files]
        return [*fixed, logs] if logs else fixed

    @classmethod
    def from_list(cls, group: FileGroupId, fields: Sequence[Any]) -> FileSlice:
        """The slice that `to_list` gave. Raises `TypeError` or `ValueError` for anything else."""
        base_instant, base_file, size_bytes, rows, *logs = fields
        if not (type(base_instant) is type(base_file) is str and type(size_bytes) is type(rows) is int):
            raise TypeError(f"a file slice of {fields!r}")
        return cls(group, base_instant, base_file, size_bytes, rows, tuple(_log_file(*log) for log in (logs[0] if logs else ())))


_FLAGS = {(True, True): (), (False, True): (0,), (True, False): (2,), (False, False): (3,)}
"""Whether a log file adds and deletes keys, as checkpoints have it. Earlier releases know 0, no keys added, and take all else for keys added."""
_MEANING = {flags[0]: meaning for meaning, flags in _FLAGS.items() if flags}


def _flags(log: LogFile) -> tuple[int, ...]:
    return _FLAGS[log.adds_keys, log.deletes_keys]


def _log_file(name: str, size_bytes: int, instant: str, version: int, flags: int = 1) -> LogFile:
    if not (type(name) is type(instant) is str and type(size_bytes) is type(version) is int):
        raise TypeError(f"a log file {name!r} of {size_bytes!r} bytes")
    return LogFile(name, size_bytes, instant, version, *_MEANING.get(flags, (True, True)))


def join_path(partition_path: str, name: str) -> str:
    """`<partition>/<name>`, just the name in a table without partitions."""
    return f"{partition_path}/{name}" if partition_path else name
