"""An archiver dies, or its storage fails, at each call; whichever process comes next finishes.

Nothing is lost, nothing comes back, strangers see no late file.
"""

from __future__ import annotations

import functools

import pytest
from tests.simulation.crashes import Scenario
from tests.simulation.faults import MUTATING, FaultyStorage, SimulatedCrash, crash_at, crash_points, fail_at, heal
from tests.simulation.recovery import timeline_on_disk
from tests.simulation.starting_point import Prepared, place
from tests.unit.table.archives import INSERT, TASK_S, UPDATE, seen_by_others, write_late
from tests.unit.table.tables import Row, contents, create, open_table, write

from tideline_table.action import archive
from tideline_table.clock import ManualClock
from tideline_table.errors import TidelineError
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import State
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType

FEW = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 2, "hoodie.cleaner.commits.retained": 1}
OPTIONS = {"tideline.log.checkpoint.interval": 2}


@functools.cache
def prepared(kind: TableType) -> Prepared:
    """A table with four commits and a late file of a fenced write, whose tasks are over, in front of the last two."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock, **OPTIONS)
    write(table, [("s", "still", 1, "x")])
    write(table, [("b", "p", 1, "x")])
    write_late(storage, clock, UPDATE if kind is TableType.MOR else INSERT)
    # The newest write that will be archived has a row that no later file repeats: it is lost if its timeline file is deleted
    # before older ones.
    write(table, [("b", "p", 2, "x"), ("t", "third", 1, "x")])
    for n in range(2):
        write(table, [("b", "p", 3 + n, "x")])
    clock.advance(TASK_S)
    return storage, clock.monotonic_s()


def archive_all(storage: FaultyStorage | MemoryStorage, clock: ManualClock, writer: str) -> None:
    """The first one deletes the late file and stops in front of it, the second one passes."""
    for _ in range(2):
        table = open_table(storage, clock, writer, **OPTIONS)
        archive(table, {**FEW, "hoodie.compact.inline.max.delta.commits": 1})


@functools.cache
def calls(kind: TableType) -> tuple[tuple[str, ...], int]:
    """The mutating calls of an undisturbed run, in order, and how many it makes in all."""
    faulty, disk, clock = place(prepared(kind))
    files = {f"{name.rpartition('/')[2]}" for name in timeline_on_disk(disk)}
    archive_all(faulty, clock, "w")
    gone = files - {name.rpartition("/")[2] for name in timeline_on_disk(disk)}
    assert len(gone) == 9, "three writes of three files each"
    return tuple(call for call, _ in faulty.calls if call in MUTATING), len(faulty.calls)


def check(disk: MemoryStorage, clock: ManualClock, expected: list, known: set[str]) -> None:
    """What holds at each moment: also for readers between two steps of an archiver."""
    assert contents(open_table(disk, clock, "reader")) == expected
    assert seen_by_others(disk, clock) == expected
    state = open_table(disk, clock, "reader").state
    completed = {a.instant for a in state.completed_writes()}
    archived = {a.time for a in WRITTEN.archived_instants(disk) if a.state is State.COMPLETED}
    assert completed | archived >= known, "an instant was lost"


def check_finished(disk: MemoryStorage, clock: ManualClock, known: set[str]) -> None:
    table = open_table(disk, clock, "checker")
    assert list(table.state.pending()) == []
    archived = {a.time for a in WRITTEN.archived_instants(disk)}
    active = {parse_timeline_file_name(path.rpartition("/")[2]).time for path in timeline_on_disk(disk)}
    assert not archived & active, "an instant came back"
    assert {a.instant for a in table.state.completed_writes()} <= active
    assert len(archived & known) == 3
    on_disk = {o.path for o in disk.list_objects("") if not o.path.startswith(".hoodie") and ".hoodie_partition" not in o.path}
    assert on_disk == {path for s in table.state.every_slice() for path in s.paths}, "late files"
    rows = contents(table)
    write(table, [("z", "p", 1, "further")])
    assert contents(table) == sorted([*rows, ("z", "p", 1, "further")], key=repr) == seen_by_others(disk, clock)


def known_before(kind: TableType) -> tuple[list[Row], set[str]]:
    """Rows and instants of the table in front of the archival."""
    _, disk, clock = place(prepared(kind))
    table = open_table(disk, clock)
    return contents(table), {a.instant for a in table.state.completed_writes()}


def archived(kind: TableType, *deaths: str) -> Scenario:
    def calls_of() -> tuple[str, ...]:
        mutating, _ = calls(kind)
        for when in deaths:
            assert len(crash_points(mutating, when)) > (3 if when == "torn" else 20)
        return mutating

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
        expected, known = known_before(kind)
        for attempt in range(2):
            archive_all(disk, clock, f"recovery-{attempt}")
            check(disk, clock, expected, known)
        check_finished(disk, clock, known)

    return Scenario(
        name=kind.value,
        arrange=lambda: place(prepared(kind)),
        opened=lambda storage, clock: (storage, clock),
        act=lambda held: archive_all(*held, "w"),
        calls=calls_of,
        deaths=deaths,
        at_once=lambda disk, clock, when: check(disk, clock, *known_before(kind)),
        behind=behind,
    )


SCENARIOS = [archived(TableType.COW, "before", "torn"), archived(TableType.MOR, "after", "torn")]


@pytest.mark.parametrize("number", range(0, 24, 6))
def test_crash_in_the_recovery(number: int) -> None:
    kind = TableType.MOR
    mutating, _ = calls(kind)
    faulty, disk, clock = place(prepared(kind))
    expected = contents(open_table(disk, clock))
    known = {a.instant for a in open_table(disk, clock).state.completed_writes()}
    crash_at(faulty, len(mutating) // 2, "after")
    with pytest.raises(SimulatedCrash):
        archive_all(faulty, clock, "w")
    for when in ("after", "before"):
        again = FaultyStorage(disk)
        crash_at(again, number, when)
        try:
            archive_all(again, clock, f"dies {when}")
        except SimulatedCrash:
            check(disk, clock, expected, known)
    archive_all(disk, clock, "recovery")
    check(disk, clock, expected, known)
    check_finished(disk, clock, known)


@pytest.mark.parametrize(("start", "when"), [(0, "before"), (3, "after")])
def test_storage_error_at_every_sixth_call(start: int, when: str) -> None:
    kind = TableType.COW
    _, every = calls(kind)
    for number in range(start, every, 6):
        faulty, disk, clock = place(prepared(kind))
        expected = contents(open_table(disk, clock))
        known = {a.instant for a in open_table(disk, clock).state.completed_writes()}
        fail_at(faulty, number, 1, when)
        try:
            archive_all(faulty, clock, "w")
        except TidelineError:
            check(disk, clock, expected, known)
        heal(faulty)
        archive_all(disk, clock, "recovery")
        check(disk, clock, expected, known)
        check_finished(disk, clock, known)
