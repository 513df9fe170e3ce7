"""The work that waits for the services of a table, and the bounds that a user sets for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from tideline_table.action.decision import oldest_of, small_file_limit
from tideline_table.config import CLUSTERING_TARGET_FILE_SIZE, Options
from tideline_table.log.state import TableState

EARLY = 0.8
"""Used-up part of an objective from which the service is due, so that its plan ends before the bound is reached."""


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
    whole, small = state.totals(small_file_limit(options))
    oldest = oldest_of([whole.oldest_log], zone)
    return Backlog(whole.groups, small, whole.base_bytes, whole.log_files, whole.log_bytes, whole.most_log_files, oldest)


@dataclass(frozen=True, slots=True)
class ManagingGain:
    """What the services would do for a table that only Apache Hudi writes: an estimate from the sizes of its files."""

    files_saved: int
    """Files that readers no longer open: log files that compaction merges, small files that clustering puts together."""
    log_files: int
    log_bytes: int
    """Bytes that readers merge at each query, and would not."""
    rewrite_bytes: int
    """Input of these compactions and clusterings."""


def managing_gain(state: TableState, options: Options) -> ManagingGain:
    """Estimate what compaction of all log files and one clustering of the other small files of each partition would change."""
    target, limit = options[CLUSTERING_TARGET_FILE_SIZE], small_file_limit(options)
    saved = log_files = log_bytes = rewritten = 0
    small: dict[str, list[int]] = {}
    for found in state.each_latest():
        logs = found.applied.log_files
        if logs:
            saved += len(logs)
            log_files += len(logs)
            log_bytes += sum(log.size_bytes for log in logs)
            rewritten += found.total_bytes
        elif found.total_bytes < limit:
            small.setdefault(found.group.partition_path, []).append(found.total_bytes)
    for sizes in small.values():
        left = max(1, -(-sum(sizes) // target))
        if left < len(sizes):
            saved += len(sizes) - left
            rewritten += sum(sizes)
    return ManagingGain(saved, log_files, log_bytes, rewritten)


@dataclass(frozen=True, slots=True)
class Pressure:
    """The largest used-up part of a service's objectives, the objective in one line, and when time alone makes it due.

    `early_at` is the time (UTC) at which the age of the oldest log reaches `EARLY` of its objective; None without such an
    objective.
    """

    part: float = 0.0
    reason: str = ""
    early_at: datetime | None = None


def pressure_of_logs(objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
    """Return how close a table is to the objectives of its log files."""
    parts = [Pressure()]
    ratio = objectives.log_to_base_ratio
    if ratio is not None:
        text = f"log files have {found.log_to_base_ratio:.2f} of the bytes of base files, objective {ratio:g}"
        parts.append(Pressure(found.log_to_base_ratio / ratio, text))
    age_s = objectives.unmerged_log_age_s
    if age_s is not None and found.oldest_log is not None:
        waited_s = (now - found.oldest_log).total_seconds()
        text = f"the oldest unmerged log is {waited_s / 3600:.1f} h old, objective {age_s / 3600:g} h"
        early_at = found.oldest_log + timedelta(seconds=EARLY * age_s)
        parts.append(Pressure(waited_s / age_s if age_s else float("inf"), text, early_at))
    most = max(parts, key=lambda p: p.part)
    return Pressure(most.part, most.reason, next((p.early_at for p in parts if p.early_at is not None), None))
