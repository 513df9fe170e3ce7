"""Event contract and event-log port, with SQLite and Kafka adapters.

Payloads and envelope are pure; `EventLog` is the port, opened by `open_event_log`; readers share `EventConsumer`. What an event
means for a table does not belong here.
"""

from tideline_events.consumer import EventConsumer
from tideline_events.envelope import TableDeleted, UnknownEvent, decode, encode, read_envelope, table_deletion
from tideline_events.errors import (
    CommitLost,
    EventLogCorrupt,
    EventLogUnavailable,
    InvalidEvent,
    PoisonEvent,
    PublisherFenced,
    PublishUnknown,
    SchemaRefused,
    SchemaRegistryUnavailable,
    TopicMismatch,
)
from tideline_events.group import ConsumerCounts, GroupPublisher
from tideline_events.location import check_event_log_url, open_event_log, open_row_schemas, sqlite_path
from tideline_events.log import EventLog, Publisher, Subscription, Tail, transition_records
from tideline_events.payload import (
    ActionEvent,
    DeadLetter,
    Event,
    FindingEvent,
    Heartbeat,
    Hint,
    JobEvent,
    LockEvent,
    PendingPlan,
    TableChange,
    TableIdentity,
    TableRecord,
    Transition,
    VerdictEvent,
)
from tideline_events.record import Record
from tideline_events.topics import (
    CATALOG,
    CHANGES,
    CHANGES_POSITIONS,
    DEAD_LETTER,
    DECISIONS,
    HINTS,
    JOBS,
    LOCKS,
    MIRRORS,
    POSITIONS,
    TABLES,
    TIMELINE,
    TOPICS,
    Topic,
)
from tideline_events.wire import REGISTERED, RowSchemas
