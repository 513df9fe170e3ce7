"""The mirror dies behind each statement by which it publishes and moves its cursor.

The next one goes on: no event lost, none twice.
"""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from typing import Any

import pytest
from tests.simulation.faults import SAMPLE_STEP, SimulatedCrash
from tests.unit.services.fleet import Fleet, write

from tideline_events import TIMELINE
from tideline_mirror.absent import CHECK_ABSENT_EVERY_S
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings


class Death:
    """Comes behind the `number`-th statement of this thread (0: never); whichever process is dead does nothing any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0
        self.is_dead = False
        self._thread = threading.get_ident()

    def check(self) -> None:
        """Before a statement."""
        if self.is_dead and threading.get_ident() == self._thread:
            raise SimulatedCrash

    def strike(self) -> None:
        """After a statement."""
        if threading.get_ident() == self._thread:
            self.seen += 1
            self.is_dead = self.seen == self.number
            self.check()


class DyingConnection(sqlite3.Connection):
    """A way to the event log on which death comes."""

    def __init__(self, *arguments: Any, death: Death, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._death = death

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        self._death.check()
        cursor = super().execute(*statement)
        self._death.strike()
        return cursor


def tick_of_a_new_mirror(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, death: Death) -> None:
    """From its start on; what a dead one had begun is undone when its connections go, as when a process ends."""
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=partial(DyingConnection, death=death)))
        service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", start=False)
        try:
            service.start()
            service.tick()
            fleet.clock.advance(CHECK_ABSENT_EVERY_S + 1)
            service.tick()
        finally:
            death.is_dead, death.number = False, 0
            fleet.stop(service)


def test_death_behind_every_statement(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    table = fleet.create()
    died, was_told = 0, set()
    while True:
        write(table, 10 * died)
        try:
            tick_of_a_new_mirror(fleet, monkeypatch, Death(died + 1))
        except SimulatedCrash:
            died += SAMPLE_STEP
        else:
            break
        told = [e.sequence for e in fleet.events(TIMELINE.name)]
        cursor = fleet.event_log.cursor(table.uid)
        assert told == list(range(1, (cursor.sequence if cursor else 0) + 1)), "the cursor tells what was published"
        was_told.add(len(told) == table.state.sequence)
        tick_of_a_new_mirror(fleet, monkeypatch, Death(0))
        assert [e.sequence for e in fleet.events(TIMELINE.name)] == list(range(1, table.state.sequence + 1))
    assert died >= 10
    assert was_told == {True, False}, "on both sides of the commit"
