"""File slices that plans name, with what the state knows of their log files."""

from __future__ import annotations

from dataclasses import replace

from tideline_table.file_group.slice import FileSlice
from tideline_table.log.state import TableState


def with_merged_logs(state: TableState, planned: FileSlice) -> FileSlice:
    """Return a slice of a plan, with its log files of log compactions marked, so that a reader skips what they merged."""
    merging = {log.name for held in state.slices.get(planned.group, {}).values() for log in held.log_files if log.merges_earlier}
    if not merging:
        return planned
    logs = tuple(replace(log, merges_earlier=log.name in merging) for log in planned.log_files)
    return replace(planned, log_files=logs)
