"""What a subscription keeps in the event log: how far each table is delivered, and what was given up."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_events import EventLog, GroupPublisher, Record
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
        stored = self._log.positions(self._group)
        if not stored:
            self.begin(self._first)
            stored = self._log.positions(self._group)
        return stored

    def _first(self) -> list[Record]:
        """Return the first positions of the group, unless another instance has begun it."""
        if self._log.positions(self._group):
            return []
        known = [] if self._from_oldest else list(self._log.table_records())
        return self._records({BEGUN: 0, **{record.table_uid: record.sequence for record in known}})

    def store(self, positions: Mapping[str, int]) -> None:
        """Store positions of tables."""
        self.publish(*self._records(positions))

    def _records(self, positions: Mapping[str, int]) -> list[Record]:
        return [position_record(self._group, uid, sequence) for uid, sequence in sorted(positions.items())]
