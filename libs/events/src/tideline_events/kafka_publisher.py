"""A transactional Kafka producer as `Publisher`. The broker fences it by its transactional id."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer

from tideline_events.envelope import stamped
from tideline_events.errors import EventLogUnavailable, PublisherFenced, PublishUnknown
from tideline_events.kafka_options import CLIENT_LOG, accepted_options
from tideline_events.kafka_subscription import REBALANCED, KafkaSubscription
from tideline_events.log import Publisher, Subscription, check_records
from tideline_events.record import Record
from tideline_events.topics import TopicSettings
from tideline_events.wire import Wire
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

# Names with an underscore are librdkafka's own codes, which have no public name.
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})  # noqa: SLF001
_NEW_PUBLISHER = "open a new publisher, which aborts the open transaction of this one, and read the cursor"


class KafkaPublisher(Publisher):
    """`Publisher` with `transactional.id` = the writer id."""

    def __init__(
        self,
        client: Mapping[str, str | int | float | bool],
        clock: Clock,
        writer_id: str,
        timeout_s: float,
        transaction_timeout_s: float,
        topics: TopicSettings,
        wire: Wire,
    ) -> None:
        options: dict[str, str | int | float | bool] = {
            **client,
            "transactional.id": topics.client(writer_id),
            "transaction.timeout.ms": round(transaction_timeout_s * 1000),
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "linger.ms": 0,
            "message.max.bytes": 1_048_576,
        }
        with accepted_options(client):
            self._producer = Producer(options, logger=CLIENT_LOG)
        self._clock = clock
        self._writer_id = writer_id
        self._topics = topics
        self._wire = wire
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._ended: TidelineError | None = None
        try:
            self._producer.init_transactions(timeout_s)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in _FENCED:
                raise PublisherFenced(writer_id) from failure
            raise EventLogUnavailable(
                f"taking over writer id {writer_id!r}: {error.str()}", remedy="check the brokers, then retry"
            ) from failure

    def publish(self, *records: Record, reader: Subscription | None = None) -> None:
        check_records(records)
        now = self._clock.now()
        records = tuple(self._wire.written(stamped(record, now)) for record in records)
        with self._turn:
            if self._ended is not None:
                raise self._ended
            member = reader if isinstance(reader, KafkaSubscription) else None
            membership = None if member is None else member.membership()
            is_ending = False
            try:
                self._producer.begin_transaction()
                for record in records:
                    self._send(record)
                if membership is not None:
                    offsets, who = membership
                    self._in_time(lambda timeout_s: self._producer.send_offsets_to_transaction(offsets, who, timeout_s))
                is_ending = True
                self._commit()
            except (KafkaException, BufferError) as failure:
                self._give_up(failure, member, is_ending=is_ending)

    def close(self) -> None:
        with self._turn:
            if self._ended is None:
                self._ended = EventLogUnavailable("the publisher is closed", remedy="open a new publisher")
                self._producer.close()

    def _send(self, record: Record) -> None:
        self._producer.produce(self._topics.name(record.topic), key=record.key, value=record.value, headers=list(record.headers))

    def _commit(self) -> None:
        # The client continues a commit that timed out in the background. The next call waits for the same commit.
        self._in_time(self._producer.commit_transaction)

    def _in_time(self, step: Callable[[float], object]) -> None:
        """Repeat a step of a transaction, which takes a timeout, while that may help."""
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            try:
                step(max(0.1, deadline_s - self._clock.monotonic_s()))
            except KafkaException as failure:
                if not failure.args[0].retriable() or self._clock.monotonic_s() >= deadline_s:
                    raise
            else:
                return

    def _give_up(self, failure: KafkaException | BufferError, member: KafkaSubscription | None, *, is_ending: bool) -> NoReturn:
        """Abort a failed transaction if that is possible. With `is_ending` its commit was sent.

        Raise `PublisherFenced`, `PublishUnknown`, `CommitLost` or `EventLogUnavailable`.
        """
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        text = error.str() if error is not None else str(failure)
        is_lost = member is not None and error is not None and error.code() in REBALANCED
        if error is not None and error.code() in _FENCED:
            self._ended = PublisherFenced(self._writer_id)
        elif error is not None and not is_lost and (error.fatal() or (is_ending and _is_unknown(error))):
            self._ended = PublishUnknown(f"publication by {self._writer_id!r} ended in {text}", remedy=_NEW_PUBLISHER)
        else:
            self._abort()
        if self._ended is not None:
            raise self._ended from failure
        if member is not None and is_lost:
            raise member.lost(text) from failure
        raise EventLogUnavailable(f"publication by {self._writer_id!r} was aborted: {text}", remedy="retry") from failure

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in _FENCED:
                self._ended = PublisherFenced(self._writer_id)
            else:
                self._ended = PublishUnknown(f"abort by {self._writer_id!r} ended in {error.str()}", remedy=_NEW_PUBLISHER)


def _is_unknown(error: KafkaError) -> bool:
    """Return whether a commit that ended with this error may be completed by the broker."""
    return error.retriable() and not error.txn_requires_abort()
