"""The backlog of a table, and how close it is to the objectives of its policy. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_runtime.policy import Objectives
from tideline_table.action import TableService
from tideline_table.config import CLUSTERING_SMALL_FILE_LIMIT, Options
from tideline_table.errors import CorruptMetadata
from tideline_table.hudi import time_from_instant
from tideline_table.log import TableState

EARLY = 0.8
"""Part of an objective from which on the service is due, so that its plan ends before the bound is reached."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What services have left to do."""

    small_files: int
    base_bytes: int
    log_bytes: int
    log_files: int
    oldest_log: datetime | None
    """When the oldest rows that are still in log files were written."""

    @property
    def log_to_base_ratio(self) -> float:
        """Bytes of log files to bytes of base files; infinite for log files without base files."""
        return self.log_bytes / self.base_bytes if self.base_bytes else (float("inf") if self.log_bytes else 0.0)


@dataclass(frozen=True, slots=True)
class Pressure:
    """The largest used-up part of the objectives of a service, which one it is, and when it reaches `EARLY` by time alone."""

    part: float = 0.0
    why: str = ""
    early_at: datetime | None = None


def backlog(state: TableState, options: Options) -> Backlog:
    """Return the backlog of a table."""
    slices = state.latest_slices()
    limit = options[CLUSTERING_SMALL_FILE_LIMIT]
    logs = [log for file_slice in slices for log in file_slice.log_files]
    return Backlog(
        small_files=sum(file_slice.total_bytes < limit for file_slice in slices),
        base_bytes=sum(file_slice.size_bytes for file_slice in slices),
        log_bytes=sum(log.size_bytes for log in logs),
        log_files=len(logs),
        oldest_log=oldest(log.instant for log in logs),
    )


def oldest(instants: Iterable[str]) -> datetime | None:
    """Return the time of the oldest of these instants, None without one."""
    first = min((instant for instant in instants if instant), default="")
    try:
        return time_from_instant(first) if first else None
    except CorruptMetadata:
        return None


def pressure_of(service: TableService, objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
    """Return how close a table is to the objectives that clustering or compaction keeps."""
    if service is TableService.CLUSTERING:
        bound = objectives.small_files
        return (
            Pressure()
            if bound is None
            else Pressure(found.small_files / bound, f"{found.small_files} small files, objective {bound}")
        )
    parts = [Pressure()]
    ratio = objectives.log_to_base_ratio
    if ratio is not None:
        text = f"log files have {found.log_to_base_ratio:.2f} of the bytes of base files, objective {ratio:g}"
        parts.append(Pressure(found.log_to_base_ratio / ratio, text))
    age_s = objectives.unmerged_log_age_s
    if age_s is not None and found.oldest_log is not None:
        waited_s = (now - found.oldest_log).total_seconds()
        text = f"the oldest unmerged log is {waited_s / 3600:.1f} h old, objective {age_s / 3600:g} h"
        parts.append(
            Pressure(waited_s / age_s if age_s else float("inf"), text, found.oldest_log + timedelta(seconds=EARLY * age_s))
        )
    most = max(parts, key=lambda p: p.part)
    return Pressure(most.part, most.why, next((p.early_at for p in parts if p.early_at is not None), None))
