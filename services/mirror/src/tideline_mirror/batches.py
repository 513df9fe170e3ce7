"""Publications of several tables that become visible together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tideline_events import Record, TableChange, TableRecord, Transition, transition_records
from tideline_runtime.logging import get_logger
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_runtime.shards import ShardLost
from tideline_table.clock import Clock

_log = get_logger(__name__)
LINGER_S = 0.25
"""Longest time that a publication waits for others. A transaction of Kafka takes about 50 ms, however little it publishes: 10,000
tables that are published for the first time would take 8 minutes one by one."""
BATCH_RECORDS = 500


@dataclass(frozen=True, slots=True)
class Publication:
    """What is published of one table, as for `ShardPublishers.publish_transitions`. `done` is called when it is published."""

    shard: int
    number: int
    table_uid: str
    transitions: Sequence[Transition]
    record: TableRecord
    changes: Sequence[TableChange]
    done: Callable[[], None]


class Batches:
    """Publications that wait, in one transaction for each shard and publisher. Used by the thread that ticks."""

    def __init__(self, clock: Clock, publishers: ShardPublishers) -> None:
        self._clock = clock
        self._publishers = publishers
        self._waiting: dict[str, Publication] = {}
        self._encoded: dict[str, list[Record]] = {}
        self._records = 0
        self._since_s = 0.0

    def __contains__(self, table_uid: str) -> bool:
        return table_uid in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, publication: Publication) -> None:
        """Let a publication wait for others. Of a table that waits already, call `flush` first.

        Raises `InvalidEvent`, before others wait with it, if the publication breaks its contract.
        """
        told = publication.table_uid, publication.transitions, publication.record, publication.changes
        self._encoded[publication.table_uid] = encoded = transition_records(*told)
        if not self._waiting:
            self._since_s = self._clock.monotonic_s()
        self._waiting[publication.table_uid] = publication
        self._records += len(encoded)

    def is_due(self) -> bool:
        """Return whether what waits must be published now."""
        is_late = self._clock.monotonic_s() - self._since_s >= LINGER_S
        return bool(self._waiting) and (is_late or self._records >= BATCH_RECORDS)

    def flush(self) -> None:
        """Publish what waits. After an error nothing waits: what is not published is read again from the table logs.

        A shard that was lost is no error. Raises the other errors of `ShardPublishers.publish`.
        """
        encoded = self._encoded
        waiting = self.dropped()
        for key in dict.fromkeys((publication.shard, publication.number) for publication in waiting):
            together = [publication for publication in waiting if (publication.shard, publication.number) == key]
            try:
                self._publish(*key, together, encoded)
            except ShardLost as error:
                _log.info("tables left to another instance", tables=[p.table_uid for p in together], reason=str(error))
                continue
            for publication in together:
                publication.done()

    def dropped(self) -> list[Publication]:
        """Return what waits, and forget it."""
        waiting, self._waiting, self._encoded, self._records = list(self._waiting.values()), {}, {}, 0
        return waiting

    def _publish(self, shard: int, number: int, together: Sequence[Publication], encoded: Mapping[str, Sequence[Record]]) -> None:
        if len(together) == 1:
            (only,) = together
            told = only.table_uid, only.transitions, only.record, only.changes
            self._publishers.publish_transitions(shard, number, *told)
            return
        records = [record for publication in together for record in encoded[publication.table_uid]]
        self._publishers.publish(shard, *records, number=number)
