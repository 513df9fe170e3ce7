"""Reads partitions of topics from given offsets. Kafka only supplies records; the table determines where to begin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # its public names are not marked as exported

from tideline_ingest.batch import Batch, Received
from tideline_ingest.errors import TopicUnavailable
from tideline_ingest.offsets import Kept, Place
from tideline_table.clock import Clock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_NO_ID = str(Uuid(0, 0))
_MOST_AT_ONCE = 1000
_SLICE_S = 0.25
"""Maximum length of one wait, so that a request to stop is noticed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a batch. It is complete when the first one is reached."""

    rows: int
    size_bytes: int
    wait_s: float


class TopicReader:
    """Reads some partitions of some topics. Used by one thread. Raises `TopicUnavailable` if Kafka does not answer."""

    def __init__(
        self,
        client: Mapping[str, str],
        topics: Sequence[str],
        partitions: Sequence[int],
        group: str,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        options: dict[str, str | int | float | bool] = {
            **client,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # The table determines where to begin. With an offset that Kafka no longer holds, the client must fail, not choose
            # another one.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        self._consumer = Consumer(options, logger=_log)
        self._admin = AdminClient(dict(client), logger=_log)
        self._topics = tuple(topics)
        self._partitions = frozenset(partitions)
        self._timeout_s = timeout_s
        self._clock = clock
        self._next: dict[Place, int] = {}

    def places(self) -> set[Place]:
        """Return the partitions that exist now, without those that the settings leave to other applications."""
        found: set[Place] = set()
        for topic in self._topics:
            metadata = self._asked(f"partitions of {topic}", partial(self._admin.list_topics, topic, timeout=self._timeout_s))
            known = metadata.topics.get(topic)
            if known is None or known.error is not None or not known.partitions:
                raise TopicUnavailable(
                    f"topic {topic} does not exist", expected="a topic that exists", remedy="create it, or correct `topics`"
                )
            found |= {(topic, p) for p in known.partitions if not self._partitions or p in self._partitions}
        return found

    def topic_ids(self) -> dict[str, str]:
        """Return the topic ids. Topics of brokers that provide no ids are missing."""
        asked = TopicCollection(list(self._topics))
        answers = self._asked("topics", lambda: self._admin.describe_topics(asked, request_timeout=self._timeout_s))
        ids = {topic: str(self._asked(f"topic {topic}", answer.result).topic_id) for topic, answer in answers.items()}
        return {topic: found for topic, found in ids.items() if found != _NO_ID}

    def kept(self, places: set[Place]) -> dict[Place, Kept]:
        """Return the offset range that each partition holds now."""
        firsts = self._listed(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._listed(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {place: Kept(firsts[place], ends[place]) for place in places}

    def assign(self, points: Mapping[Place, int]) -> None:
        """Continue from these offsets and drop what was fetched before."""
        self._next = dict(points)
        try:
            self._consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in sorted(points.items())])
        except KafkaException as failure:
            raise _unavailable("assignment", failure.args[0]) from failure

    def read(self, limits: Limits, goes_on: Callable[[], bool], patience_s: float) -> Batch | None:
        """Return the next batch; None if no record arrives within `patience_s` seconds, and once `goes_on` returns false.

        In the latter case the records read so far are not part of the committed offsets, so a later instance reads them again.
        """
        records: list[Received] = []
        behind = dict(self._next)
        size_bytes, began_s = 0, self._clock.monotonic_s()
        while goes_on():
            waited_s = self._clock.monotonic_s() - began_s
            if (
                len(records) >= limits.rows
                or size_bytes >= limits.size_bytes
                or waited_s >= (limits.wait_s if records else patience_s)
            ):
                break
            for message in self._consumer.consume(self._count(limits, len(records), size_bytes), timeout=_SLICE_S):
                place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                if message.error() is not None:
                    self._note(message, place, offset, behind)
                    continue
                if not records:
                    began_s = self._clock.monotonic_s()
                records.append(_received(message, place, offset))
                behind[place] = offset + 1
                size_bytes += len(message)
        else:
            return None
        self._next = behind
        if not records:
            return None
        return Batch(tuple(sorted(records, key=lambda r: r.place)), dict(behind), began_s)

    def lag(self, committed: Mapping[Place, int]) -> dict[Place, int]:
        """Return the number of offsets after `committed` by partition, from the last replies of the brokers.

        Partitions of which nothing was fetched yet are left out.
        """
        found: dict[Place, int] = {}
        for place in self._next:
            try:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            except KafkaException:
                continue  # nothing was fetched from this partition yet
            # At the end of the partition the lag is 0, even if transaction markers follow the last record.
            at_end = self._next[place] >= end
            found[place] = 0 if at_end and committed.get(place) == self._next[place] else max(0, end - committed.get(place, 0))
        return found

    def probe(self) -> None:
        """Raise `TopicUnavailable` if the brokers do not answer."""
        self._asked("brokers", lambda: self._admin.list_topics(self._topics[0], timeout=self._timeout_s))

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _count(self, limits: Limits, rows: int, size_bytes: int) -> int:
        mean_bytes = max(1, size_bytes // rows) if rows else 64 * 1024
        return max(1, min(_MOST_AT_ONCE, limits.rows - rows, (limits.size_bytes - size_bytes) // mean_bytes))

    def _note(self, message: Message, place: Place, offset: int, behind: dict[Place, int]) -> None:
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
            behind[place] = max(behind.get(place, 0), offset)
        elif error.retriable() and not error.fatal():
            _log.info("reading %s/%d: %s", *place, error.str())
        else:
            raise _unavailable(f"reading {place[0]}/{place[1]}", error)

    def _listed(self, places: set[Place], which: OffsetSpec) -> dict[Place, int]:
        asked = {TopicPartition(*place): which for place in sorted(places)}
        answers = self._asked(
            "offsets",
            lambda: self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._timeout_s
            ),
        )
        return {
            (at.topic, at.partition): self._asked(f"offsets of {at.topic}/{at.partition}", answer.result).offset
            for at, answer in answers.items()
        }

    def _asked(self, what: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except KafkaException as failure:
            raise _unavailable(what, failure.args[0]) from failure


def _unavailable(what: str, error: KafkaError) -> TopicUnavailable:
    return TopicUnavailable(
        f"{what}: {error.str()}", remedy="check the brokers and the permissions; ingestion continues from the offsets in the table"
    )


def _received(message: Message, place: Place, offset: int) -> Received:
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    headers = message.headers() or ()
    return Received(place, offset, key, value, tuple(headers.items() if isinstance(headers, dict) else headers))
