"""The slices of file groups over time: adding files, the slice that a query sees, and the slice that a clean removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.file_names import MAX_BUCKETS, bucket_of_file_id, is_ring_file_id, parse_log_file_name
from tideline_table.hudi.write_stats import WriteStat


def visible_slice(slices: Mapping[str, FileSlice], as_of: str = "", compaction: str = "") -> FileSlice | None:
    """Return the slice that a query at `as_of` (empty: now) reads of a group, None if it reads nothing.

    `slices` are keyed by base instant. `compaction` is the pending compaction of the group, if any. Its slice has no base file yet,
    so its log files are merged after those of the previous slice (11.2), and its instant is the base instant of new log files.
    """
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
            return replace(found, base_instant=newest, log_files=tuple(logs), earlier_logs=len(logs) - own)
    return None


def visible_slices(
    slices: Mapping[FileGroupId, Mapping[str, FileSlice]],
    replaced: Mapping[FileGroupId, str],
    as_of: str,
    compactions: Mapping[FileGroupId, str],
) -> list[FileSlice]:
    """Return what `visible_slice` returns for each group that was not replaced by `as_of` (empty: now)."""
    found = []
    for group, known in slices.items():
        gone = replaced.get(group)
        if gone is not None and (not as_of or gone <= as_of):
            continue
        visible = visible_slice(known, as_of, compactions.get(group, ""))
        if visible is not None:
            found.append(visible)
    return found


def fold_file(slices: dict[str, FileSlice], group: FileGroupId, instant: str, stat: WriteStat) -> None:
    """Add a file of the write `instant` to the slices of its group."""
    name = stat.path.rsplit("/", 1)[-1]
    log = parse_log_file_name(name)
    if log is None:
        known = slices.get(instant)
        logs = known.log_files if known is not None else ()
        slices[instant] = FileSlice(group, instant, name, stat.file_size_bytes, stat.num_writes, logs, stat.record)
        return
    below = slices.get(log.instant) or FileSlice(group, log.instant, "", 0, -1)
    # Writers with a bucket index look up no key: they count what they append to a group as updates, new keys too.
    adds_keys = stat.num_inserts > 0 or not below.base_file or _may_be_bucket(group.file_id)
    added = LogFile(name, stat.end_bytes, instant, log.version, adds_keys, stat.num_deletes > 0, record=stat.record)
    slices[log.instant] = replace(below, log_files=(*below.log_files, added))


def fold_merged_log(slices: dict[str, FileSlice], group: FileGroupId, instant: str, stat: WriteStat) -> None:
    """Add the log file of the log compaction `instant` right behind the log files that it merged.

    Its name has the version of the last one of them, and a write token that sorts behind that one's. A commit checks that its
    slice is there (`find_log_compaction_conflict`).
    """
    name = stat.path.rsplit("/", 1)[-1]
    parsed = parse_log_file_name(name)
    found = slices.get(parsed.instant) if parsed is not None else None
    if parsed is None or found is None:
        fold_file(slices, group, instant, stat)
        return
    place = sum(log.version <= parsed.version for log in found.log_files)
    merged = found.log_files[:place]
    added = LogFile(
        name,
        stat.file_size_bytes,
        instant,
        parsed.version,
        any(log.adds_keys for log in merged),
        any(log.deletes_keys for log in merged),
        merges_earlier=True,
        record=stat.record,
    )
    slices[parsed.instant] = replace(found, log_files=(*merged, added, *found.log_files[place:]))


def _may_be_bucket(file_id: str) -> bool:
    bucket = bucket_of_file_id(file_id)
    return (bucket is not None and bucket <= MAX_BUCKETS) or is_ring_file_id(file_id)


def is_gone(file_slice: FileSlice, gone: frozenset[tuple[str, str]]) -> bool:
    """Return whether a clean that deleted the files `gone` (partition path, name) removed the slice."""
    first = file_slice.base_file or file_slice.log_files[0].name
    return (file_slice.group.partition_path, first) in gone
