"""The topics of the event contract. docs/events.md lists them."""

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
    publisher: str = ""
    """The service that publishes to the topic, for the documentation."""
    content: str = ""
    """The content of the records, for the documentation."""


TIMELINE = Topic(
    "tideline.timeline", 7 * DAY_S, publisher="mirror", content="each step of each table, such as a commit: once and in order"
)
TABLES = Topic(
    "tideline.tables",
    DAY_S,
    compacted=True,
    publisher="mirror",
    content="the last known state of each table, and the mirror's cursor",
)
CATALOG = Topic(
    "tideline.catalog",
    30 * DAY_S,
    publisher="mirror",
    content="tables that appear, are renamed, moved, upgraded or shared, and that are gone",
)
MIRRORS = Topic(
    "tideline.mirrors",
    DAY_S,
    compacted=True,
    publisher="mirror",
    content="a heartbeat of each shard; the key is the writer id of the shard",
)
JOBS = Topic("tideline.jobs", 7 * DAY_S, publisher="launcher", content="start, end and failure of the applications that run plans")
LOCKS = Topic("tideline.locks", 7 * DAY_S, publisher="lock service", content="leases that change their holder, and lost heartbeats")
DECISIONS = Topic(
    "tideline.decisions", 7 * DAY_S, publisher="planner", content="changed verdicts about table services, and findings"
)
HINTS = Topic("tideline.hints", HOUR_S, publisher="launcher; your writers", content="a table that services should refresh soon")
DEAD_LETTER = Topic("tideline.dead-letter", 30 * DAY_S, publisher="consumers", content="records that a consumer could not process")
POSITIONS = Topic(
    "tideline.positions",
    DAY_S,
    compacted=True,
    publisher="consumers",
    content="the last sequence of each table that a consumer group processed; no CloudEvents (`EventConsumer`)",
)

TOPICS = (TIMELINE, TABLES, CATALOG, MIRRORS, JOBS, LOCKS, DECISIONS, HINTS, DEAD_LETTER, POSITIONS)
"""All topics; `EventLog.ensure_topics` creates them."""
