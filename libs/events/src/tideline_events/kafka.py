"""The event log on Kafka, with idempotent, transactional producers and read-committed consumers."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import tenacity
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its public names are not marked as exported
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from tideline_events.envelope import decode
from tideline_events.errors import EventLogUnavailable, PoisonEvent, TopicMismatch
from tideline_events.kafka_options import CLIENT_LOG, accepted_options
from tideline_events.kafka_publisher import KafkaPublisher
from tideline_events.kafka_subscription import KafkaSubscription, record_of
from tideline_events.kafka_tail import KafkaTail
from tideline_events.log import check_subscription
from tideline_events.partitioner import partition_of
from tideline_events.payload import TableRecord
from tideline_events.positions import positions_in
from tideline_events.record import Record
from tideline_events.topics import POSITIONS, TABLES, TOPICS, Topic, TopicSettings, topic_named
from tideline_events.wire import Wire
from tideline_table.clock import Clock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The address of Kafka, time limits, and the settings of new topics.

    `bootstrap_servers`: host:port,host:port. `partition_count` is fixed when a topic is created; `replication_factor` -1 is the
    broker's default. `timeout_s` bounds each request; a dead publisher can delay readers for `transaction_timeout_s`.
    `client_options` are passed to librdkafka unchanged (security.protocol, sasl.*, ssl.*) and omitted from `repr`.
    """

    bootstrap_servers: str
    partition_count: int = 12
    replication_factor: int = -1
    timeout_s: float = 30.0
    transaction_timeout_s: float = 30.0
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: TopicSettings = field(default_factory=TopicSettings)
    wire: Wire = field(default_factory=Wire)

    def client(self) -> dict[str, str | int | float | bool]:
        """Return the configuration that all clients share."""
        return {**self.client_options, "bootstrap.servers": self.bootstrap_servers, "client.id": "tideline"}


class KafkaEventLog:
    """`EventLog` on a Kafka cluster.

    Whatever creates a client raises `InvalidOption` if librdkafka refuses `client_options`: the constructor, and, for options
    of producers or consumers only, `publisher`, `cursor`, `table_records` and `subscribe`.
    """

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        self._settings = settings
        self._contract = tuple(map(settings.topics.own, TOPICS))
        self._clock = clock
        client = settings.client()
        with accepted_options(client):
            self._admin = AdminClient(client, logger=CLIENT_LOG)

    def ensure_topics(self, members: Collection[str] = ()) -> frozenset[str]:
        """See `EventLog.ensure_topics`. An existing topic keeps its partitions: another count would break the order of keys."""
        named = filter(None, map(topic_named, members))
        contract = (*self._contract, *map(self._settings.topics.own, named))
        created = {topic.name for topic in contract} - self._topics().keys()
        if created:
            wanted = [_new_topic(topic, self._settings) for topic in contract if topic.name in created]
            for name, future in self._admin.create_topics(wanted, request_timeout=self._settings.timeout_s).items():
                _answer(f"creation of topic {name}", future.result, accept=KafkaError.TOPIC_ALREADY_EXISTS)
        self._await("topics without a leader", lambda: self._have_leaders(contract))
        policies = self._await("topics that the broker does not know yet", lambda: self._policies(contract))
        for topic in contract:
            if policies[topic.name] != _policy(topic):
                raise TopicMismatch(
                    f"cleanup.policy {policies[topic.name]} of topic {topic.name}",
                    expected=_policy(topic),
                    remedy="alter cleanup.policy of the topic",
                )
        self._settings.wire.prepare()
        return frozenset(map(self._settings.topics.of_contract, created))

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        asked = TopicCollection([self._settings.topics.name(name) for name in names])
        found = {}
        for topic, future in self._admin.describe_topics(asked, request_timeout=self._settings.timeout_s).items():
            if (told := _answer(f"id of topic {topic}", future.result)) is not None:
                found[self._settings.topics.of_contract(topic)] = str(told.topic_id)
        return found

    def publisher(self, writer_id: str) -> KafkaPublisher:
        settings = self._settings
        return KafkaPublisher(
            settings.client(),
            self._clock,
            writer_id,
            settings.timeout_s,
            settings.transaction_timeout_s,
            settings.topics,
            settings.wire,
        )

    def cursor(self, table_uid: str) -> TableRecord | None:
        """See `EventLog.cursor`. Reads the whole partition of the table: for many tables `table_records` costs less."""
        key = table_uid.encode()
        partition = partition_of(key, self._partition_count(TABLES.name))
        return _table_record(self._last_records(TABLES, [partition]).get(key))

    def table_records(self) -> Iterator[TableRecord]:
        for record in self._last_records(TABLES, range(self._partition_count(TABLES.name))).values():
            if (known := _table_record(record)) is not None:
                yield known

    def positions(self, group: str) -> dict[str, int]:
        return positions_in(self.last_records(POSITIONS).values(), group)

    def last_records(self, topic: Topic) -> dict[bytes, Record]:
        found = self._last_records(topic, range(self._partition_count(topic.name)))
        return {key: record for key, record in found.items() if record.value is not None}

    def subscribe(self, topics: Sequence[str], group: str, *, from_beginning: bool = True, member: str = "") -> KafkaSubscription:
        check_subscription(topics, group)
        counts = {self._settings.topics.name(topic): self._partition_count(topic) for topic in topics}
        settings, client = self._settings, self._settings.client()
        if member:
            client["group.instance.id"] = member
        return KafkaSubscription(
            client,
            counts,
            group,
            settings.timeout_s,
            self._clock,
            settings.topics,
            lambda: self.topic_ids(topics),
            lambda: self._readers(settings.topics.client(group)),
            from_beginning=from_beginning,
        )

    def tail(self, topics: Sequence[str], since: datetime | None = None) -> KafkaTail:
        check_subscription(topics, "tail")
        counts = {self._settings.topics.name(topic): self._partition_count(topic) for topic in topics}
        settings = self._settings
        return KafkaTail(
            settings.client(), counts, since, settings.timeout_s, self._clock, settings.topics, lambda: self.topic_ids(topics)
        )

    def close(self) -> None:
        """See `EventLog.close`. The only connection of the log to Kafka ends with this object."""
        self._settings.wire.close()

    def _readers(self, group: str) -> dict[str, set[tuple[str, int]]]:
        """Return the partitions that each member of a group reads, by member id; nothing if it is not at rest or no broker says."""
        (future,) = self._admin.describe_consumer_groups([group], request_timeout=self._settings.timeout_s).values()
        try:
            found = future.result()
        except KafkaException:
            return {}
        if found.state != ConsumerGroupState.STABLE:
            return {}
        return {m.member_id: {(at.topic, at.partition) for at in m.assignment.topic_partitions} for m in found.members}

    def _partition_count(self, of_contract: str) -> int:
        topic = self._settings.topics.name(of_contract)
        metadata = _answer(f"metadata of topic {topic}", lambda: self._admin.list_topics(topic, timeout=self._settings.timeout_s))
        found = None if metadata is None else metadata.topics.get(topic)
        if found is None or found.error is not None or not found.partitions:
            raise EventLogUnavailable(f"no topic {topic}", remedy="create the topics (ensure_topics), then retry")
        return len(found.partitions)

    def _topics(self) -> dict[str, TopicMetadata]:
        metadata = _answer("metadata of the topics", lambda: self._admin.list_topics(timeout=self._settings.timeout_s))
        return {} if metadata is None else {name: topic for name, topic in metadata.topics.items() if topic.error is None}

    def _have_leaders(self, contract: Sequence[Topic]) -> bool:
        """Return whether every partition of every topic has a leader. Before that, clients of a new topic fail."""
        topics = self._topics()
        return all(t.name in topics and all(p.leader >= 0 for p in topics[t.name].partitions.values()) for t in contract)

    def _policies(self, contract: Sequence[Topic]) -> dict[str, str]:
        """Return `cleanup.policy` by topic; nothing if the broker that answers has not heard of a new topic yet."""
        resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in contract]
        found: dict[str, str] = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=self._settings.timeout_s).items():
            entries = _answer(f"settings of topic {resource.name}", future.result, accept=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if entries is None:
                return {}
            found[resource.name] = entries["cleanup.policy"].value
        return found

    def _await(self, missing: str, ask: Callable[[], _T]) -> _T:
        """Call `ask` until its result is true, and return it.

        Raises `EventLogUnavailable` that names `missing` after `timeout_s`.
        """
        wait = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda result: not result),
            wait=tenacity.wait_exponential(multiplier=0.02, max=0.5),
            stop=tenacity.stop_after_delay(self._settings.timeout_s),
        )
        try:
            return wait(ask)
        except tenacity.RetryError as error:
            raise EventLogUnavailable(missing, remedy="check the brokers, then retry") from error

    def _last_records(self, topic: Topic, partitions: Sequence[int]) -> dict[bytes, Record]:
        """Return the last visible record of each key of a compacted topic in these partitions.

        Reads to the current end of the log, past open transactions, because a committed record may follow a record of another
        publisher's open transaction. The read therefore waits until the broker ends that transaction, at the latest at its timeout.
        """
        topic = self._settings.topics.own(topic)
        ends = self._ends([TopicPartition(topic.name, partition) for partition in partitions])
        options = {
            "group.id": self._settings.topics.client("tideline-cursor"),
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # The broker reports the end of a partition in an empty response, which it must not delay.
            "fetch.wait.max.ms": 20,
        }
        last: dict[bytes, Record] = {}
        deadline_s = self._clock.monotonic_s() + self._settings.timeout_s + self._settings.transaction_timeout_s
        client = self._settings.client()
        with accepted_options(client):
            opened = Consumer({**client, **options}, logger=CLIENT_LOG)
        with closing(opened) as consumer:
            consumer.assign([TopicPartition(topic.name, partition, OFFSET_BEGINNING) for partition in partitions])
            while ends:
                message = consumer.poll(1.0)
                if self._clock.monotonic_s() > deadline_s:
                    raise EventLogUnavailable(f"{topic.name} could not be read to its end", remedy="check the brokers, then retry")
                if message is None:
                    continue
                error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                if error is None:
                    record = record_of(message, self._settings.topics)
                    if record.key is not None:
                        last[record.key] = record
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
                    raise EventLogUnavailable(f"reading {topic.name}: {error.str()}", remedy="retry")
                elif offset >= ends.get(partition, 0):
                    ends.pop(partition, None)
        return last

    def _ends(self, partitions: list[TopicPartition]) -> dict[int, int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = dict.fromkeys(partitions, latest)
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._settings.timeout_s
        )
        ends: dict[int, int] = {}
        for partition, future in futures.items():
            answer = _answer(f"end of {partition.topic}", future.result)
            ends[partition.partition] = 0 if answer is None else answer.offset
        return ends


def _answer(what: str, ask: Callable[[], _T], accept: int | None = None) -> _T | None:
    """Return the response of a broker; None if it failed with the code `accept`. Raises `EventLogUnavailable`."""
    try:
        return ask()
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == accept:
            return None
        raise EventLogUnavailable(f"{what}: {error.str()}", remedy="check the brokers and the permissions, then retry") from failure


def _policy(topic: Topic) -> str:
    return "compact" if topic.compacted else "delete"


def _new_topic(topic: Topic, settings: KafkaSettings) -> NewTopic:
    retention_ms = str(topic.retention_s * 1000)
    config = {"cleanup.policy": _policy(topic)}
    if topic.compacted:
        # Compaction skips the newest segment of a partition. If segments were large, it would hold most of the topic.
        config |= {"delete.retention.ms": retention_ms, "segment.ms": str(3_600_000), "min.cleanable.dirty.ratio": "0.2"}
    else:
        config["retention.ms"] = retention_ms
    return NewTopic(topic.name, topic.partitions or settings.partition_count, settings.replication_factor, config=config)


def _table_record(record: Record | None) -> TableRecord | None:
    if record is None:
        return None
    try:
        event = decode(record)
    except PoisonEvent as poison:
        _log.warning("table record at %s/%d/%d is skipped: %s", record.topic, record.partition, record.offset, poison)
        return None
    return event if isinstance(event, TableRecord) else None
