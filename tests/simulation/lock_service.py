"""The lock service and the reservations as processes reach them, on ways on which calls go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.scheduler import Process, SimulatedClock

from tideline_locks import InProcessLockProvider, InProcessReservations
from tideline_locks.errors import LockUnreachable
from tideline_locks.in_process import LeaseTable
from tideline_locks.waiting import RandomSource
from tideline_table.coordination.reservations import PostedReservation, Reservation

if TYPE_CHECKING:
    from tests.simulation.world import World


class LockService(InProcessLockProvider):
    """The lock service as one process reaches it."""

    def __init__(self, world: World, process: Process, leases: LeaseTable) -> None:
        jitter = world.chooser(f"lock {process.name}")
        super().__init__(
            clock=SimulatedClock(world.scheduler, process),
            table=leases,
            randomness=RandomSource(jitter, lambda: f"{process.name}-{jitter.getrandbits(64):x}"),
        )
        self._world = world
        self._process = process

    def _attempt(self, wish):  # type: ignore[no-untyped-def]
        fault = self._call("acquire")
        if fault == "lock_lies":
            mine, self._table = self._table, LeaseTable(SimulatedClock(self._world.scheduler))
            try:
                return super()._attempt(wish)
            finally:
                self._table = mine
        outcome = super()._attempt(wish)
        if fault == "lock_reply_lost":
            raise LockUnreachable("the lock service's answer got lost")
        return outcome

    def renew_grant(self, grant):  # type: ignore[no-untyped-def]
        self._call("renew")
        return super().renew_grant(grant)

    def release_grant(self, grant):  # type: ignore[no-untyped-def]
        self._call("release")
        return super().release_grant(grant)

    def _call(self, what: str) -> str:
        self._world.scheduler.step()
        fault = self._world.draw(self._process, "lock", what)
        self._world.note(self._process, f"lock {what}", "", fault)
        if fault == "lock_unreachable":
            raise LockUnreachable("the lock service does not answer")
        if fault == "lock_state_lost":
            self._table.records.clear()
        if fault == "fail_over":
            # The one that takes over has not heard of the last grants and releases.
            self._table.records.clear()
            self._table.records.update(self._world.replica(self._world.between(0, 40)))
        self._world.replicate(self._table.records)
        return fault


class SimulatedReservations:
    """The reservations as one process reaches it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def claim(self, reservation: Reservation) -> list[Reservation]:
        return self._called("claim").claim(reservation)

    def withdraw(self, instant: str) -> None:
        self._called("withdraw").withdraw(instant)

    def posted(self) -> list[PostedReservation]:
        return self._called("posted").posted()

    def _called(self, what: str) -> InProcessReservations:
        self._world.scheduler.step()
        fault = self._world.draw(self._process, "reservations", what)
        self._world.note(self._process, f"reservations {what}", "", fault)
        if fault == "intents_unreachable":
            raise LockUnreachable("the store of reservations does not answer")
        if fault == "intents_lost":
            self._world.stored_reservations = InProcessReservations()
        return self._world.stored_reservations
