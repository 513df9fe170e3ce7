"""What a subscription keeps in the event log: how far each table is delivered, and what was given up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from tideline_events import EventLog, GroupPublisher, PublisherFenced, PublishUnknown, Record
from tideline_events.positions import position_record
from tideline_table.clock import Clock

BEGUN = "begun"
"""Key of the position that says that a group has begun, so that tables without a position are new ones."""


class Ledger(GroupPublisher):
    """Positions and dead letters of the consumer group `group`. Thread-safe. All methods raise errors of the event log."""

    def __init__(self, log: EventLog, group: str, clock: Clock, *, from_oldest: bool) -> None:
        super().__init__(log, group, clock)
        self._from_oldest = from_oldest

    def positions(self) -> Mapping[str, int]:
        """Return the last delivered sequence of each table. A group that begins now has what was published before behind it."""
        return self._log.positions(self._group) or self._begun()

    def _begun(self) -> Mapping[str, int]:
        """Begin the group, unless another instance has begun it; return its positions.

        All instances begin with one writer id, and read again once they have it: of two at the same moment, one has begun before
        the other reads, or can no longer publish.
        """
        for is_last in (False, True):
            with closing(self._log.publisher(f"{self._group}-begin")) as publisher:
                stored: Mapping[str, int] = self._log.positions(self._group)
                if stored:
                    return stored
                known = [] if self._from_oldest else list(self._log.table_records())
                stored = {BEGUN: 0, **{record.table_uid: record.sequence for record in known}}
                try:
                    publisher.publish(*self._records(stored))
                except (PublisherFenced, PublishUnknown):
                    if is_last:
                        raise
                else:
                    return stored
        raise AssertionError("the last attempt returns or raises")

    def store(self, positions: Mapping[str, int]) -> None:
        """Store positions of tables."""
        self.publish(*self._records(positions))

    def _records(self, positions: Mapping[str, int]) -> list[Record]:
        return [position_record(self._group, uid, sequence) for uid, sequence in sorted(positions.items())]
