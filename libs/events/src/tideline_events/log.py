"""The event-log port. `sqlite` and `kafka` implement it; one contract suite (`tests/contract/events`) holds both to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tideline_events.envelope import encode
from tideline_events.errors import InvalidEvent
from tideline_events.payload import TableRecord, Transition
from tideline_events.record import MAX_RECORD_BYTES, Record
from tideline_events.topics import TOPICS
from tideline_table.errors import InvalidOption

POLL_LIMIT = 500
"""Most records that one `Subscription.poll` returns."""


class Publisher(Protocol):
    """Appends records, all of one call or none, fenced by its writer id.

    Usable from several threads; calls queue. Errors: `PublisherFenced` once a newer publisher of the same writer id exists (at the
    latest at the next call), `EventLogUnavailable` if nothing became visible and the call may be repeated, `PublishUnknown` if only
    a new publisher can tell, `InvalidEvent` for what must not be published.
    """

    def publish_transitions(
        self, table_uid: str, transitions: Sequence[Transition], table_record: TableRecord, *, traceparent: str | None = None
    ) -> None:
        """Make transitions of one table and its new record (the cursor) visible together.

        The transitions are in order and gapless, and `table_record.sequence` is that of the last one.
        """
        ...

    def publish(self, *records: Record) -> None:
        """Make records (jobs, locks, hints, dead letters, table records) visible together."""
        ...

    def close(self) -> None:
        """Release connections; safe to call twice."""
        ...


class Subscription(Protocol):
    """Reads the topics for one group, at least once: what was not committed comes again after a restart. Not for several threads."""

    def poll(self, timeout_s: float) -> list[Record]:
        """The next records, in order within each partition, none of an open or aborted transaction.

        Returns as soon as there is one; empty after `timeout_s` without any. Errors: `EventLogUnavailable`.
        """
        ...

    def commit(self) -> None:
        """Remember for the group, durably, everything that `poll` returned. Errors: `CommitLost`, `EventLogUnavailable`."""
        ...

    def close(self) -> None:
        """Leave the group without committing; safe to call twice."""
        ...


class EventLog(Protocol):
    """The event log of a deployment. Events are hints that can be replayed: the table logs are the truth, this log may be lost."""

    def ensure_topics(self) -> None:
        """Create what is missing. Errors: `TopicMismatch` if a topic exists with settings that break the contract."""
        ...

    def publisher(self, writer_id: str) -> Publisher:
        """Take over `writer_id` (a shard of the mirror, or one process of a service). Older publishers of that id are fenced.

        What they left unfinished is aborted before this returns, so a cursor read afterwards is final: take the publisher first, then
        read the cursor.
        """
        ...

    def cursor(self, table_uid: str) -> TableRecord | None:
        """Last visible record of a table; None if there is none that can be read (then the mirror publishes from the start)."""
        ...

    def table_records(self) -> Iterator[TableRecord]:
        """Last visible record of every table, in no order. Records that cannot be read are left out."""
        ...

    def subscribe(self, topics: Sequence[str], group: str, *, from_beginning: bool = True) -> Subscription:
        """Join a group. `from_beginning` decides where a group without offsets starts: at the oldest record, or after the newest now.

        Kafka shares partitions among members of a group; on the embedded log each member reads everything.
        """
        ...

    def close(self) -> None:
        """Release connections of the log itself; publishers and subscriptions are closed by whoever took them."""
        ...


def transition_records(
    table_uid: str, transitions: Sequence[Transition], table_record: TableRecord, traceparent: str | None
) -> list[Record]:
    """The records of one `Publisher.publish_transitions`; `InvalidEvent` if the batch breaks its contract."""
    events: list[Transition | TableRecord] = [*transitions, table_record]
    strangers = {event.table_uid for event in events} - {table_uid}
    if strangers:
        raise InvalidEvent(f"events of tables {sorted(strangers)}", expected=f"only those of {table_uid}")
    sequences = [event.sequence for event in transitions]
    if sequences and sequences != list(range(sequences[0], sequences[0] + len(sequences))):
        raise InvalidEvent(f"sequences {sequences[:20]}", expected="a gapless run")
    if sequences and sequences[-1] != table_record.sequence:
        raise InvalidEvent(
            f"a table record at sequence {table_record.sequence}", expected=f"{sequences[-1]}, the last transition's"
        )
    return [encode(event, traceparent=traceparent) for event in events]


def check_records(records: Sequence[Record]) -> None:
    """Hold records to what every adapter can take, or raise `InvalidEvent`."""
    for record in records:
        size_bytes = len(record.key or b"") + len(record.value or b"")
        size_bytes += sum(len(name) + len(value or b"") for name, value in record.headers)
        if size_bytes > MAX_RECORD_BYTES + 32 * 1024:
            raise InvalidEvent(f"a record of {size_bytes} bytes", expected=f"a value of at most {MAX_RECORD_BYTES}")
        if record.topic not in {topic.name for topic in TOPICS}:
            raise InvalidEvent(f"topic {record.topic!r}", expected="a topic of the event contract")


def check_subscription(topics: Sequence[str], group: str) -> None:
    """Refuse topics outside the contract and an empty group name with `InvalidOption`."""
    strangers = set(topics) - {topic.name for topic in TOPICS}
    if strangers or not topics or not group:
        raise InvalidOption(
            f"a subscription of group {group!r} to {list(topics)}", expected="a named group and topics of the event contract"
        )
