"""Publishers of table log entries: one for each shard that an instance holds, which fences an earlier holder of that shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tideline_events import EventLog, Publisher, PublisherFenced, PublishUnknown, Record, TableChange, TableRecord, Transition
from tideline_runtime.shards import ShardLost, Shards


@dataclass(frozen=True, slots=True)
class _Opened:
    publisher: Publisher
    term: str
    number: int


class ShardPublishers:
    """The publishers with the writer ids `<name>-<shard>-of-<count>`. Used by the thread that ticks.

    A publisher belongs to one term of a shard. If this instance lost a shard and took it again, a new publisher fences the
    publisher of the holder in between before cursors are read.
    """

    def __init__(self, name: str, shards: Shards, log: Callable[[], EventLog]) -> None:
        self._name = name
        self._shards = shards
        self._log = log
        self._opened: dict[int, _Opened] = {}
        self._count = 0

    def take_over(self) -> None:
        """Open the publishers of all shards held now."""
        for shard in self._shards.held():
            self.settle(shard)

    @property
    def newest(self) -> int:
        """The number of the publisher that was opened last."""
        return self._count

    def publish(self, shard: int, *records: Record, number: int | None = None) -> None:
        """Publish other records of the tables of a shard, with `number` as in `publish_transitions`. Raises as that."""
        publisher = self._publisher(shard, number)
        with self._errors_of(shard):
            publisher.publish(*records)

    def settle(self, shard: int) -> int:
        """Open the publisher of the shard, unless it is open. Return its number: cursors read with another number are outdated.

        Opening a publisher ends an earlier publication of unknown outcome, so that a cursor read from now on is final. Raises
        `ShardLost` if this instance does not hold the shard, and the errors of `EventLog.publisher`.
        """
        return self._current(shard).number

    def publish_transitions(
        self,
        shard: int,
        number: int,
        table_uid: str,
        transitions: Sequence[Transition],
        table_record: TableRecord,
        changes: Sequence[TableChange] = (),
    ) -> None:
        """See `Publisher.publish_transitions`.

        `number` is the publisher's, from `settle`. After `PublishUnknown`, read cursors again.

        Raises `ShardLost` if this instance no longer holds the shard, or if another process has taken over the writer id of the
        shard. For a static shard, the latter raises `PublisherFenced`.
        """
        publisher = self._publisher(shard, number)
        with self._errors_of(shard):
            publisher.publish_transitions(table_uid, transitions, table_record, changes)

    def _publisher(self, shard: int, number: int | None) -> Publisher:
        current = self._current(shard)
        if number is not None and current.number != number:
            raise ShardLost(shard, "it was lost since the cursor was read")
        return current.publisher

    @contextmanager
    def _errors_of(self, shard: int) -> Iterator[None]:
        try:
            yield
        except PublishUnknown:
            self._close(shard)
            raise
        except PublisherFenced as error:
            if not self._shards.give_up(shard, str(error)):
                raise
            self._close(shard)
            raise ShardLost(shard, "another instance publishes its tables") from error

    def close_lost(self) -> None:
        """Close the publishers of shards that are not held any more."""
        for shard, opened in list(self._opened.items()):
            if self._shards.term(shard) != opened.term:
                self._close(shard)

    def close(self) -> None:
        """Close all publishers."""
        for shard in list(self._opened):
            self._close(shard)

    def _current(self, shard: int) -> _Opened:
        term = self._shards.term(shard)
        if shard in self._opened and self._opened[shard].term != term:
            self._close(shard)
        if term is None:
            raise ShardLost(shard, "its lease ended, or was given back")
        if shard not in self._opened:
            self._count += 1
            self._opened[shard] = _Opened(self._log().publisher(self._writer_id(shard)), term, self._count)
        return self._opened[shard]

    def _writer_id(self, shard: int) -> str:
        return f"{self._name}-{shard}-of-{self._shards.count}"

    def _close(self, shard: int) -> None:
        self._opened.pop(shard).publisher.close()
