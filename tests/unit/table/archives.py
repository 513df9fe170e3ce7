"""Tables with a past to archive, and writers whose files come late."""

from __future__ import annotations

from collections.abc import Callable

from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.faults import FaultyStorage, SimulatedCrash, copy_of
from tests.unit.table.tables import DEATH_S, Row, cluster, contents, open_table, write

from tideline_table.action import roll_back_dead, run_clean, run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table

FEW = {
    "hoodie.keep.min.commits": 3,
    "hoodie.keep.max.commits": 4,
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.compact.inline.max.delta.commits": 2,
}
OLD_S = 3601.0
TASK_S = 6 * 3600.0 + 1


def compact(table: Table) -> None:
    if schedule_compaction(table, FEW):
        run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def clean(table: Table) -> None:
    if schedule_clean(table, FEW):
        run_clean(table)


def live(table: Table, commits: int = 7) -> None:
    """Updates, inserts and all table services, a while ago; of one partition nobody takes notice."""
    if not table.state.actions:
        write(table, [("s", "still", 0, "here")])
    for n in range(commits):
        write(table, [("a", "p", n, f"x{n}"), (f"k{n}", f"p{n % 2}", n, "y")])
        if n == 3 and schedule_clustering(table):
            cluster(table)
        if table.definition.has_logs:
            compact(table)
        clean(table)
    assert isinstance(table.clock, ManualClock)
    table.clock.advance(OLD_S)


UPDATE: Row = ("s", "still", 99, "late")
INSERT: Row = ("late", "still", 99, "late")


def write_late(
    storage: MemoryStorage, clock: ManualClock, row: Row, undo: Callable[[Table], list[str]] = roll_back_dead
) -> tuple[str, set[str]]:
    """A writer sleeps until it was rolled back (`undo`), writes its files all the same and dies: its instant and the late files."""
    slow = FaultyStorage(storage)
    asleep = open_table(slow, clock, "asleep")
    undone: list[str] = []

    def before(_: int, call: str, path: str) -> None:
        if call == "open_output" and not path.startswith(".hoodie") and not undone:
            clock.advance(DEATH_S)
            undone.extend(undo(open_table(storage, clock, "cleaner")))
        elif call == "list_objects" and undone:
            raise SimulatedCrash

    slow.before = before
    there = {o.path for o in storage.list_objects("")}
    try:
        write(asleep, [row])
    except SimulatedCrash:
        new = {o.path for o in storage.list_objects("")} - there
        return undone[0], {path for path in new if not path.startswith(".hoodie") and ".hoodie_partition" not in path}
    raise AssertionError("the writer lives on")


def seen_by_others(storage: MemoryStorage, clock: ManualClock) -> list[Row]:
    """The rows of a table as those read it who know nothing but its timeline and its files."""
    copy = copy_of(storage, clock)
    for path in [o.path for o in copy.list_objects(".hoodie/.tideline")]:
        copy.delete(path)
    table = open_table(copy, clock, "stranger")
    assert not table.capabilities.keeps_log
    return contents(table)
