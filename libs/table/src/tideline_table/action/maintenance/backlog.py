"""The work that waits for the services of a table, and the bounds that a user sets for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from tideline_table.action.clustering.plan_strategy import small_file_limit
from tideline_table.action.decision import oldest_of
from tideline_table.config import Options
from tideline_table.log.state import TableState
from tideline_table.table.findings import most_log_files


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds of the backlog of a table. None: no bound."""

    small_files: int | None = None
    log_to_base_ratio: float | None = None
    unmerged_log_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that waits for table services."""

    file_groups: int
    small_files: int
    """Slices that are small enough for clustering (`small_file_limit`), so that clustering can lower the number."""
    base_bytes: int
    log_files: int
    """Log files that a reader opens: without those that a log compaction merged."""
    log_bytes: int
    most_log_files: int
    """Log files of the slice that has the most of them."""
    oldest_log: datetime | None
    """When the oldest rows that are still in log files were written."""

    @property
    def log_to_base_ratio(self) -> float:
        """Bytes of log files to bytes of base files; infinite for log files without base files."""
        return self.log_bytes / self.base_bytes if self.base_bytes else (float("inf") if self.log_bytes else 0.0)

    def oldest_log_s(self, now: datetime) -> float | None:
        """Return the age of the oldest log file that is not merged, None without one."""
        return None if self.oldest_log is None else max(0.0, (now - self.oldest_log).total_seconds())


def backlog_of(state: TableState, options: Options, zone: tzinfo = UTC) -> Backlog:
    """Return the backlog of a state with instants in `zone`."""
    slices, limit = state.latest_slices(), small_file_limit(options)
    logs = [log for file_slice in slices for log in file_slice.applied.log_files]
    return Backlog(
        file_groups=len(slices),
        small_files=sum(file_slice.total_bytes < limit for file_slice in slices),
        base_bytes=sum(file_slice.size_bytes for file_slice in slices),
        log_files=len(logs),
        log_bytes=sum(log.size_bytes for log in logs),
        most_log_files=most_log_files(state),
        oldest_log=oldest_of((log.instant for file_slice in slices for log in file_slice.log_files), zone),
    )
