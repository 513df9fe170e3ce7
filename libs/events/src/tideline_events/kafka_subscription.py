"""A member of a Kafka consumer group as `Subscription`."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tideline_events.errors import CommitLost, EventLogUnavailable
from tideline_events.kafka_options import CLIENT_LOG, accepted_options
from tideline_events.log import POLL_LIMIT
from tideline_events.partitioner import partition_of
from tideline_events.record import Record
from tideline_events.topics import TopicSettings
from tideline_table.clock import Clock

_log = logging.getLogger(__name__)
CHECK_EVERY_S = 15.0
"""Interval at which a reader asks whether its topics are still the same, and all of their partitions read."""
_LOOK_S = 1.0
# Names with an underscore are librdkafka's own codes, which have no public name.
_TRANSIENT = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._MAX_POLL_EXCEEDED})  # noqa: SLF001
REBALANCED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    }
)


class KafkaSubscription:
    """`Subscription` that shares the partitions of its topics with the other members of its group.

    A topic that was deleted and is there again has other records at the offsets that were read. Kafka says so only if it has fewer:
    the member compares the ids of its topics, and reads its partitions of a new one from the start. Offsets are committed with the
    id of their topic, because one that is committed late is the start of the next member in the new topic.
    """

    def __init__(
        self,
        client: Mapping[str, str | int | float | bool],
        partition_counts: Mapping[str, int],
        group: str,
        timeout_s: float,
        clock: Clock,
        topics: TopicSettings,
        topic_ids: Callable[[], Mapping[str, str]],
        readers: Callable[[], Mapping[str, set[tuple[str, int]]]],
        *,
        from_beginning: bool,
    ) -> None:
        """`partition_counts`: the number of partitions of each topic to read, by its name in Kafka.

        `topic_ids`: see `EventLog.topic_ids`, for these topics. `readers` returns the partitions that each member of the group
        reads, by member id, and nothing while they are being divided.
        """
        options: dict[str, str | int | float | bool] = {
            **client,
            "group.id": topics.client(group),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            # A group without an offset starts at the oldest record: duplicates are harmless, missed records are not.
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            # The broker gives the partitions of a killed member to another one when the session ends.
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 2_000,
        }
        with accepted_options(client):
            self._consumer = Consumer(options, logger=CLIENT_LOG)
        self._clock = clock
        self._group = group
        self._topics = topics
        self._timeout_s = timeout_s
        self._counts = dict(partition_counts)
        self._assigned: set[tuple[str, int]] = set()
        self._uncounted: set[str] = set()
        self._unchecked: set[tuple[str, int]] = set()
        """Partitions that came, of which the id of the committed offset was not looked at."""
        self._generation = 0
        self._uncommitted: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        """The offsets that this member committed, of its partitions."""
        self._ask_ids = topic_ids
        self._ask_readers = readers
        self._was_unread = False
        self._check_at_s = clock.monotonic_s() + CHECK_EVERY_S
        self._closed = False
        self._trouble: EventLogUnavailable | None = None
        try:
            # Asked before anything is read: then what is read is of these topics or of later ones.
            self._ids = dict(topic_ids())
            if not from_beginning:
                partitions = [TopicPartition(topic, p) for topic, count in self._counts.items() for p in range(count)]
                self._settle_start(partitions, timeout_s)
            self._join()
        except KafkaException as failure:
            self._consumer.close()
            raise EventLogUnavailable(f"joining group {group!r}: {failure.args[0].str()}", remedy="retry") from failure
        except EventLogUnavailable:
            self._consumer.close()
            raise

    def poll(self, timeout_s: float) -> list[Record]:
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        self._check()
        deadline_s = self._clock.monotonic_s() + timeout_s
        records: list[Record] = []
        while not records and self._trouble is None:
            message = self._poll_one(max(0.0, deadline_s - self._clock.monotonic_s()))
            if message is not None:
                # Take the record before the next call, which may revoke its partition and must then forget it.
                self._take(message, records)
                # Messages that are already fetched need no waiting.
                for fetched in self._consumer.consume(POLL_LIMIT - 1, timeout=0):
                    self._take(fetched, records)
            elif self._clock.monotonic_s() >= deadline_s:
                return []
        if not records and self._trouble is not None:
            return self.poll(0.0)
        return records

    def commit(self) -> None:
        self._check()
        if offsets := self._partitions(self._uncommitted):
            self._commit(offsets)
            self._committed |= self._uncommitted
            self._uncommitted.clear()

    def membership(self) -> tuple[list[TopicPartition], Any]:
        """Return what a transaction must hold that only a member may commit: an offset that the group has, and who the member is.

        The broker asks who it is only with an offset. Raises `CommitLost` if this member has left the group.
        """
        offsets = self._partitions(self._committed)[:1] or self._start_of_one()
        who = self._consumer.consumer_group_metadata()
        # Without a name the broker takes the offsets of anyone.
        if not offsets or who is None or not self._consumer.memberid():
            raise self.lost("this member has left it")
        return offsets, who

    def lost(self, why: str) -> CommitLost:
        """Return the error that says that the broker refused what this member committed."""
        return CommitLost(
            f"group {self._group!r} was rebalanced: {why}", remedy="continue to poll; the records are delivered again"
        )

    @property
    def generation(self) -> int:
        return self._generation

    def owns(self, table_uid: str) -> bool:
        self._count()
        key = table_uid.encode()
        return any((topic, partition_of(key, count)) in self._assigned for topic, count in self._counts.items())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _check(self) -> None:
        """Go back to the start in partitions whose offset is of a topic that was deleted since."""
        lost, ids = self._begun_in_deleted(), self._ids
        if self._clock.monotonic_s() >= self._check_at_s:
            ids = dict(self._ask_ids())
            others = {self._topics.name(name) for name, topic_id in ids.items() if self._ids.get(name) != topic_id}
            lost |= {one for one in self._assigned if one[0] in others}
            self._divide_unread()
            self._check_at_s = self._clock.monotonic_s() + CHECK_EVERY_S
        for one in sorted(lost):
            self._uncommitted.pop(one, None)
            self._committed.pop(one, None)
            try:
                self._consumer.seek(TopicPartition(*one, OFFSET_BEGINNING))
            except KafkaException as failure:
                self._unchecked |= lost
                self._check_at_s = self._clock.monotonic_s()
                raise EventLogUnavailable(f"group {self._group!r}: {failure.args[0].str()}", remedy="retry") from failure
        self._ids = ids

    def _divide_unread(self) -> None:
        """Join the group again, so that Kafka divides all partitions, if no member reads one of them now and at the last check.

        A rebalance takes partitions from a member, which then says that they are free. If it dies in between and has a name, it
        gets its other partitions back without a rebalance, and nobody gets those.
        """
        self._count()
        readers = self._ask_readers()
        read = set().union(*readers.values())
        is_unread = bool(readers) and any((topic, n) not in read for topic, count in self._counts.items() for n in range(count))
        if is_unread and self._was_unread and self._consumer.memberid() == min(readers):
            _log.warning("group %s: no member reads some partitions; this member joins again", self._group)
            self._consumer.unsubscribe()
            self._join()
        self._was_unread = is_unread

    def _join(self) -> None:
        self._consumer.subscribe(list(self._counts), on_assign=self._note, on_revoke=self._forget)

    def _begun_in_deleted(self) -> set[tuple[str, int]]:
        """Return those of the partitions that came whose committed offset is of a topic that was deleted."""
        asked = [TopicPartition(*one) for one in sorted(self._unchecked & self._assigned)]
        try:
            found = self._consumer.committed(asked, _LOOK_S) if asked else []
        except KafkaException:
            return set()  # the brokers are away, or a transaction of the member before is open: the next call asks again
        self._unchecked.clear()
        return {(at.topic, at.partition) for at in found if at.offset >= 0 and at.metadata and at.metadata != self._id_of(at.topic)}

    def _id_of(self, topic: str) -> str:
        return self._ids.get(self._topics.of_contract(topic), "")

    def _partitions(self, offsets: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
        return [TopicPartition(topic, number, offset, self._id_of(topic)) for (topic, number), offset in offsets.items()]

    def _poll_one(self, timeout_s: float) -> Message | None:
        try:
            return self._consumer.poll(timeout_s)
        except KafkaException as failure:
            raise EventLogUnavailable(f"group {self._group!r}: {failure.args[0].str()}", remedy="retry") from failure

    def _take(self, message: Message, records: list[Record]) -> None:
        """Add the record of a message and remember it for `commit`. An error that is not transient is raised by the next `poll`."""
        error = message.error()
        if error is None:
            record = record_of(message, self._topics)
            self._uncommitted[message.topic() or "", record.partition] = record.offset + 1
            records.append(record)
        elif error.code() in _TRANSIENT or error.retriable():
            _log.info("group %s: %s", self._group, error.str())
        else:
            self._trouble = EventLogUnavailable(
                f"group {self._group!r}: {error.str()}", remedy="check the topics and the permissions, then retry"
            )

    def _commit(self, offsets: list[TopicPartition]) -> None:
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as failure:
            errors = [failure.args[0]]
        else:
            errors = [answer.error for answer in answers if answer.error is not None]
        if not errors:
            return
        if errors[0].code() in REBALANCED:
            raise self.lost(errors[0].str())
        raise EventLogUnavailable(f"commit of group {self._group!r}: {errors[0].str()}", remedy="retry")

    def _start_of_one(self) -> list[TopicPartition]:
        """Return the offset from which the group reads one of the partitions of this member, of which it has read nothing yet."""
        try:
            for at in self._consumer.committed([TopicPartition(*one) for one in sorted(self._assigned)[:1]], self._timeout_s):
                ends = self._consumer.get_watermark_offsets(at, timeout=self._timeout_s)
                offset = at.offset if at.offset >= 0 else ends[0] if ends else 0
                return [TopicPartition(at.topic, at.partition, offset, at.metadata or self._id_of(at.topic))]
        except KafkaException as failure:
            raise EventLogUnavailable(f"group {self._group!r}: {failure.args[0].str()}", remedy="retry") from failure
        return []

    def _settle_start(self, partitions: list[TopicPartition], timeout_s: float) -> None:
        """Commit the current ends of partitions for which the group has no offsets.

        A member that dies before its first commit then does not move the group's start past records that arrive in between.
        """
        missing = [p for p in self._consumer.committed(partitions, timeout=timeout_s) if p.offset < 0]
        ends = [self._consumer.get_watermark_offsets(p, timeout=timeout_s) for p in missing]
        offsets = self._partitions(
            {(p.topic, p.partition): end[1] for p, end in zip(missing, ends, strict=True) if end is not None}
        )
        try:
            if offsets:
                self._commit(offsets)
        except CommitLost:
            # The group already has members, and the first one committed the start for all.
            _log.info("group %s already has committed offsets", self._group)

    def _note(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Note what came. A callback asks the client nothing: its calls do not nest, and the next callback kills the process."""
        self._uncounted |= {partition.topic for partition in partitions}
        came = {(partition.topic, partition.partition) for partition in partitions}
        self._assigned |= came
        self._unchecked |= came
        self._generation += bool(partitions)

    def _count(self) -> None:
        """Ask for the partitions of topics that came: one that was deleted and made again may have another number of them."""
        while self._uncounted:
            topic = self._uncounted.pop()
            with contextlib.suppress(KafkaException):
                found = self._consumer.list_topics(topic, timeout=self._timeout_s).topics[topic].partitions
                self._counts[topic] = len(found) or self._counts[topic]

    def _forget(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget the offsets of partitions that another member took over: this member must not commit them."""
        for partition in partitions:
            self._assigned.discard((partition.topic, partition.partition))
            self._uncommitted.pop((partition.topic, partition.partition), None)
            self._committed.pop((partition.topic, partition.partition), None)


def record_of(message: Message, topics: TopicSettings) -> Record:
    """Return the record of a message that is no error. Headers are dropped if the name of one is no UTF-8."""
    try:
        headers = tuple((name, _bytes(value)) for name, value in _pairs(message))
    except UnicodeDecodeError:
        # A header name is not text. Without headers, `decode` raises `PoisonEvent` for the record, and its partition is read on.
        headers = ()
    return Record(
        topics.of_contract(message.topic() or ""),
        message.key(),
        message.value(),
        headers,
        partition=_or_unread(message.partition()),
        offset=_or_unread(message.offset()),
    )


def _pairs(message: Message) -> list[tuple[str, str | bytes | None]]:
    headers = message.headers() or []
    return list(headers.items() if isinstance(headers, dict) else headers)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _or_unread(number: int | None) -> int:
    return -1 if number is None else number
