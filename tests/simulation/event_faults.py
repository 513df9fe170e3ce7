"""The event log as one process of a history reaches it: publications fail, land late or are never answered, deliveries repeat
or mix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.simulation.call_faults import CallFaults
from tests.simulation.event_log import Broker, MemoryEventLog, MemoryPublisher, MemorySubscription
from tests.simulation.scheduler import SECOND, Process, SimulatedClock

from tideline_events import CommitLost, EventLogUnavailable, PublisherFenced, PublishUnknown, Record, TableRecord
from tideline_table.errors import TidelineError

if TYPE_CHECKING:
    from tests.simulation.world import World

_ANY = frozenset({"publish", "take", "cursor", "poll", "commit"})

EVENT_FAULTS: dict[str, frozenset[str]] = {
    "publish_refused": frozenset({"publish"}),
    "publish_reply_lost": frozenset({"publish"}),
    "publish_lands_late": frozenset({"publish"}),
    "publish_never_lands": frozenset({"publish"}),
    "publisher_taken_over": frozenset({"publish"}),
    "event_log_emptied": frozenset({"publish"}),
    "event_client_killed_before": _ANY,
    "event_client_killed_after": _ANY,
    "event_client_paused": _ANY,
    "event_log_silent": _ANY - {"publish", "commit"},
    "delivered_twice": frozenset({"poll"}),
    "delivered_late": frozenset({"poll"}),
    "delivered_in_disorder": frozenset({"poll"}),
    "group_rebalanced": frozenset({"poll", "commit"}),
}
"""Kinds of fault and the calls that they can hit."""


class ProcessEventLog(MemoryEventLog):
    """`EventLog` as one process reaches it."""

    def __init__(self, world: World, process: Process, broker: Broker, faults: CallFaults) -> None:
        super().__init__(broker, SimulatedClock(world.scheduler, process))
        self._way = (world, process, faults)

    def publisher(self, writer_id: str) -> MemoryPublisher:
        world, process, faults = self._way
        fault = faults.before(process, "take", writer_id)
        taken = _Publisher(world, process, faults, self.broker, writer_id)
        faults.after(process, fault)
        return taken

    def table_records(self) -> Iterator[TableRecord]:
        _, process, faults = self._way
        fault = faults.before(process, "cursor")
        yield from list(super().table_records())
        faults.after(process, fault)

    def subscribe(self, topics: Sequence[str], group: str, *, from_beginning: bool = True, member: str = "") -> MemorySubscription:
        world, process, faults = self._way
        positions = super().subscribe(topics, group, from_beginning=from_beginning).positions
        return _Subscription(world, process, faults, self.broker, group, positions)


class _Publisher(MemoryPublisher):
    def __init__(self, world: World, process: Process, faults: CallFaults, broker: Broker, writer_id: str) -> None:
        super().__init__(broker, SimulatedClock(world.scheduler, process), writer_id, broker.take(writer_id))
        self._world, self._process, self._faults = world, process, faults
        self._ended: TidelineError | None = None

    def append(self, records: Sequence[Record]) -> None:
        process, faults = self._process, self._faults
        if self._ended is not None:
            raise self._ended
        fault = faults.before(process, "publish", f"{len(records)} records")
        if fault == "publish_refused":
            raise EventLogUnavailable("the publication was refused")
        if fault == "publisher_taken_over":
            # Another process of the same id came, and is gone again.
            self.broker.take(self.writer_id)
        if fault == "event_log_emptied":
            self.broker.empty()
        if fault == "publish_lands_late":
            # On its way through retries: it lands unless a newer publisher comes first.
            self._world.later(faults.between(0.5, 120), lambda: self._land(records))
        elif fault != "publish_never_lands":
            super().append(records)
        faults.after(process, fault)
        if fault in ("publish_reply_lost", "publish_lands_late", "publish_never_lands"):
            self._ended = PublishUnknown("no answer to a publication", remedy="take a new publisher")
            raise self._ended

    def _land(self, records: Sequence[Record]) -> None:
        self._world.note(self._process, "events publish", f"{len(records)} records", "lands late")
        try:
            super().append(records)
        except PublisherFenced:
            return


class _Subscription(MemorySubscription):
    def __init__(
        self, world: World, process: Process, faults: CallFaults, broker: Broker, group: str, positions: dict[str, int]
    ) -> None:
        super().__init__(broker, SimulatedClock(world.scheduler, process), group, positions)
        self._world, self._process, self._faults = world, process, faults
        self._earlier: list[Record] = []

    def wait(self, left_s: float) -> None:
        seen = self.broker.end
        self._world.scheduler.wait_for(lambda: self.broker.end > seen, math.ceil(left_s * SECOND))

    def poll(self, timeout_s: float) -> list[Record]:
        process, faults = self._process, self._faults
        fault = faults.before(process, "poll")
        if fault == "group_rebalanced":
            self._start_again()
        if fault == "delivered_late":
            self._world.scheduler.sleep(faults.between(1, 200))
        records = super().poll(timeout_s)
        again, self._earlier = self._earlier, records[-10:]
        if fault == "delivered_twice":
            records = [*records[:1], *again, *records]
        if fault == "delivered_in_disorder":
            faults.choose.shuffle(records)
        faults.after(process, fault)
        return records

    def commit(self) -> None:
        process, faults = self._process, self._faults
        fault = faults.before(process, "commit")
        if fault == "group_rebalanced":
            self._start_again()
            raise CommitLost("the group was rebalanced")
        super().commit()
        faults.after(process, fault)

    def _start_again(self) -> None:
        """Other members had the partitions meanwhile: what was not committed comes again."""
        self.positions.update(self.broker.join(self.group, list(self.positions), from_beginning=True))
        self._read = {}
