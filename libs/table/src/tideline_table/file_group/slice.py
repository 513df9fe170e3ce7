"""File groups and their slices over time: adding files, the slice that a query sees, and the slice that a clean removed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tideline_table.hudi.file_names import MAX_BUCKETS, bucket_of_file_id, change_file_name, is_ring_file_id, parse_log_file_name
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.storage.data_path import DataPath


class FileGroupId(NamedTuple):
    """A file group of a table: partition path and file id."""

    partition_path: str
    file_id: str


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file of a slice. `instant` is its write, empty if only its blocks name it (Hudi writers may append to a file)."""

    name: str
    size_bytes: int
    instant: str
    version: int
    adds_keys: bool = True
    """Whether it may contain record keys that the base file of its slice lacks: inserted keys, and keys of a log file written while
    a compaction was pending, which may have dropped them from the base file."""
    deletes_keys: bool = True
    """Whether it may delete record keys."""
    merges_earlier: bool = False
    """Whether a log compaction wrote it: it holds what all log files before it in its slice say, so readers of it skip those."""
    record: str = field(default="", compare=False)
    """What completed commits recorded about its bytes, as of `DataPath`."""


class SliceVersion(NamedTuple):
    """The state of a file group that a transaction read. It never repeats, because a slice only gains log files.

    A completed compaction removes the log files that it merged. Other writers may have added as many, hence the third field.
    """

    base_instant: str
    log_files: int
    awaits_base_file: bool = False
    """Whether a pending compaction will write its base file. Until then `log_files` includes log files of the previous slice."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One version of a file group: a base file and its log files, in merge order.

    Without a base file `base_file` is empty and `size_bytes` 0. `rows` (of the base file) is -1 if only the footer knows it. Log
    files of a slice that a pending compaction opened follow those of the previous slice (format reference 11.2).
    """

    group: FileGroupId
    base_instant: str
    base_file: str
    size_bytes: int
    rows: int
    log_files: tuple[LogFile, ...] = ()
    record: str = field(default="", compare=False)
    """What its commit recorded about the bytes of the base file, as of `DataPath`."""
    earlier_logs: int = field(default=0, compare=False)
    """How many of the log files, the first ones, are those of the previous slice."""

    @property
    def path(self) -> DataPath:
        """The path of the base file relative to the base path. Valid only if there is a base file."""
        return DataPath(join_path(self.group.partition_path, self.base_file), self.size_bytes, self.record)

    @property
    def log_paths(self) -> tuple[DataPath, ...]:
        """The paths of the log files relative to the base path, in merge order."""
        partition = self.group.partition_path
        return tuple(DataPath(join_path(partition, log.name), log.size_bytes, log.record) for log in self.log_files)

    @property
    def paths(self) -> tuple[DataPath, ...]:
        """The paths of all files relative to the base path."""
        return ((self.path,) if self.base_file else ()) + self.log_paths

    @property
    def change_paths(self) -> tuple[str, ...]:
        """The path that the change file of the base file has if there is one."""
        return (join_path(self.group.partition_path, change_file_name(self.base_file)),) if self.base_file else ()

    @property
    def total_bytes(self) -> int:
        """The size of all files in bytes."""
        return self.size_bytes + sum(log.size_bytes for log in self.log_files)

    @property
    def known_rows(self) -> int:
        """The number of rows in the slice; -1 if only a merge of its files tells it."""
        merges = any(log.adds_keys or log.deletes_keys for log in self.log_files)
        return -1 if merges or not self.base_file else self.rows

    @property
    def version(self) -> SliceVersion:
        """The version of the slice, which changes with every write to the group.

        A log compaction changes no row, so it does not count.
        """
        written = sum(not log.merges_earlier for log in self.log_files)
        return SliceVersion(self.base_instant, written, self.earlier_logs > 0)

    @property
    def next_log_version(self) -> int:
        """The version of the next log file: they count up in a slice."""
        return 1 + max((log.version for log in self.log_files[self.earlier_logs :]), default=0)

    @property
    def applied(self) -> FileSlice:
        """This slice without the log files that a log compaction merged into a later one: what a reader has to open."""
        last = max((at for at, log in enumerate(self.log_files) if log.merges_earlier), default=0)
        return replace(self, log_files=self.log_files[last:], earlier_logs=max(0, self.earlier_logs - last)) if last else self

    def to_list(self) -> list[object]:
        """Return a compact form for checkpoints."""
        fixed: list[object] = [self.base_instant, self.base_file, self.size_bytes, self.rows]
        logs = [
            [log.name, log.size_bytes, log.instant, log.version, *_FLAGS[log.adds_keys, log.deletes_keys, log.merges_earlier]]
            for log in self.log_files
        ]
        records = [self.record, *(log.record for log in self.log_files)]
        if any(records):
            # Earlier releases ignore what follows the log files.
            return [*fixed, logs, records]
        return [*fixed, logs] if logs else fixed

    @classmethod
    def from_list(cls, group: FileGroupId, fields: Sequence[Any]) -> FileSlice:
        """Return the slice of a result of `to_list`. Raises `TypeError` or `ValueError` for invalid fields."""
        base_instant, base_file, size_bytes, rows, *more = fields
        listed = more[0] if more else ()
        record, *records = more[1] if len(more) > 1 else ("", *([""] * len(listed)))
        if not (type(base_instant) is type(base_file) is str and type(size_bytes) is type(rows) is int):
            raise TypeError(f"a file slice of {fields!r}")
        logs = (_log_file(str(known), *log) for log, known in zip(listed, records, strict=True))
        return cls(group, base_instant, base_file, size_bytes, rows, tuple(logs) if listed else (), str(record))


_FLAGS: dict[tuple[bool, bool, bool], tuple[int, ...]] = {
    (True, True, False): (),
    (False, True, False): (0,),
    (True, False, False): (2,),
    (False, False, False): (3,),
    (True, True, True): (4,),
    (False, True, True): (5,),
    (True, False, True): (6,),
    (False, False, True): (7,),
}
"""Encoding of (adds keys, deletes keys, merges earlier files) in checkpoints. Earlier releases read 0 as no keys added, all else
as keys added."""
_MEANING = {flags[0]: meaning for meaning, flags in _FLAGS.items() if flags}


def _log_file(record: str, name: str, size_bytes: int, instant: str, version: int, flags: int = 1) -> LogFile:
    if not (type(name) is type(instant) is str and type(size_bytes) is type(version) is int):
        raise TypeError(f"a log file {name!r} of {size_bytes!r} bytes")
    return LogFile(name, size_bytes, instant, version, *_MEANING.get(flags, (True, True, False)), record)


def join_path(partition_path: str, name: str) -> str:
    """Return `<partition>/<name>`, or `name` in a table without partitions."""
    return f"{partition_path}/{name}" if partition_path else name


def visible_slice(slices: Mapping[str, FileSlice], as_of: str = "", compaction: str = "") -> FileSlice | None:
    """Return the slice that a query at `as_of` (empty: now) reads of a group, None if it reads nothing.

    `slices` are keyed by base instant. `compaction` is the pending compaction of the group, if any. Its slice has no base file yet,
    so its log files are merged after those of the previous slice (11.2), and its instant is the base instant of new log files.
    """
    if len(slices) == 1 and not as_of and not compaction:  # as most groups of most tables are: at less than half the cost
        (found,) = slices.values()
        if found.base_instant in slices and (found.base_file or found.log_files):
            return found if not found.earlier_logs else replace(found, earlier_logs=0)
    instants = sorted([i for i in slices if not as_of or i <= as_of], reverse=True)
    logs: list[LogFile] = []
    own = 0
    for at, instant in enumerate(instants):
        found = slices[instant]
        logs[:0] = [log for log in found.log_files if not as_of or log.instant <= as_of]
        newest = max(instants[0], compaction) if not as_of or compaction <= as_of else instants[0]
        own = len(logs) if instant == newest else own
        if found.base_file or at + 1 == len(instants):
            if not found.base_file and not logs:
                return None
            if newest == found.base_instant and len(logs) == len(found.log_files) and own == len(logs):
                return found if not found.earlier_logs else replace(found, earlier_logs=0)
            return replace(found, base_instant=newest, log_files=tuple(logs), earlier_logs=len(logs) - own)
    return None


def visible_slices(
    slices: Mapping[FileGroupId, Mapping[str, FileSlice]],
    replaced: Mapping[FileGroupId, str],
    as_of: str,
    compactions: Mapping[FileGroupId, str],
) -> Iterator[FileSlice]:
    """Yield what `visible_slice` returns for each group that was not replaced by `as_of` (empty: now)."""
    for group, known in slices.items():
        gone = replaced.get(group)
        if gone is not None and (not as_of or gone <= as_of):
            continue
        visible = visible_slice(known, as_of, compactions.get(group, ""))
        if visible is not None:
            yield visible


def fold_file(slices: dict[str, FileSlice], group: FileGroupId, instant: str, stat: WriteStat, below: str | None = None) -> None:
    """Add a file of the write `instant` to the slices of its group.

    `below`: the base instant of the slice of a log file whose name says its write instead of its slice, empty if it opens one.
    """
    name = stat.path.rsplit("/", 1)[-1]
    log = parse_log_file_name(name)
    if log is None:
        known = slices.get(instant)
        logs = known.log_files if known is not None else ()
        slices[instant] = FileSlice(group, instant, name, stat.file_size_bytes, stat.num_writes, logs, stat.record)
        return
    at = below or log.instant
    held = slices.get(at) or FileSlice(group, at, "", 0, -1)
    # Writers with a bucket index look up no key: they count what they append to a group as updates, new keys too.
    adds_keys = stat.num_inserts > 0 or not held.base_file or _may_be_bucket(group.file_id)
    added = LogFile(name, stat.end_bytes, instant, log.version, adds_keys, stat.num_deletes > 0, record=stat.record)
    slices[at] = replace(held, log_files=(*held.log_files, added) if below is None else _with(held.log_files, added))


def close_slice(slices: dict[str, FileSlice], instant: str) -> None:
    """Add the log files of a slice that has no base file any more to the slice before it, if there is one.

    For log files whose names say their writes: readers find them so, once the plan or the base file of the slice is gone.
    """
    closed = slices.get(instant)
    before = max((at for at in slices if at < instant), default="")
    if closed is None or closed.base_file or not before:
        return
    del slices[instant]
    logs = sorted(map(_unmarked, (*slices[before].log_files, *closed.log_files)), key=_by_write)
    slices[before] = replace(slices[before], log_files=tuple(logs))


def _by_write(log: LogFile) -> tuple[str, int, str]:
    """Return the order of log files whose names say their writes: by instant, not by completion (format reference 4.1 of 8)."""
    name = parse_log_file_name(log.name)
    assert name is not None, "the fold takes log files by their names"
    return name.instant, name.version, name.write_token


def _with(logs: tuple[LogFile, ...], added: LogFile) -> tuple[LogFile, ...]:
    """Return the log files of a slice, whose names say their writes, with one more in its place.

    What a log compaction wrote before lacks it, if it comes earlier: readers then tell by the headers of the blocks.
    """
    place = sum(_by_write(log) < _by_write(added) for log in logs)
    return (*logs[:place], added, *map(_unmarked, logs[place:]))


def _unmarked(log: LogFile) -> LogFile:
    return replace(log, merges_earlier=False) if log.merges_earlier else log


def fold_merged_log(
    slices: dict[str, FileSlice],
    group: FileGroupId,
    instant: str,
    stat: WriteStat,
    below: str | None = None,
    names: Collection[str] = (),
) -> None:
    """Add the log file of the log compaction `instant` right behind the log files that it merged.

    Its name has the version of the last one of them, and a write token that sorts behind that one's. Where names say the writes,
    it goes by its instant, and these are the log files `names` of the plan, in the slice `below`. A commit checks that its slice is
    there (`find_log_compaction_conflict`).
    """
    name = stat.path.rsplit("/", 1)[-1]
    parsed = parse_log_file_name(name)
    at = below or (parsed.instant if parsed is not None else "")
    found = slices.get(at)
    if parsed is None or found is None:
        fold_file(slices, group, instant, stat, below)
        return
    if below is None:
        place = sum(log.version <= parsed.version for log in found.log_files)
    else:
        place = sum(_by_write(log) < (parsed.instant, parsed.version, parsed.write_token) for log in found.log_files)
    merged = found.log_files[:place]
    opened = replace(found, log_files=merged).applied.log_files
    added = LogFile(
        name,
        stat.file_size_bytes,
        instant,
        parsed.version,
        any(log.adds_keys for log in merged),
        any(log.deletes_keys for log in merged),
        merges_earlier=below is None or all(log.name in names for log in opened),
        record=stat.record,
    )
    slices[at] = replace(found, log_files=(*merged, added, *found.log_files[place:]))


def _may_be_bucket(file_id: str) -> bool:
    bucket = bucket_of_file_id(file_id)
    return (bucket is not None and bucket <= MAX_BUCKETS) or is_ring_file_id(file_id)


def is_gone(file_slice: FileSlice, gone: frozenset[tuple[str, str]]) -> bool:
    """Return whether a clean that deleted the files `gone` (partition path, name) removed the slice."""
    first = file_slice.base_file or file_slice.log_files[0].name
    return (file_slice.group.partition_path, first) in gone
