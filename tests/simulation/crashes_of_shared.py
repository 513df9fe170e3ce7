"""As `test_crash_points`, on tables that Apache Hudi's writers share: there the timeline is the truth, and the log follows it.

Hudi is played by a writer that leaves its steps on the timeline alone. A reader that knows nothing of Tideline reads the table,
too: after the crash, after the recovery, and behind a further write of either side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.crashes import Scenario, rows_survive
from tests.simulation.faults import FaultyStorage, SimulatedCrash, copy_of
from tests.simulation.recovery import OPTIONS, compact
from tests.simulation.starting_point import Prepared, Undisturbed, place
from tests.simulation.visible_files import is_data_file
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import DEATH_S, Row, cluster, contents, new_table, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import roll_back_dead, run_clean
from tideline_table.clock import ManualClock
from tideline_table.hudi.instant import State
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.log.state import TableState
from tideline_table.log.table_log import LogReader
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]
SMALL = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
THEIRS = [("b", "p", 2, "theirs"), ("t", "p", 2, "theirs")]
NEW = [("a", "p", 2, "new"), ("n", "p", 2, "new"), ("z", "r", 2, "new")]
LOG_FOLDER = ".hoodie/.tideline"


def upsert(table: Table) -> None:
    put(table, NEW)


def upsert_to_logs(table: Table) -> None:
    put(table, NEW)


def overwrite_everything(table: Table) -> None:
    put(table, [("o", "p", 1, "only")], Operation.INSERT_OVERWRITE_TABLE)


def roll_back_a_dead_peer(table: Table) -> None:
    """Of a Hudi writer that died behind one of its files."""
    assert len(roll_back_dead(table)) == 1


def adopt_what_the_peer_did(table: Table) -> None:
    assert table.timeline.heal(0.0)


def upsert_behind_the_peer(table: Table) -> None:
    """No process of Tideline has looked since it wrote."""
    put(table, NEW)


def share_ours(table: Table) -> None:
    share_table(table, SHARING, open_hudi_lock)


def share_theirs(table: Table) -> None:
    share_table(table, SHARING, open_hudi_lock)


def cluster_all(table: Table) -> None:
    """Its plan, too.

    Between its timeline file and its entry nobody can tell it from one of Hudi's: it is waited for, then rolled back.
    """
    schedule_clustering(table, SMALL)
    cluster(table)


def compact_all(table: Table) -> None:
    schedule_compaction(table, AT_ONCE)
    compact(table)


def clean_all(table: Table) -> None:
    """Its plan, too."""
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table) is not None


CHANGES_ROWS = [upsert, upsert_to_logs, overwrite_everything, upsert_behind_the_peer]
SHARES = [share_ours, share_theirs]
TO_LOGS = [upsert_to_logs, compact_all]
OPERATIONS = [*CHANGES_ROWS, roll_back_a_dead_peer, adopt_what_the_peer_did, *SHARES, cluster_all, compact_all, clean_all]


class FaultyObjects(FaultyStorage, MemoryStorage):
    """Of a type that Hudi's lock of object stores knows."""


def arrange(operation: Callable[[Table], None]) -> tuple[FaultyObjects, MemoryStorage, ManualClock]:
    """As `place`."""
    _, disk, clock = place(prepared(operation))
    return FaultyObjects(disk), disk, clock


def start(operation: Callable[[Table], None], storage: Storage, clock: ManualClock) -> Table:
    """The table in the hands of who runs the operation."""
    if operation in SHARES:
        return open_table(storage, clock, **OPTIONS)
    return opened(storage, clock, **OPTIONS)


@functools.cache
def prepared(operation: Callable[[Table], None]) -> Prepared:
    """A table just before the operation, and how much time has passed."""
    if operation in SHARES:
        return exclusive_or_theirs(operation)
    ours, storage, clock = shared_table(TableType.MOR if operation in TO_LOGS else TableType.COW)
    put(ours, ROWS)
    put(ours, [("a", "p", 1, "y"), ("d", "p", 1, "x")])
    if operation in (adopt_what_the_peer_did, upsert_behind_the_peer, clean_all):
        put(peer_of(storage, clock), THEIRS)
    if operation is roll_back_a_dead_peer:
        faulty = FaultyObjects(storage)
        theirs = peer_of(faulty, clock)
        faulty.before = die_at_second_file()
        with pytest.raises(SimulatedCrash):
            put(theirs, [*NEW, *THEIRS])
        clock.advance(DEATH_S)
    assert isinstance(storage, MemoryStorage)
    return storage, clock.monotonic_s()


def die_at_second_file() -> Callable[[int, str, str], None]:
    files: list[str] = []

    def before(_: int, call: str, path: str) -> None:
        if call == "open_output" and is_data_file(path):
            files.append(path)
        if len(files) > 1:
            raise SimulatedCrash

    return before


def exclusive_or_theirs(operation: Callable[[Table], None]) -> Prepared:
    table, storage, clock = new_table()
    write(table, ROWS)
    write(table, THEIRS)
    if operation is share_theirs:
        storage.delete_below(LOG_FOLDER)
    assert isinstance(storage, MemoryStorage)
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    faulty, disk, clock = arrange(operation)
    before = contents(open_table(disk, clock))
    table = start(operation, faulty, clock)
    first = len(faulty.calls)
    operation(table)
    return Undisturbed(tuple(before), tuple(contents(open_table(disk, clock))), tuple(call for call, _ in faulty.calls[first:]))


def by_timeline_alone(storage: MemoryStorage, clock: ManualClock) -> list[Row]:
    """As a reader that knows no log of Tideline reads it."""
    copy = copy_of(storage, clock)
    copy.delete_below(LOG_FOLDER)
    return contents(open_table(copy, clock))


def recover(storage: Storage, clock: ManualClock) -> Table:
    """Twice: what one recovery left undone, or did wrongly, the second one shows."""
    for attempt in range(2):
        clock.advance(DEATH_S)
        table = opened(storage, clock, f"recovery-{attempt}", **OPTIONS)
        if table.sharing is None:
            table = share_table(table, SHARING, open_hudi_lock)
        table.timeline.heal(0.0)
        roll_back_dead(table)
        cluster(table)
        compact(table)
        run_clean(table)
    return table


def completed_on_timeline(storage: Storage) -> set[str]:
    names = (o.path.rpartition("/")[2] for o in storage.list_folder(".hoodie").objects)
    return {i.time for i in map(parse_timeline_file_name, names) if i is not None and i.state is State.COMPLETED}


def check_sound(storage: MemoryStorage, clock: ManualClock, allowed: list[list[Row]], *, writes_on: bool = True) -> None:
    """Rows are one of `allowed` for everybody, nothing is pending, log and timeline say the same, and (`writes_on`) both sides
    can write on."""
    table = opened(storage, clock, "checker")
    assert table.sharing is not None
    assert list(table.state.pending()) == []
    found = contents(table)
    assert found in allowed
    assert by_timeline_alone(storage, clock) == found
    whole = TableState()
    for entry in LogReader(storage).after(0):
        whole.apply(entry)
    assert table.state == whole
    assert completed_on_timeline(storage) == {a.instant for a in whole.actions.values() if a.state is State.COMPLETED}
    known = {path for s in whole.every_slice() for path in s.paths}
    assert {o.path for o in storage.list_objects("") if is_data_file(o.path)} == known
    if not writes_on:
        return
    put(table, [("further", "p", 1, "ours")])
    put(peer_of(storage, clock), [("hudi", "p", 1, "theirs")])
    expected = sorted([*found, ("further", "p", 1, "ours"), ("hudi", "p", 1, "theirs")], key=repr)
    assert contents(opened(storage, clock)) == expected
    assert by_timeline_alone(storage, clock) == expected
    ended = {a.instant for a in opened(storage, clock).state.actions.values()}
    assert {o.path.split("/")[2] for o in storage.list_objects(".hoodie/.heartbeat")} <= ended


def shared(operation: Callable[[Table], None]) -> Scenario:
    """The timeline is the commit point: what readers find at once is what stays."""

    def at_once(disk: MemoryStorage, clock: ManualClock, when: str) -> list[Row]:
        now = contents(open_table(disk, clock))
        assert now in outcome(operation).allowed
        assert by_timeline_alone(disk, clock) == now, "the timeline is the commit point"
        return now

    def behind(disk: MemoryStorage, clock: ManualClock, now: list[Row]) -> tuple[Row, ...]:
        recover(disk, clock)
        check_sound(disk, clock, [now])
        return tuple(now)

    more: dict[str, Any] = {"arrange": partial(arrange, operation), "opened": partial(start, operation), "at_once": at_once}
    return rows_survive(
        operation.__name__, operation, partial(prepared, operation), partial(outcome, operation), behind=behind, **more
    )


SCENARIOS = [shared(operation) for operation in OPERATIONS]
