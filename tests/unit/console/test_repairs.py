"""Repairs of findings that a table really has: the effect is read from the table."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.plans import schedule_compaction
from tests.unit.console.test_actions import Acting
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import HEARTBEAT_GONE_S, date_files_by, die, rows, write
from tests.unit.services.test_unlocked_writers import write_of_hudi
from tests.unit.table.coordination.shared.test_shared_gaps import LATE, ONE, run_pending, unlocked_job, unseen
from tests.unit.table.shared import before_commit, opened, put
from tests.unit.table.tables import contents, new_table

import tideline
from tideline_locks import open_hudi_lock
from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.hudi import State
from tideline_table.storage import open_storage
from tideline_table.table import HudiLockKind, Sharing, Table, TableType, share_table
from tideline_table.writer import Operation


class MachinesClock(ManualClock):
    """The time of the machine, by which the lock of a folder and the command go, too: nobody moves it."""

    def now(self) -> datetime:
        return datetime.now(UTC)


FILE_LOCK = Sharing(HudiLockKind.FILE_SYSTEM)


def found(acting: Acting) -> set[str]:
    acting.follower.turn()
    table = acting.client.get(f"/api/v1/tables/{acting.row['key']}").json()
    return {one["kind"] for one in table["status"]["findings"]}


def repaired(acting: Acting, kind: str, command: str) -> None:
    """Preview and confirm the repair that the page of the table offers for a finding that it has."""
    assert kind in found(acting)
    assert f"kind=repair&amp;service={kind}" in acting.client.get(f"/tables/{acting.row['key']}").text
    page, token = acting.preview("repair", service=kind)
    assert page.status_code == 200, page.text
    assert command in Parsed(page.text).text
    assert kind in found(acting), "a preview repairs nothing"
    done = acting.confirm("repair", token, service=kind)
    assert done.status_code == 200, done.text
    assert [(e.action, e.state) for e in acting.recorded] == [(f"repair {kind}", "asked"), (f"repair {kind}", "done")]
    assert kind not in found(acting)


def test_a_dead_writer_is_rolled_back(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    consoles.clock.advance(-2 * HEARTBEAT_GONE_S)  # The command is a process with the time of the machine.
    acting = Acting(consoles)
    instant = die(acting.table)
    consoles.clock.advance(2 * HEARTBEAT_GONE_S)
    before = tideline.open(consoles.path("trips")).read().sort_by("id")
    repaired(acting, "dead_writer", "run --json -- rollback")
    table = consoles.open()
    assert list(table.state.pending()) == []
    assert any(action.state is State.COMPLETED and action.action.value == "rollback" for action in table.state.actions.values())
    assert table.state.actions[instant].state is State.ROLLED_BACK
    assert tideline.open(consoles.path("trips")).read().sort_by("id") == before
    write(table, 100)


def test_hidden_rows_are_appended_again(consoles):
    clock, storage = MachinesClock(), open_storage(consoles.path("late"))
    exclusive, _, _ = new_table(clock, storage, type=TableType.MOR)
    first = share_table(exclusive, FILE_LOCK, open_hudi_lock)
    put(first, [("a", "p", 1, "1"), ("b", "q", 1, "1")])
    put(first, [("a", "p", 2, "2")])
    job = unlocked_job(storage, clock)

    def meanwhile() -> None:
        clock.advance(1)
        with unseen(storage):
            services = opened(storage, clock, "services")
            assert schedule_compaction(services, ONE)
            run_pending(services)

    with before_commit(job, meanwhile):
        put(job, [LATE])
    assert LATE not in contents(opened(storage, clock))
    repaired(Acting(consoles, tables=(consoles.path("late"),)), "hidden_commit", "reappend --json")
    assert sorted(contents(opened(storage, clock))) == [LATE, ("b", "q", 1, "1")]


def test_services_work_again_after_a_write_without_the_lock(consoles):
    acting = Acting(consoles)
    shared = share_table(acting.table, FILE_LOCK, open_hudi_lock)
    instant = write_of_hudi(shared, unlocked=True)
    assert instant in shared.state.unlocked
    repaired(acting, "unlocked_writer", "share --resume --json")
    table = Table.open(consoles.path("trips"), clock=consoles.clock, hudi_lock=open_hudi_lock)
    assert not table.state.unlocked
    write_rows(table, rows(200, 5, "oslo"), Operation.UPSERT)
