"""Notifications of an object store from a topic of Kafka, as MinIO sends them."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Mapping

from tideline_mirror.notification_port import SETTING, NotificationsUnavailable
from tideline_table.extras import extra

with extra("kafka"):
    from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

    from tideline_events.kafka_options import CLIENT_LOG, accepted_options

_MOST = 500
_TIMEOUT_S = 10.0
_POLL_S = 1.0
_BROKERS_EVERY_S = 30.0


class KafkaNotifications:
    """A reader of all partitions of a topic, from now on and without a group: each mirror reads all of it.

    What was sent before is not read: who opens a source looks at all tables once.
    """

    def __init__(self, brokers: str, topic: str, options: Mapping[str, str]) -> None:
        client: dict[str, str | int | float | bool] = {
            **options,
            "bootstrap.servers": brokers,
            "client.id": "tideline",
            "group.id": "tideline-notifications",
            "enable.auto.commit": False,
            # Truncated: what is gone is gone. An audit notices it.
            "auto.offset.reset": "latest",
        }
        with accepted_options(options, SETTING):
            self._consumer = Consumer(client, logger=CLIENT_LOG)
        self._topic = topic
        self._idle_s = 0.0
        try:
            numbers = self._partitions()
            starts = []
            for number in numbers:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_TIMEOUT_S)
                starts.append(TopicPartition(topic, number, end if end >= 0 else OFFSET_END))
            self._consumer.assign(starts)
        except (KafkaException, NotificationsUnavailable) as failure:
            self._consumer.close()
            raise _unavailable(str(failure)) from failure
        self._count = len(numbers)

    def receive(self, timeout_s: float) -> list[bytes | str]:
        try:
            # The end of a process waits for a call that runs.
            first = self._consumer.poll(min(_POLL_S, timeout_s))
            found = [first, *self._consumer.consume(_MOST, timeout=0)] if first is not None else []
            self._idle_s = 0.0 if found else self._idle_s + min(_POLL_S, timeout_s)
            if self._idle_s >= _BROKERS_EVERY_S:
                # librdkafka waits in silence for brokers that are away, and for partitions that were added.
                self._idle_s = 0.0
                if len(self._partitions()) != self._count:
                    raise _unavailable(f"topic {self._topic} has other partitions than before")
        except KafkaException as failure:
            raise _unavailable(str(failure)) from failure
        values: list[bytes | str] = []
        for message in found:
            error = message.error()
            if error is not None and not error.retriable():
                raise _unavailable(error.str())
            value = message.value()
            if error is None and value is not None:
                values.append(value)
        return values

    def close(self) -> None:
        self._consumer.close()

    def _partitions(self) -> list[int]:
        known = self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S).topics[self._topic]
        if known.error is not None or not known.partitions:
            raise _unavailable(f"topic {self._topic}: {known.error.str() if known.error is not None else 'no partition'}")
        return sorted(known.partitions)


def _unavailable(why: str) -> NotificationsUnavailable:
    return NotificationsUnavailable(
        f"the topic of notifications: {why}", expected="a topic that this process may read", remedy="retry"
    )
