"""The service dies behind each statement by which it publishes chunks of a commit and moves its position.

The next one goes on inside the commit: no change lost, none twice, also if the table was compacted or clustered meanwhile.
"""

from __future__ import annotations

import sqlite3
from functools import partial

import pytest
from tests.simulation.faults import SAMPLE_STEP, SimulatedCrash
from tests.unit.changes.conftest import Changes, settle
from tests.unit.changes.test_row_changes import clustered, compacted, upsert
from tests.unit.services.test_mirror_crashes import Death, DyingConnection

from tideline_table.table import TableType


def run_a_new_one(fleet: Changes, monkeypatch: pytest.MonkeyPatch, death: Death) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=partial(DyingConnection, death=death)))
        service = fleet.run(batch_rows=2, start=False)
        try:
            service.start()
            settle(service)
        finally:
            death.is_dead, death.number = False, 0
            fleet.stop(service)


def test_death_behind_every_statement(fleet: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    table = fleet.create(type=TableType.MOR)
    died, was_inside = 0, 0
    while True:
        upsert(table, died, 3, fare=float(died))
        before = len(fleet.replica().places)
        try:
            run_a_new_one(fleet, monkeypatch, Death(died + 1))
        except SimulatedCrash:
            died += SAMPLE_STEP
        else:
            break
        (lambda _: None, compacted, clustered)[died // SAMPLE_STEP % 3](table)
        was_inside += 0 < len(fleet.replica().places) - before < 3
        run_a_new_one(fleet, monkeypatch, Death(0))
        replica = fleet.check(table)
        assert replica.truncations == 1
        assert len(replica.places) == len(set(replica.places)), "none twice"
    assert died >= 20
    assert was_inside
