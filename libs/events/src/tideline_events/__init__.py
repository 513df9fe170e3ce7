"""Event contract and event-log port, with SQLite and Kafka adapters.

Payloads and envelope are pure; `EventLog` is the port, opened by `open_event_log`; readers share `EventConsumer`. What an event
means for a table does not belong here.
"""

from tideline_events.consumer import Backfill, ConsumerCounts, Deduplicator, EventConsumer, TransitionConsumer
from tideline_events.envelope import Envelope, TableDeleted, UnknownEvent, decode, encode, read_envelope, table_deletion
from tideline_events.errors import (
    CommitLost,
    EventLogCorrupt,
    EventLogUnavailable,
    InvalidEvent,
    PoisonEvent,
    PublisherFenced,
    PublishUnknown,
    TopicMismatch,
)
from tideline_events.location import check_event_log_url, open_event_log
from tideline_events.log import EventLog, Publisher, Subscription, transition_records
from tideline_events.payload import (
    DeadLetter,
    Event,
    FindingEvent,
    Hint,
    JobEvent,
    LockEvent,
    PendingPlan,
    TableIdentity,
    TableRecord,
    Transition,
    VerdictEvent,
)
from tideline_events.record import Record
from tideline_events.topics import DEAD_LETTER, DECISIONS, HINTS, JOBS, LOCKS, POSITIONS, TABLES, TIMELINE, TOPICS, Topic

__all__ = [
    "DEAD_LETTER",
    "DECISIONS",
    "HINTS",
    "JOBS",
    "LOCKS",
    "POSITIONS",
    "TABLES",
    "TIMELINE",
    "TOPICS",
    "Backfill",
    "CommitLost",
    "ConsumerCounts",
    "DeadLetter",
    "Deduplicator",
    "Envelope",
    "Event",
    "EventConsumer",
    "EventLog",
    "EventLogCorrupt",
    "EventLogUnavailable",
    "FindingEvent",
    "Hint",
    "InvalidEvent",
    "JobEvent",
    "LockEvent",
    "PendingPlan",
    "PoisonEvent",
    "PublishUnknown",
    "Publisher",
    "PublisherFenced",
    "Record",
    "Subscription",
    "TableDeleted",
    "TableIdentity",
    "TableRecord",
    "Topic",
    "TopicMismatch",
    "Transition",
    "TransitionConsumer",
    "UnknownEvent",
    "VerdictEvent",
    "check_event_log_url",
    "decode",
    "encode",
    "open_event_log",
    "read_envelope",
    "table_deletion",
    "transition_records",
]
