"""What one subscription has still to deliver, by table: bounded queues, one delivery of a table at a time. Without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tideline_events import Record, TableIdentity, Transition, encode
from tideline_webhooks.subscriptions import TableEvent

PER_TABLE = 0.1
"""The part of the queue that one table may fill."""


@dataclass(frozen=True, slots=True)
class Item:
    """An event that waits."""

    event: TableEvent

    @property
    def sequence(self) -> int | None:
        """The position in the table log; None for other events than transitions."""
        return self.event.sequence if isinstance(self.event, Transition) else None

    @property
    def record(self) -> Record:
        """The event as a record of its topic."""
        return encode(self.event)


@dataclass(slots=True)
class Lane:
    """The events of one table. `seen` is the last sequence that was read, `queued` the last one of these that had room.

    Between the two are transitions that are read from the table log when the lane is empty.
    """

    uid: str
    identity: TableIdentity | None = None
    items: deque[Item] = field(default_factory=deque)
    seen: int = 0
    queued: int = 0
    done: int | None = None
    """The last sequence that was delivered; None if none was yet."""
    is_busy: bool = False
    failures: int = 0
    failing_since_s: float = 0.0
    due_s: float = 0.0

    @property
    def is_behind(self) -> bool:
        """Whether transitions must be read from the table log."""
        return self.queued < self.seen

    @property
    def is_settled(self) -> bool:
        """Whether nothing of the table waits."""
        return not self.items and not self.is_busy and not self.is_behind


class Lanes:
    """The lanes of one subscription that are not settled, and the positions that changed. One thread at a time uses it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: dict[str, Lane] = {}
        self._positions: dict[str, int] = {}
        self.waiting = 0
        """Events that wait in memory, those under way included."""
        self.others = 0
        """How many of these are no transitions."""

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def pass_by(self, event: Transition) -> None:
        """Note a transition that the subscription does not want."""
        lane = self._lanes.get(event.table_uid)
        if lane is None:
            self._positions[event.table_uid] = event.sequence
            return
        self._note(lane, event)
        self._settle(lane)

    def add(self, item: Item) -> None:
        """Queue an event. A transition without room is only noted: it is read from the table log later."""
        event = item.event
        lane = self._lanes.setdefault(event.table_uid, Lane(event.table_uid))
        if isinstance(event, Transition):
            lane.identity = event.table
            if not self._note(lane, event, has_room=self.room_of(lane) > 0):
                return
        else:
            self.others += 1
        lane.items.append(item)
        self.waiting += 1

    def _note(self, lane: Lane, event: Transition, *, has_room: bool = True) -> bool:
        """Note the arrival of a transition; return whether all up to it are queued now, because there is room."""
        if not lane.seen:
            lane.seen = lane.queued = event.sequence - 1
            # If this process dies before the delivery, the next one must know where the table stands.
            self._positions[lane.uid] = event.sequence - 1
        is_next = has_room and not lane.is_behind
        lane.seen = max(lane.seen, event.sequence)
        if is_next:
            lane.queued = lane.seen
        return is_next

    def refill(self, lane: Lane, upto: int, items: list[Item]) -> None:
        """Queue transitions of a lane that is behind, which were read from the table log up to the sequence `upto`."""
        lane.items.extend(items)
        self.waiting += len(items)
        lane.queued = max(lane.queued, upto)
        self._settle(lane)

    def room_of(self, lane: Lane) -> int:
        """Return how many events of a lane may be queued now, at least 1: a table does not wait for those that are held."""
        free = min(self._limit - self.waiting, int(self._limit * PER_TABLE) - len(lane.items))
        return max(free, 1 if not lane.items else 0)

    def delivered(self, lane: Lane) -> None:
        """Note that the first event of a lane is delivered or given up."""
        item = lane.items.popleft()
        self.waiting -= 1
        lane.failures = 0
        if item.sequence is None:
            self.others -= 1
        else:
            lane.done = self._positions[lane.uid] = item.sequence

    def release(self, lane: Lane) -> None:
        """Note that no delivery of a lane is under way any more."""
        lane.is_busy = False
        self._settle(lane)

    def take_positions(self) -> dict[str, int]:
        """Return the positions that changed since the last call."""
        taken, self._positions = self._positions, {}
        return taken

    def put_back(self, positions: dict[str, int]) -> None:
        """Keep positions that could not be stored for the next call of `take_positions`."""
        self._positions = {**positions, **self._positions}

    def _settle(self, lane: Lane) -> None:
        if lane.is_settled:
            if lane.seen:
                self._positions[lane.uid] = lane.seen
            self._lanes.pop(lane.uid, None)
