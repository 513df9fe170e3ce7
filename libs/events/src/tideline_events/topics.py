"""The topics of the event contract (design: "Event contract", Topics)."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. A compacted topic keeps the last record of each key; its `retention_s` is how long a deletion stays visible."""

    name: str
    retention_s: int
    compacted: bool = False


TIMELINE = Topic("tideline.timeline", 7 * DAY_S)
TABLES = Topic("tideline.tables", DAY_S, compacted=True)
JOBS = Topic("tideline.jobs", 7 * DAY_S)
LOCKS = Topic("tideline.locks", 7 * DAY_S)
DECISIONS = Topic("tideline.decisions", 7 * DAY_S)
HINTS = Topic("tideline.hints", HOUR_S)
DEAD_LETTER = Topic("tideline.dead-letter", 30 * DAY_S)

TOPICS = (TIMELINE, TABLES, JOBS, LOCKS, DECISIONS, HINTS, DEAD_LETTER)
"""All topics; `EventLog.ensure_topics` creates them."""
