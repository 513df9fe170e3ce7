"""How close the backlog of a table is to the objectives of its policy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_table.action import Backlog, Objectives, TableService

EARLY = 0.8
"""Used-up part of an objective from which the service is due, so that its plan ends before the bound is reached."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """The largest used-up part of the objectives of a service, the objective in one line, and when time alone makes the service due.

    `early_at` is the time (UTC) at which the age of the oldest log reaches `EARLY` of its objective; None without such an objective.
    """

    part: float = 0.0
    why: str = ""
    early_at: datetime | None = None


def pressure_of(service: TableService, objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
    """Return how close a table is to the objectives of clustering or compaction. A log compaction has no objectives."""
    if service is TableService.LOG_COMPACTION:
        return Pressure()
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
