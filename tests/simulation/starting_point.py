"""A table just before an operation, as often as wanted: each time the operation runs, on a disk of its own and at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.faults import MUTATING, FaultyStorage, copy_of, heal
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.unit.table.tables import Row, contents, open_table

from tideline_table.clock import ManualClock
from tideline_table.errors import CommitUnknown, TidelineError
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table

Prepared = tuple[MemoryStorage, float]
"""A table, and how many seconds have passed on its clock."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What an operation does when nothing goes wrong."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]
    calls: tuple[str, ...]
    """Of the storage, in order."""

    @property
    def mutating(self) -> tuple[str, ...]:
        """Those that change something: where it can die."""
        return tuple(call for call in self.calls if call in MUTATING)

    @property
    def allowed(self) -> list[list[Row]]:
        """The rows that readers may find whatever becomes of the operation."""
        return [list(self.before), list(self.after)]


def place(prepared: Prepared) -> tuple[FaultyStorage, MemoryStorage, ManualClock]:
    """The way to a copy of the table on which calls go wrong, the copy itself, and its clock."""
    storage, passed_s = prepared
    clock = ManualClock()
    clock.advance(passed_s)
    disk = copy_of(storage, clock)
    return FaultyStorage(disk), disk, clock


def undisturbed(prepared: Prepared, operation: Callable[[Table], None]) -> Undisturbed:
    """Run the operation once without any fault."""
    faulty, disk, clock = place(prepared)
    before = contents(open_table(disk, clock))
    table = open_table(faulty, clock, **OPTIONS)
    start = len(faulty.calls)
    operation(table)
    made = tuple(call for call, _ in faulty.calls[start:])
    return Undisturbed(tuple(before), tuple(contents(table)), made)


def live_through(
    prepared: Prepared,
    operation: Callable[[Table], None],
    inject: Callable[[FaultyStorage], None],
    *,
    done: list[Row],
    failed: list[list[Row]],
    unknown: list[list[Row]],
) -> None:
    """Run the operation on storage that `inject` makes fail: it says so or succeeds, and readers find the rows that belong to that.

    Those are `done` when it succeeded, one of `failed` when it says that it failed, one of `unknown` when it could not say.
    Before and after a recovery.
    """
    faulty, disk, clock = place(prepared)
    table = open_table(faulty, clock, **OPTIONS)
    inject(faulty)
    allowed = [done]
    try:
        operation(table)
    except CommitUnknown:
        allowed = unknown
    except TidelineError:
        allowed = failed
    heal(faulty)
    assert contents(open_table(disk, clock)) in allowed
    recover(disk, clock)
    check_sound(disk, clock, allowed)
