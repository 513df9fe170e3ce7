"""Writes with older instants that complete behind a savepoint: a restore takes them back, so what they hid stays, and they stay
on the timeline."""

from __future__ import annotations

import pytest
from tests.simulation.faults import FaultyStorage
from tests.unit.table.archives import FEW, OLD_S, TASK_S, clean
from tests.unit.table.tables import History, base_stat, contents, instant, listing, new_table, open_table, write

from tideline_table.action import archive, create_savepoint, delete_savepoint, restore_to_savepoint
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action, State
from tideline_table.log.savepoint import every_saved_slice, kept_slices, needed_writes
from tideline_table.table import TableType
from tideline_table.writer import Operation

A = [("a", "p", 1, "x"), ("b", "q", 1, "x"), ("c", "q", 1, "x")]
UPDATE = ([("a", "p", 2, "late")], Operation.UPSERT)
OVERWRITE = ([("b", "q", 2, "late")], Operation.INSERT_OVERWRITE)
DELETION = ([("b", "q", 2, "")], Operation.DELETE)


def write_behind_a_savepoint(table, storage, clock, late):
    """Instant of the savepoint, and of the write that `late` describes: it began before and completes behind it."""
    real, saved = WriteTransaction.commit, []

    def slow(self, *arguments, **named):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(WriteTransaction, "commit", real)
            write(open_table(storage, clock, "quick"), [("quick", "q", 1, "x")], Operation.INSERT)
        saved.append(create_savepoint(open_table(storage, clock, "saver")).instant)
        return real(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", slow)
        committed = write(table, *late)
    assert committed.instant < saved[0]
    return saved[0], committed.instant


@pytest.mark.parametrize("late", [UPDATE, OVERWRITE, DELETION], ids=["update", "overwrite", "deletion"])
@pytest.mark.parametrize("kind", TableType)
def test_cleaning_and_archival_leave_what_a_restore_needs(kind, late):
    """Found by the simulator: an overwrite hid a file group, cleaning took it, and a restore brought back nothing."""
    table, storage, clock = new_table(type=kind)
    write(table, A)
    write(table, [("n", "r", 1, "x")])
    expected = sorted([*A, ("n", "r", 1, "x"), ("quick", "q", 1, "x")])
    at, slow = write_behind_a_savepoint(table, storage, clock, late)
    assert contents(table) != expected
    with_it = contents(table, as_of=at)
    for number in range(7):
        write(table, [("a", "p", 10 + number, "newer"), ("z", "q", number, "newer")])
        clean(table)
    clock.advance(OLD_S)
    archive(table, FEW)
    assert table.state.archived_before <= slow, "only what is older than both left the timeline"
    assert contents(open_table(storage, clock), as_of=at) == with_it, "time travel goes by instants"
    assert slow in restore_to_savepoint(table, at).undone
    fresh = open_table(storage, clock, "fresh")
    assert contents(fresh) == expected
    write(fresh, [("a", "p", 99, "on")])
    delete_savepoint(fresh, at)
    for number in range(7):
        write(fresh, [("a", "p", 100 + number, "on")])
        clean(fresh)
    clock.advance(TASK_S)
    archive(fresh, FEW)
    assert fresh.state.archived_before > at, "nothing holds them back any more"
    data = {p for p in listing(storage) if p.endswith(".parquet") or ".log." in p}
    assert {p for p in data if not p.startswith(".hoodie")} == {p for s in fresh.state.every_slice() for p in s.paths}


def history_to_save():
    """Two groups.

    One write is under way to the first and one that replaces the second, both older than the newest that completed.
    """
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)), base_stat("h-0", instant(1)))
    history.begin(instant(2))
    history.begin(instant(3), Action.REPLACE_COMMIT)
    history.commit(instant(4), base_stat("i-0", instant(4)))
    return history


def test_the_rule():
    history = history_to_save()
    body = {"metadata": {"savepointedBy": "", "comments": "", "partitionMetadata": {}}, "progress": {}}
    history.step(instant(4), Action.SAVEPOINT, State.NONE, State.COMPLETED, body)
    state = history.state
    assert state.saved() == {instant(4): frozenset()}
    history.complete(instant(2), base_stat("g-0", instant(2)))
    history.complete(instant(3), replaced={"p": ["h-0"]})
    history.commit(instant(5), base_stat("g-0", instant(5)))
    saved = state.saved()
    assert saved == {instant(4): {instant(2), instant(3)}}
    assert needed_writes(saved) == {instant(2), instant(3), instant(4)}
    g, h = FileGroupId("p", "g-0"), FileGroupId("p", "h-0")
    assert kept_slices(state.slices[g], None, saved) == {instant(1), instant(2)}, "by instants, and without the late one"
    assert kept_slices(state.slices[h], state.replaced[h], saved) == {instant(1)}
    assert not kept_slices(state.slices[h], state.replaced[h], {instant(4): frozenset()})
    kept = [(s.group.file_id, s.base_instant) for s in every_saved_slice(state.slices, state.replaced, saved)]
    assert sorted(kept) == [("g-0", instant(1)), ("g-0", instant(2)), ("h-0", instant(1)), ("i-0", instant(4))]


def test_a_savepoint_that_is_made_again_while_somebody_looks_freezes_nobody():
    """Found by a history: who slept between the log and the file found a file that the log, as it had read it, did not explain."""
    table, storage, clock = new_table()
    write(table, A)
    at = create_savepoint(table, comment="first").instant
    files = {path: content for path, content in listing(storage).items() if "savepoint" in path}
    delete_savepoint(table, at)
    for path, content in files.items():
        storage.put(path, content)
    faulty = FaultyStorage(storage)

    def before(_, call, path):
        if call == "read" and path.endswith(".savepoint"):
            faulty.before = lambda number, call, path: None
            for left in files:
                storage.delete(left)
            create_savepoint(open_table(storage, clock, "keeper"), at, comment="second")

    slow = open_table(faulty, clock, "slow")
    faulty.before = before
    write(slow, [("c", "p", 1, "x")])
    assert faulty.before is not before
    assert slow.state.savepoints[at].comment == "second"
