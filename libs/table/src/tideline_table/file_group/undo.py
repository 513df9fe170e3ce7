"""Taking a completed write out of the file slices again: what a rollback or restore by others does to a shared table."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile


def undo_write(slices: MutableMapping[FileGroupId, dict[str, FileSlice]], instant: str) -> list[FileGroupId]:
    """Remove the base files of `instant` and the log files that it wrote; the groups of which nothing is left, removed too."""
    gone = []
    for group, by_instant in list(slices.items()):
        kept = {}
        for base_instant, found in by_instant.items():
            logs = tuple(log for log in found.log_files if log.instant != instant)
            base = "" if base_instant == instant else found.base_file
            if base or logs:
                unchanged = base == found.base_file and logs == found.log_files
                kept[base_instant] = found if unchanged else _left(found, base, logs)
        if kept:
            slices[group] = kept
        else:
            del slices[group]
            gone.append(group)
    return gone


def _left(found: FileSlice, base: str, logs: tuple[LogFile, ...]) -> FileSlice:
    if base:
        return replace(found, log_files=logs)
    return replace(found, base_file="", size_bytes=0, rows=-1, log_files=logs)
