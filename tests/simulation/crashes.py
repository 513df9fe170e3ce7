"""The one way in which a process dies at each call of an operation: how, where, and what must hold then.

`test_crashes` runs it over the table of scenarios, which the modules of their topics declare.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.simulation.faults import FaultyStorage, SimulatedCrash, crash_at, crash_points
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.simulation.starting_point import Prepared, Undisturbed, place
from tests.unit.table.tables import contents, open_table

from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table

Place = tuple[FaultyStorage, MemoryStorage, ManualClock]
"""The way to a table on which calls go wrong, the table itself, and its clock."""


def open_writer(storage: FaultyStorage, clock: ManualClock) -> Table:
    """The table in the hands of the process that will die."""
    return open_table(storage, clock, **OPTIONS)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An operation whose process dies at each of its calls in turn, each time on a copy of the same table."""

    name: str
    arrange: Callable[[], Place]
    """Makes the copy."""
    opened: Callable[[FaultyStorage, ManualClock], Any] = open_writer
    """What the process has in hands when the numbered calls begin; `act` gets it."""
    act: Callable[[Any], object]
    calls: Callable[[], Sequence[str]]
    """The calls that change something, of an undisturbed run."""
    deaths: tuple[str, ...] = ("after", "torn")
    """In which ways it dies (`crash_at`)."""
    chosen: Callable[[list[int]], Sequence[int]] = list
    """At which of the calls."""
    at_once: Callable[[MemoryStorage, ManualClock, str], Any] = lambda disk, clock, when: None
    """Checks what readers find before anybody recovers the table; what it returns, `behind` gets."""
    behind: Callable[[MemoryStorage, ManualClock, Any], Hashable]
    """Recovers the table, checks it, and returns what it saw."""
    ended: Callable[[set[Any], str], None] = lambda seen, when: None
    """Checks what was seen behind all deaths of one kind."""


def die_everywhere(scenario: Scenario, when: str) -> None:
    """Let the process die at each chosen call."""
    numbers = scenario.chosen(crash_points(scenario.calls(), when))
    assert numbers, "nowhere to die"
    seen = set()
    for number in numbers:
        faulty, disk, clock = scenario.arrange()
        held = scenario.opened(faulty, clock)
        crash_at(faulty, number, when)
        with pytest.raises(SimulatedCrash):
            scenario.act(held)
        found = scenario.at_once(disk, clock, when)
        seen.add(scenario.behind(disk, clock, found))
    scenario.ended(seen, when)


def rows_survive(
    name: str,
    operation: Callable[[Table], None],
    prepared: Callable[[], Prepared],
    outcome: Callable[[], Undisturbed],
    allowed: Callable[[], list[list[Any]]] | None = None,
    **more: Any,
) -> Scenario:
    """The plain case: behind a recovery readers find one of the `allowed` rows, those before and behind the operation by default.

    Both are met, and the table is sound.
    """

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> Hashable:
        recover(disk, clock)
        found = tuple(contents(open_table(disk, clock)))
        check_sound(disk, clock, allowed() if allowed else outcome().allowed)
        return found

    def ended(seen: set[Any], when: str) -> None:
        done = outcome()
        if when != "torn":
            assert {done.before, done.after} <= seen, "crashes on both sides of the commit point"

    usual = {"arrange": lambda: place(prepared()), "calls": lambda: outcome().mutating, "behind": behind, "ended": ended}
    return Scenario(name=name, act=operation, **{**usual, **more})
