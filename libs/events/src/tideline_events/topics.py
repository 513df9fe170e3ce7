"""The topics of the event contract. docs/events.md lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

HOUR_S = 3600
DAY_S = 24 * HOUR_S
HISTORY_S = 7 * DAY_S
"""How long events are kept that tell what happened. The parameter `retention_hours` of the event log's URL says another time."""
PREFIX = "tideline."
"""Beginning of the names of topics in the contract. In Kafka they may begin with another prefix (`TopicSettings`)."""


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
    partitions: int | None = None
    """Partitions of a topic that is created, if the order of all its records counts; None: as the deployment says."""


TIMELINE = Topic(
    "tideline.timeline", HISTORY_S, publisher="mirror", content="each step of each table, such as a commit: once and in order"
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
JOBS = Topic("tideline.jobs", HISTORY_S, publisher="launcher", content="start, end and failure of the applications that run plans")
LOCKS = Topic("tideline.locks", HISTORY_S, publisher="lock service", content="leases that change their holder, and lost heartbeats")
DECISIONS = Topic(
    "tideline.decisions",
    HISTORY_S,
    publisher="planner; console",
    content="changed verdicts about table services, findings, and what people let services do",
)
HINTS = Topic(
    "tideline.hints",
    HOUR_S,
    publisher="planner, launcher, cleaner; your writers",
    content="a table that services should refresh soon",
)
DEAD_LETTER = Topic("tideline.dead-letter", 30 * DAY_S, publisher="consumers", content="records that a consumer could not process")
POSITIONS = Topic(
    "tideline.positions",
    DAY_S,
    compacted=True,
    publisher="consumers",
    content="the last sequence of each table that a consumer group processed, and that at which the group began; no CloudEvents "
    "(`EventConsumer`)",
)

CHANGES_POSITIONS = Topic(
    "tideline.changes-positions",
    DAY_S,
    compacted=True,
    publisher="changes",
    content="how far the row changes of each table are published; no CloudEvents (docs/row-changes.md)",
)

TOPICS = (TIMELINE, TABLES, CATALOG, MIRRORS, JOBS, LOCKS, DECISIONS, HINTS, DEAD_LETTER, POSITIONS, CHANGES_POSITIONS)
"""All topics with a name of their own; `EventLog.ensure_topics` creates them."""

CHANGES = Topic(
    "tideline.changes.",
    HISTORY_S,
    publisher="changes",
    content="the changed rows of one table in Debezium's envelope (docs/row-changes.md)",
    partitions=1,
)
FAMILIES = (CHANGES,)
"""Families of topics: `name` is the beginning of the names of their members, `<name><member>`."""
_MEMBER = re.compile(r"[A-Za-z0-9._-]{1,150}")


def topic_named(name: str) -> Topic | None:
    """Return the topic of the contract with this name, also a member of a family; None if the contract has no such topic."""
    for topic in TOPICS:
        if topic.name == name:
            return topic
    for family in FAMILIES:
        if name.startswith(family.name) and _MEMBER.fullmatch(name, len(family.name)):
            return replace(family, name=name)
    return None


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a deployment may choose for its topics."""

    prefix: str = PREFIX
    """What topics begin with in Kafka, and with another than the default also writer ids and consumer groups."""
    history_s: int = HISTORY_S

    def own(self, topic: Topic) -> Topic:
        """Return a topic of the contract as this deployment has it."""
        retention_s = self.history_s if topic.retention_s == HISTORY_S else topic.retention_s
        return replace(topic, name=self.name(topic.name), retention_s=retention_s)

    def name(self, of_contract: str) -> str:
        """Return the name in Kafka of a topic of the contract."""
        return self.prefix + of_contract.removeprefix(PREFIX)

    def of_contract(self, name: str) -> str:
        """Return the name in the contract of a topic in Kafka."""
        return PREFIX + name.removeprefix(self.prefix)

    def client(self, name: str) -> str:
        """Return the writer id or consumer group in Kafka for one of this deployment: others may use the same name."""
        return name if self.prefix == PREFIX else self.prefix + name
