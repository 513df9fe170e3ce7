"""The event-log port. `sqlite` and `kafka` implement it; one contract suite (`tests/contract/events`) tests both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from tideline_events.envelope import encode
from tideline_events.errors import InvalidEvent
from tideline_events.payload import TableChange, TableRecord, Transition
from tideline_events.record import MAX_RECORD_BYTES, Record
from tideline_events.topics import Topic, topic_named
from tideline_table.errors import InvalidOption

POLL_LIMIT = 500
"""Most records that one `Subscription.poll` returns."""


class Publisher(Protocol):
    """Appends records, all of one call or none, under a writer id that only one publisher can hold.

    Thread-safe: calls are serialized. Errors: `PublisherFenced` once a newer publisher of the same writer id exists (at the latest
    at the next call), `EventLogUnavailable` if no record became visible and the call may be repeated, `PublishUnknown` if only
    a new publisher can find out whether the records became visible, `InvalidEvent` for records that must not be published.
    """

    def publish_transitions(
        self,
        table_uid: str,
        transitions: Sequence[Transition],
        table_record: TableRecord,
        changes: Sequence[TableChange] = (),
        *,
        traceparent: str | None = None,
    ) -> None:
        """Publish transitions and changes of one table and its new record (the cursor) so that they become visible together.

        The transitions are in order and gapless; `table_record.sequence` is the sequence of the last one.
        """
        self.publish(*transition_records(table_uid, transitions, table_record, changes, traceparent))

    def publish(self, *records: Record, reader: Subscription | None = None) -> None:
        """Publish records (jobs, locks, hints, dead letters, table records, positions) so that they become visible together.

        With `reader`, a subscription of this log whose group the positions are of, they become visible only while it is a member
        of its group (`CommitLost`). A log without partitions leaves out positions behind those that are there.
        """

    def close(self) -> None:
        """Release connections; safe to call twice."""


class Subscription(Protocol):
    """Reads topics for one group, at least once: after a restart, uncommitted records are read again. Not thread-safe."""

    def poll(self, timeout_s: float) -> list[Record]:
        """Return the next records, in order within each partition, none of an open or aborted transaction.

        Returns as soon as there is a record; empty after `timeout_s` without any. Errors: `EventLogUnavailable`.
        """

    def commit(self) -> None:
        """Store durably that the group has read everything that `poll` returned. Errors: `CommitLost`, `EventLogUnavailable`."""

    @property
    def generation(self) -> int:
        """A number that grows when this member gets partitions, which other members may have read meanwhile.

        0 before it has any.
        """

    def owns(self, table_uid: str) -> bool:
        """Return whether this member reads the events of a table now. Another member of the group may own it."""

    def close(self) -> None:
        """Leave the group without committing; safe to call twice."""


class Tail(Protocol):
    """Reads topics without a group: it stores no position, and takes no partition from any member. Not thread-safe."""

    def poll(self, timeout_s: float) -> list[Record]:
        """See `Subscription.poll`."""

    def is_at_end(self) -> bool:
        """Return whether all records that the topics held when the tail was opened are read."""

    def close(self) -> None:
        """Release connections; safe to call twice."""


class EventLog(Protocol):
    """The event log of a deployment. It may be lost: the table logs are the truth, and the mirror can publish from them again.

    Every method may raise `EventLogUnavailable`, and the embedded log `EventLogCorrupt`.
    """

    def ensure_topics(self, members: Collection[str] = ()) -> frozenset[str]:
        """Create missing topics and return the names of those. Also a probe: `EventLogUnavailable` if the log does not answer.

        `members` are names of topics of families, which are created too. Errors: `TopicMismatch` if a topic exists with settings
        that break the contract.
        """

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """Return by name what tells these topics, which exist, from deleted ones of the same name.

        The embedded log, whose topics are only lost all together, returns nothing.
        """

    def publisher(self, writer_id: str) -> Publisher:
        """Take over `writer_id` (a shard of the mirror, or one process of a service). Older publishers of that id are fenced.

        Their open transactions are aborted before this call returns, so a cursor read afterwards is final: take the publisher
        first, then read the cursor. Raises `PublisherFenced` if yet another publisher takes over the writer id meanwhile.
        """

    def cursor(self, table_uid: str) -> TableRecord | None:
        """Return the last visible record of a table; None if none is readable (the mirror then publishes from the start)."""

    def table_records(self) -> Iterator[TableRecord]:
        """Yield the last visible record of every table, in no order. Unreadable records are skipped."""

    def positions(self, group: str) -> dict[str, int]:
        """Return the last sequence that a consumer group stored for each table, by table uid."""

    def last_records(self, topic: Topic) -> dict[bytes, Record]:
        """Return the last visible record of each key of a compacted topic, without deleted keys."""

    def subscribe(self, topics: Sequence[str], group: str, *, from_beginning: bool = True, member: str = "") -> Subscription:
        """Join a group. A group without offsets starts at the oldest record if `from_beginning`, else after the current newest.

        Kafka divides partitions among members of a group; on the embedded log each member reads everything. With `member`, a name
        that is unique in the group and stays over restarts, a restarted member gets its partitions back without a rebalance. Raises
        `InvalidOption` for topics outside the contract, for no topics, and for an empty group name.
        """

    def tail(self, topics: Sequence[str], since: datetime | None = None) -> Tail:
        """Read topics without a group, from the oldest record, or from the first one that was published at `since` or later.

        Raises `InvalidOption` for topics outside the contract, and for no topics.
        """

    def close(self) -> None:
        """Release connections of the log itself. Callers close the publishers and subscriptions that they opened."""


def transition_records(
    table_uid: str,
    transitions: Sequence[Transition],
    table_record: TableRecord,
    changes: Sequence[TableChange] = (),
    traceparent: str | None = None,
) -> list[Record]:
    """Return the records of one `Publisher.publish_transitions`. Raises `InvalidEvent` if the batch breaks its contract."""
    events: list[Transition | TableChange | TableRecord] = [*transitions, *changes, table_record]
    unexpected = {event.table_uid for event in events} - {table_uid}
    if unexpected:
        raise InvalidEvent(f"events of tables {sorted(unexpected)}", expected=f"only those of {table_uid}")
    sequences = [event.sequence for event in transitions]
    if sequences and sequences != list(range(sequences[0], sequences[0] + len(sequences))):
        raise InvalidEvent(f"sequences {sequences[:20]}", expected="sequences without gaps")
    if sequences and sequences[-1] != table_record.sequence:
        raise InvalidEvent(
            f"a table record at sequence {table_record.sequence}", expected=f"{sequences[-1]}, that of the last transition"
        )
    return [encode(event, traceparent=traceparent) for event in events]


def check_records(records: Sequence[Record]) -> None:
    """Raise `InvalidEvent` for a record that is too large, or whose topic is not in the event contract."""
    for record in records:
        size_bytes = len(record.key or b"") + len(record.value or b"")
        size_bytes += sum(len(name) + len(value or b"") for name, value in record.headers)
        if size_bytes > MAX_RECORD_BYTES + 32 * 1024:
            raise InvalidEvent(f"a record of {size_bytes} bytes", expected=f"a value of at most {MAX_RECORD_BYTES}")
        if topic_named(record.topic) is None:
            raise InvalidEvent(f"topic {record.topic!r}", expected="a topic of the event contract")


def check_subscription(topics: Sequence[str], group: str) -> None:
    """Raise `InvalidOption` for topics outside the contract, for no topics, and for an empty group name."""
    if None in map(topic_named, topics) or not topics or not group:
        raise InvalidOption(
            f"a subscription of group {group!r} to {list(topics)}", expected="a named group and topics of the event contract"
        )
