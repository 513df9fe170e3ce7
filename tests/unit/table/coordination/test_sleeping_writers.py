"""A writer sleeps while others undo its write, archive it, trim the log, restore the table or split its buckets.

Whatever it finds when it wakes up: rows of a write that it acknowledges are in the table once, those of a refused one are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.simulation.faults import covering
from tests.unit.table.action.archival.test_archived_meanwhile import DAY_S, EARLY, archived_meanwhile
from tests.unit.table.tables import Row, contents, new_table, open_table, write

from tideline_table.action import (
    create_savepoint,
    delete_partitions,
    delete_savepoint,
    resize_buckets,
    restore_to_savepoint,
    roll_back_dead,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import RestoredMeanwhile
from tideline_table.hudi.instant import State
from tideline_table.log.entry import Entry
from tideline_table.log.table_log import TableLog
from tideline_table.table import BucketIndex, Table, TableType
from tideline_table.writer import Operation

Act = Callable[[], None]


# --- where it falls asleep -----------------------------------------------------------------------------------------------------


@contextmanager
def before_its_commit(sleeper: Table, act: Act) -> Iterator[None]:
    """Its files are written; it has not decided."""
    commit, acted = WriteTransaction.commit, []

    def late(transaction: WriteTransaction, *args: Any, **more: Any) -> Any:
        if transaction.timeline is sleeper.timeline and not acted:
            acted.append(transaction)
            act()
        return commit(transaction, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTransaction, "commit", late)
        yield
    assert acted


def _at_completion(sleeper: Table, act: Act, method: str) -> Any:
    real, acted = getattr(TableLog, method), []

    def late(log: TableLog, entry: Entry, *more: Any) -> Any:
        if log is sleeper.timeline.log and entry.after is State.COMPLETED and not acted:
            acted.append(entry)
            act()
        return real(log, entry, *more)

    @contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableLog, method, late)
            yield
        assert acted

    return patched()


def before_its_entry(sleeper: Table, act: Act) -> Any:
    """It has decided on the state of the log, and has not created the entry."""
    return _at_completion(sleeper, act, "_put")


def behind_its_entry(sleeper: Table, act: Act) -> Any:
    """Its entry is in the log; it has not seen whether the entry counts."""
    return _at_completion(sleeper, act, "_check_place")


# --- what happens meanwhile ----------------------------------------------------------------------------------------------------


def undone(other: Table, instant: str, savepoint: str) -> None:
    """Recovery takes the writer for dead."""
    other.clock.advance(DAY_S)  # type: ignore[attr-defined]
    roll_back_dead(other)


def restored(other: Table, instant: str, savepoint: str) -> None:
    restore_to_savepoint(other, savepoint)


def undone_and_restored(other: Table, instant: str, savepoint: str) -> None:
    undone(other, instant, savepoint)
    restored(other, instant, savepoint)


def resized(other: Table, instant: str, savepoint: str) -> None:
    resize_buckets(other, 8)


def trimmed(other: Table, instant: str, savepoint: str) -> None:
    """Other writers go on for weeks: archival takes the instant off the timeline, and the place of its entry in the log is free."""
    undone(other, instant, savepoint)
    delete_savepoint(other, savepoint)
    archived_meanwhile(other, other.clock, instant)


def restored_and_trimmed(other: Table, instant: str, savepoint: str) -> None:
    restored(other, instant, savepoint)
    trimmed(other, instant, savepoint)


def resized_and_trimmed(other: Table, instant: str, savepoint: str) -> None:
    resized(other, instant, savepoint)
    trimmed(other, instant, savepoint)


RESTORED, RESIZED = (restored, undone_and_restored, restored_and_trimmed), (resized, resized_and_trimmed)
EVENTS = [undone, trimmed, *RESTORED, *RESIZED]

# --- what it writes ------------------------------------------------------------------------------------------------------------

OLD: list[Row] = [("a", "p", 2, "old"), ("b", "p", 2, "old"), ("c", "r", 2, "old")]
NEW: list[Row] = [("k", "p", 9, "mine")]
CHANGED: list[Row] = [("a", "p", 9, "mine"), *NEW]


def upsert(table: Table) -> None:
    write(table, CHANGED)


def insert(table: Table) -> None:
    write(table, NEW, Operation.INSERT)


def delete(table: Table) -> None:
    write(table, [("a", "p", 9, "")], Operation.DELETE)


def overwrite(table: Table) -> None:
    write(table, NEW, Operation.INSERT_OVERWRITE)


def empty(table: Table) -> None:
    delete_partitions(table, ["p"])


WRITES: dict[Callable[[Table], None], Callable[[Row], bool]] = {
    upsert: lambda row: row[0] not in ("a", "k"),
    insert: lambda row: row[0] != "k",
    delete: lambda row: row[0] != "a",
    overwrite: lambda row: row[1] != "p",
    empty: lambda row: row[1] != "p",
}
"""Each write with the rows that it leaves as they are."""
ADDED = {upsert: CHANGED, insert: NEW, overwrite: NEW}


def after(act: Callable[[Table], None], rows: list[Row]) -> list[Row]:
    """The rows of the table once the write counts."""
    return sorted([*filter(WRITES[act], rows), *ADDED.get(act, [])], key=repr)


def check(place: Callable[[Table, Act], Any], event: Callable[..., None], act: Callable[[Table], None], kind: TableType) -> None:
    _, storage, clock = new_table(type=kind, **({"index": BucketIndex(4)} if event in RESIZED else {}))
    sleeper, other = open_table(storage, clock, "sleeper", **EARLY), open_table(storage, clock, "other", **EARLY)
    write(other, [("a", "p", 1, "older")])
    write(other, OLD)
    savepoint = create_savepoint(other).instant
    sleeper.refresh()
    found: list[list[Row]] = []

    def meanwhile() -> None:
        other.refresh()
        event(other, max(a for a in other.state.actions), savepoint)
        found.append(contents(other))

    refused = False
    with place(sleeper, meanwhile):
        try:
            act(sleeper)
        except RestoredMeanwhile:
            refused = True
    # Of a write that was committed before the restore, which undid it.
    was_undone = place is behind_its_entry and event in RESTORED
    expected = found[0] if refused or was_undone else after(act, found[0])
    assert contents(open_table(storage, clock, "reader")) == expected
    sleeper.refresh()
    assert contents(sleeper) == expected
    assert not list(open_table(storage, clock, "reader").state.pending())
    # Only a restore is a reason to refuse the write: what it was made of is no longer there.
    assert refused is (event in RESTORED) or was_undone


@pytest.mark.parametrize(
    ("place", "event", "kind"),
    covering(2, [before_its_commit, before_its_entry, behind_its_entry], EVENTS, TableType),
    ids=lambda value: value.__name__ if callable(value) else value.value,
)
def test_an_upsert_counts_once_or_not_at_all(place, event, kind):
    check(place, event, upsert, kind)


@pytest.mark.parametrize("event", EVENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("act", [insert, delete, overwrite, empty], ids=lambda f: f.__name__)
def test_every_kind_of_write_counts_once_or_not_at_all(event, act):
    check(before_its_entry, event, act, TableType.MOR if act in (insert, overwrite) else TableType.COW)
