"""Writes poison records to a dead-letter topic before the commit that skips them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tideline_ingest.errors import TopicUnavailable
from tideline_ingest.screening import Rejected

_log = logging.getLogger(__name__)
PREFIX = "tideline-"
_AT_ONCE = 10_000
"""Records per flush. The client's queue is bounded and is emptied only while waiting for acknowledgements."""


class DeadLetters:
    """Writes records to one topic, with unchanged key, value and headers, and more headers for the record's origin and the reason.

    Each record is written at least once: a repeated batch repeats its dead letters. Duplicates have the same topic, partition
    and offset in their headers.
    """

    def __init__(self, client: Mapping[str, str], topic: str, application_id: str, timeout_s: float) -> None:
        self._producer = Producer({**client, "enable.idempotence": True, "acks": "all"}, logger=_log)
        self._topic = topic
        self._application_id = application_id
        self._timeout_s = timeout_s

    def write(self, rejected: Sequence[Rejected]) -> None:
        """Write all of `rejected` and return when the brokers have acknowledged them. Raises `TopicUnavailable`."""
        for start in range(0, len(rejected), _AT_ONCE):
            self._write(rejected[start : start + _AT_ONCE])

    def _write(self, rejected: Sequence[Rejected]) -> None:
        failures: list[str] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error.str())

        try:
            for one in rejected:
                self._producer.produce(
                    self._topic, value=one.record.value, key=one.record.key, headers=self._headers(one), on_delivery=delivered
                )
            left = self._producer.flush(self._timeout_s)
        except (KafkaException, BufferError) as error:
            raise TopicUnavailable(
                f"dead letters to {self._topic}: {error}", remedy="check the brokers; nothing was committed"
            ) from error
        if left or failures:
            reason = failures[0] if failures else f"{left} records were not acknowledged"
            raise TopicUnavailable(
                f"dead letters to {self._topic}: {reason}", remedy="check the topic and the permissions; nothing was committed"
            )

    def close(self) -> None:
        """Close the producer. Drops undelivered records, because their batch was not committed."""
        self._producer.purge()
        self._producer.flush(self._timeout_s)

    def _headers(self, one: Rejected) -> list[tuple[str, str | bytes | None]]:
        topic, partition = one.record.place
        origin = {
            "application": self._application_id,
            "topic": topic,
            "partition": str(partition),
            "offset": str(one.record.offset),
            "reason": one.reason,
        }
        return [*one.record.headers, *((f"{PREFIX}{name}", text.encode()) for name, text in origin.items())]
