"""File slices that plans name, with what the state knows of their files."""

from __future__ import annotations

from dataclasses import replace

from tideline_table.file_group.slice import FileSlice
from tideline_table.log.state import TableState


def as_recorded(state: TableState, planned: FileSlice) -> FileSlice:
    """Return a slice of a plan, with the sizes and records of its files, so that a reader compares them.

    Its log files of log compactions are marked, so that a reader skips what they merged.
    """
    held = state.slices.get(planned.group, {}).values()
    known = {log.name: log for found in held for log in found.log_files}
    logs = tuple(
        replace(log, size_bytes=found.size_bytes, record=found.record, merges_earlier=found.merges_earlier)
        if (found := known.get(log.name)) is not None
        else log
        for log in planned.log_files
    )
    base = next((found for found in held if found.base_file and found.base_file == planned.base_file), None)
    if base is None:
        return replace(planned, log_files=logs)
    return replace(planned, log_files=logs, size_bytes=base.size_bytes, record=base.record)
