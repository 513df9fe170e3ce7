"""Remove completed writes from the table state, for rollbacks and restores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.log.plan import LogMove


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A range of the table log, from the first undone write (`first`) to the entry that undid it (`sequence`)."""

    first: int
    sequence: int
    instant: str
    """Instant of the restore or rollback that undid the writes."""


def undo_writes(slices: MutableMapping[FileGroupId, Mapping[str, FileSlice]], instants: AbstractSet[str]) -> None:
    """Remove the base files and log files that `instants` wrote. Remove groups and slices that are then empty."""
    touched = [(group, held) for group, held in slices.items() if any(_wrote(instants, found) for found in held.values())]
    for group, by_instant in touched:
        kept = {}
        oldest = min(by_instant)
        for base_instant, found in by_instant.items():
            if base_instant in instants and found.base_file and base_instant == oldest:
                # The write that opened the group is undone. Log files that a clustering carried into it go with it.
                continue
            logs = tuple(log for log in found.log_files if log.instant not in instants)
            base = "" if base_instant in instants else found.base_file
            if base or logs:
                unchanged = base == found.base_file and logs == found.log_files
                kept[base_instant] = found if unchanged else _left(found, base, logs)
        if kept:
            slices[group] = kept
        else:
            del slices[group]


def _wrote(instants: AbstractSet[str], found: FileSlice) -> bool:
    return found.base_instant in instants or any(log.instant in instants for log in found.log_files)


def _left(found: FileSlice, base: str, logs: tuple[LogFile, ...]) -> FileSlice:
    if base:
        return replace(found, log_files=logs)
    return replace(found, base_file="", size_bytes=0, rows=-1, log_files=logs)


def move_logs(slices: MutableMapping[FileGroupId, Mapping[str, FileSlice]], moves: Iterable[LogMove]) -> list[FileGroupId]:
    """Rename log files, each behind those of the slice that its new name names; return their groups.

    Repeating it changes nothing.
    """
    groups = []
    for partition, old_name, new_name in moves:
        old, new = parse_log_file_name(old_name), parse_log_file_name(new_name)
        if old is None or new is None or old.file_id != new.file_id:
            raise CorruptMetadata(f"a move of {old_name!r} to {new_name!r}", expected="log files of one file group")
        group = FileGroupId(partition, old.file_id)
        by_instant = dict(slices.get(group, {}))
        above, below = by_instant.get(old.instant), by_instant.get(new.instant)
        moved = next((log for log in above.log_files if log.name == old_name), None) if above is not None else None
        if above is None or below is None or moved is None:
            continue
        left = tuple(log for log in above.log_files if log.name != old_name)
        if above.base_file or left:
            by_instant[old.instant] = replace(above, log_files=left)
        else:
            del by_instant[old.instant]
        renamed = replace(moved, name=new_name, version=new.version)
        by_instant[new.instant] = replace(below, log_files=(*below.log_files, renamed))
        slices[group] = by_instant
        groups.append(group)
    return groups


def excess_groups(slices: Mapping[FileGroupId, Mapping[str, FileSlice]], replaced: Iterable[FileGroupId]) -> set[FileGroupId]:
    """Return the groups that a clean has to examine: groups with more than one slice, and replaced groups."""
    return {group for group, found in slices.items() if len(found) > 1} | set(replaced)
