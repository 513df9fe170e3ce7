"""Remove completed writes from the table state, for rollbacks and restores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A range of the table log, from the first undone write (`first`) to the entry that undid it (`sequence`)."""

    first: int
    sequence: int
    instant: str
    """Instant of the restore or rollback that undid the writes."""


def undo_writes(slices: MutableMapping[FileGroupId, dict[str, FileSlice]], instants: AbstractSet[str]) -> None:
    """Remove the base files and log files that `instants` wrote. Remove groups and slices that are then empty."""
    for group, by_instant in list(slices.items()):
        kept = {}
        for base_instant, found in by_instant.items():
            logs = tuple(log for log in found.log_files if log.instant not in instants)
            base = "" if base_instant in instants else found.base_file
            if base or logs:
                unchanged = base == found.base_file and logs == found.log_files
                kept[base_instant] = found if unchanged else _left(found, base, logs)
        if kept:
            slices[group] = kept
        else:
            del slices[group]


def _left(found: FileSlice, base: str, logs: tuple[LogFile, ...]) -> FileSlice:
    if base:
        return replace(found, log_files=logs)
    return replace(found, base_file="", size_bytes=0, rows=-1, log_files=logs)


def excess_groups(slices: Mapping[FileGroupId, Mapping[str, FileSlice]], replaced: Iterable[FileGroupId]) -> set[FileGroupId]:
    """Return the groups that a clean has to examine: groups with more than one slice, and replaced groups."""
    return {group for group, found in slices.items() if len(found) > 1} | set(replaced)
