"""Reads topics of Kafka without a consumer group as `Tail`."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tideline_events.errors import EventLogUnavailable
from tideline_events.kafka_options import CLIENT_LOG, accepted_options
from tideline_events.kafka_subscription import CHECK_EVERY_S, record_of
from tideline_events.log import POLL_LIMIT
from tideline_events.record import Record
from tideline_events.topics import TopicSettings
from tideline_table.clock import Clock


class KafkaTail:
    """`Tail` that assigns all partitions of its topics to itself. The broker knows no group of it.

    A topic that was deleted and is there again has other records at the offsets that were read: `poll` raises
    `EventLogUnavailable`, and the caller opens another tail.
    """

    def __init__(
        self,
        client: Mapping[str, str | int | float | bool],
        partition_counts: Mapping[str, int],
        since: datetime | None,
        timeout_s: float,
        clock: Clock,
        topics: TopicSettings,
        topic_ids: Callable[[], Mapping[str, str]],
    ) -> None:
        """`topic_ids`: see `EventLog.topic_ids`, for the topics of `partition_counts`."""
        options: dict[str, str | int | float | bool] = {
            **client,
            "group.id": topics.client("tideline-tail"),
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        with accepted_options(client):
            self._consumer = Consumer({**options, "error_cb": self._heard}, logger=CLIENT_LOG)
        self._clock = clock
        self._topics = topics
        self._ask_ids = topic_ids
        self._check_at_s = clock.monotonic_s() + CHECK_EVERY_S
        at = OFFSET_BEGINNING if since is None else round(since.timestamp() * 1000)
        partitions = [TopicPartition(topic, number, at) for topic, count in partition_counts.items() for number in range(count)]
        self._left = {(partition.topic, partition.partition) for partition in partitions}
        try:
            # Asked before anything is read: then what is read is of these topics or of later ones.
            self._ids = dict(topic_ids())
            # Without a record since that time, the result is the end of the partition.
            self._consumer.assign(partitions if since is None else self._consumer.offsets_for_times(partitions, timeout=timeout_s))
        except KafkaException as failure:
            self._consumer.close()
            raise EventLogUnavailable(
                f"reading {', '.join(partition_counts)}: {failure.args[0].str()}", remedy="retry"
            ) from failure
        except EventLogUnavailable:
            self._consumer.close()
            raise

    def poll(self, timeout_s: float) -> list[Record]:
        self._check_topics()
        deadline_s = self._clock.monotonic_s() + timeout_s
        records: list[Record] = []
        while not records:
            was_at_end = self.is_at_end()
            first = self._consumer.poll(max(0.0, deadline_s - self._clock.monotonic_s()))
            for message in [first, *self._consumer.consume(POLL_LIMIT - 1, timeout=0)] if first is not None else []:
                error = message.error()
                if error is None:
                    records.append(record_of(message, self._topics))
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
                    self._left.discard((message.topic() or "", message.partition() or 0))
                elif not error.retriable():
                    raise EventLogUnavailable(f"reading events: {error.str()}", remedy="retry")
            if self.is_at_end() > was_at_end or self._clock.monotonic_s() >= deadline_s:
                break
        return records

    def is_at_end(self) -> bool:
        return not self._left

    def _heard(self, error: KafkaError) -> None:
        """Let the next `poll` ask the brokers at once: it returns no error of its own while they are away."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's name for it
            self._check_at_s = self._clock.monotonic_s()

    def _check_topics(self) -> None:
        if self._clock.monotonic_s() < self._check_at_s:
            return
        if self._ids != self._ask_ids():
            raise EventLogUnavailable(f"topics were deleted: some of {', '.join(self._ids)}", remedy="read them from the start")
        self._check_at_s = self._clock.monotonic_s() + CHECK_EVERY_S

    def close(self) -> None:
        self._consumer.close()
