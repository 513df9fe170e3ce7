"""A table whose log, properties, identity or timeline was lost is refused by name: it is never read as an empty one, nor
created again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.table.counting import NotingStorage
from tests.unit.table.shared import opened, put, shared_table
from tests.unit.table.tables import contents, create, listing, new_table, open_table, write

from tideline_events.transitions import backfill
from tideline_table.action import check_table
from tideline_table.clock import ManualClock
from tideline_table.errors import TableExists, TableFrozen, TableIncomplete, TableNotFound
from tideline_table.hudi import properties as p
from tideline_table.log import packed
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER, RESTORE_LOG
from tideline_table.log.entry import LOG_FOLDER, entry_path
from tideline_table.log.packed import PackedSlices
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import IDENTITY_PATH, Table, TableType, renew_identity, standing
from tideline_table.table.standing import lost_files, why_refused

PLAIN = {"tideline.log.checkpoint.interval": 4}
ROWS = [(f"k{n}", f"p{n % 2}", n, "x") for n in range(6)]


@pytest.fixture(params=[TableType.COW, TableType.MOR], ids=["cow", "mor"])
def table(request: pytest.FixtureRequest):
    clock = ManualClock()
    _, storage, _ = new_table(clock, type=request.param)
    found = open_table(storage, clock, **PLAIN)
    for row in ROWS:
        write(found, [row])
    return found


def lose(storage: Storage, *folders: str) -> None:
    for folder in folders:
        storage.delete_below(folder)


def lose_entries(storage: Storage, *sequences: int) -> None:
    for sequence in sequences:
        storage.delete(entry_path(sequence))


def refused(storage: Storage, clock: ManualClock, words: str) -> None:
    before = listing(storage)
    with pytest.raises(TableIncomplete, match=words) as caught:
        open_table(storage, clock)
    assert caught.value.expected
    assert caught.value.remedy
    assert listing(storage) == before, "nothing was changed"


def test_without_log_and_checkpoints_the_table_is_not_empty(table):
    lose(table.storage, LOG_FOLDER, CHECKPOINT_FOLDER)
    refused(table.storage, table.clock, "table log .* is empty, and there is timeline file")


def test_data_files_show_a_lost_log_without_a_timeline(table):
    lose(table.storage, LOG_FOLDER, CHECKPOINT_FOLDER)
    for path in [o.path for o in table.storage.list_folder(".hoodie").objects]:
        if path != p.PROPERTIES_PATH:
            table.storage.delete(path)
    refused(table.storage, table.clock, "table log .* is empty, and there is data file")


def test_the_timeline_alone_gives_the_rows_back_and_can_be_shared(table):
    before = contents(table)
    lose(table.storage, LOG_FOLDER, CHECKPOINT_FOLDER)
    with pytest.raises(TableIncomplete, match=r"delete that folder.*tideline share"):
        open_table(table.storage, table.clock)
    lose(table.storage, ".hoodie/.tideline")
    found = open_table(table.storage, table.clock)
    assert (contents(found), found.capabilities.keeps_log) == (before, False)


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(lambda storage: lose(storage, CHECKPOINT_FOLDER) or lose_entries(storage, 1), id="the first entry"),
        pytest.param(lambda storage: lose(storage, CHECKPOINT_FOLDER) or lose_entries(storage, 6), id="one in the middle"),
        pytest.param(lambda storage: storage.delete(POINTER) or lose_entries(storage, 9), id="the first after a checkpoint"),
        pytest.param(lambda storage: storage.delete(POINTER) or lose(storage, LOG_FOLDER), id="all behind the checkpoint"),
    ],
)
def test_a_log_with_a_hole_is_refused(lost: Callable[[Storage], None]):
    clock = ManualClock()
    _, storage, _ = new_table(clock)
    table = open_table(storage, clock, **PLAIN)
    for row in ROWS[:5]:
        write(table, [row])
    assert table.state.sequence == 10
    lost(storage)
    refused(storage, clock, "table log lacks entry")


def test_entries_that_the_pointer_saw_are_missed():
    clock = ManualClock()
    table, storage, _ = new_table(clock)
    for row in ROWS:
        write(table, [row])
    pointer = storage.read(POINTER)
    assert b'"end": 12' in pointer
    storage.put(POINTER, pointer[: pointer.index(b'"tail"')] + b'"tail": []}')  # as if the entries were too large for it
    assert len(contents(open_table(storage, clock))) == len(ROWS)
    lose_entries(storage, 9)
    refused(storage, clock, "ends at entry 8; expected entry 12")


def _without_the_newest_entries(table, count: int) -> Table:
    head = table.refresh().sequence
    lose_entries(table.storage, *range(head - count + 1, head + 1))
    lose(table.storage, CHECKPOINT_FOLDER)
    return open_table(table.storage, table.clock)


def test_the_timeline_shows_that_the_newest_entry_was_lost(table):
    """The next write would take the entry's place, and its row would be gone for good."""
    rows = contents(table)
    again = _without_the_newest_entries(table, 1)
    before = listing(table.storage)
    assert contents(again) == rows, "an acknowledged row stays readable"
    with pytest.raises(TableIncomplete, match="completed on the timeline and inflight in the table log") as caught:
        write(again, [("k9", "p0", 9, "x")])
    assert "delete no instant" in caught.value.remedy
    assert str(why_refused(open_table(table.storage, table.clock))) == str(caught.value)
    with pytest.raises(TableIncomplete):
        check_table(open_table(table.storage, table.clock))
    assert listing(table.storage) == before, "nothing was changed"


def test_whoever_finds_an_unknown_instant_learns_that_entries_may_be_lost(table):
    rows = contents(table)
    again = _without_the_newest_entries(table, 2)
    with pytest.raises(TableFrozen, match="that no Tideline writer made") as caught:
        write(again, [("k9", "p0", 9, "x")])
    assert RESTORE_LOG in caught.value.remedy
    assert contents(again) == rows, "the rows of another writer are read, and so are those of lost entries"
    again.timeline.leave()
    assert contents(open_table(table.storage, table.clock)) == rows


def test_a_lost_checkpoint_of_a_trimmed_log_is_refused(table):
    lose_entries(table.storage, *range(1, 8))  # as trimming does; its marker is in the lost folder
    lose(table.storage, CHECKPOINT_FOLDER)
    refused(table.storage, table.clock, "table log lacks entry 1 ")


def test_entries_that_a_checkpoint_holds_are_not_missed(table):
    before = contents(table)
    lose_entries(table.storage, *range(1, 5))
    table.storage.delete(POINTER)
    assert contents(open_table(table.storage, table.clock)) == before


def test_lost_entries_that_a_checkpoint_holds_are_found_and_the_others_told(table):
    assert check_table(table) == []
    head = table.timeline.state.sequence
    lose_entries(table.storage, 2, 3, 5)
    found = check_table(table)
    assert [finding.path for finding in found] == [entry_path(sequence) for sequence in (2, 3, 5)]
    assert not any(finding.is_repairable for finding in found)
    assert [step.sequence for step in backfill(table, 1, head)] == [1, 4, *range(6, head + 1)]


def test_without_properties_no_other_table_is_created_over_the_rows(table):
    table.storage.delete(p.PROPERTIES_PATH)
    refused(table.storage, table.clock, "without .*hoodie.properties")
    before = listing(table.storage)
    with pytest.raises(TableIncomplete, match=r"without .*hoodie\.properties"):
        create(table.storage, table.clock)
    assert listing(table.storage) == before


@pytest.mark.parametrize("kept", [".tideline/log", "timeline", "data"])
def test_each_remainder_of_a_table_keeps_creation_away(table, kept: str):
    for path in listing(table.storage):
        is_kept = {
            ".tideline/log": path.startswith(LOG_FOLDER),
            "timeline": path.startswith(".hoodie/2"),
            "data": not path.startswith(".hoodie/"),
        }[kept]
        if not is_kept:
            table.storage.delete(path)
    with pytest.raises(TableIncomplete, match=r"without .*hoodie\.properties"):
        create(table.storage, table.clock)
    refused(table.storage, table.clock, "without .*hoodie.properties")


def test_an_empty_place_and_a_creation_that_did_not_end_are_no_table():
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    storage.put("notes/readme.txt", b"about this folder")
    with pytest.raises(TableNotFound, match="tideline create"):
        open_table(storage, clock)
    create(storage, clock)
    storage.delete(p.PROPERTIES_PATH)
    with pytest.raises(TableNotFound):
        open_table(storage, clock)
    create(storage, clock)
    with pytest.raises(TableExists):
        create(storage, clock)
    assert contents(open_table(storage, clock)) == []


def test_a_lost_identity_is_refused_and_renewed(table):
    before = contents(table)
    table.storage.delete(IDENTITY_PATH)
    refused(table.storage, table.clock, r"table log of 12 entries without .*table\.json.*tideline adopt PATH")
    renewed = renew_identity(table.storage, table.clock)
    assert renewed is not None
    assert renewed.uid != table.uid
    found = open_table(table.storage, table.clock)
    assert contents(found) == before
    write(found, [("new", "p0", 1, "y")])
    assert len(contents(found)) == len(before) + 1
    assert renew_identity(table.storage, table.clock) is None, "an identity that stands is kept"


def test_a_shared_table_is_refused_without_its_identity():
    table, storage, clock = shared_table()
    put(table, ROWS)
    storage.delete(IDENTITY_PATH)
    with pytest.raises(TableIncomplete, match="entries without"):
        opened(storage, clock)


def test_a_hudi_written_table_without_timeline_is_not_empty(table):
    lose(table.storage, ".hoodie/.tideline")
    assert len(contents(open_table(table.storage, table.clock))) == len(ROWS)
    for path in [o.path for o in table.storage.list_folder(".hoodie").objects]:
        if path != p.PROPERTIES_PATH:
            table.storage.delete(path)
    refused(table.storage, table.clock, "timeline in .hoodie is empty, and there are")


@pytest.mark.parametrize("tasks", [1, 2, 3, 1000])
def test_lost_files_of_many_partitions_are_found_in_few_tasks(monkeypatch, tasks):
    monkeypatch.setattr(standing, "_MOST_TASKS", tasks)
    _, storage, clock = new_table(ManualClock())
    found = open_table(storage, clock)
    write(found, [(f"k{n}", f"p{n}", n, "x") for n in range(5)])
    assert lost_files(found) == ()
    gone = [str(one.applied.paths[0]) for one in found.state.latest_slices()][1:4]
    for path in gone:
        storage.delete(path)
    assert [next(path for path in gone if path in str(error)) for error in lost_files(found)] == gone


def test_a_table_of_many_parts_is_looked_at_in_turns(monkeypatch):
    monkeypatch.setattr(packed, "PART_GROUPS", 2)
    monkeypatch.setattr(standing, "_ALL_PARTS", 3)
    monkeypatch.setattr(standing, "_PARTS_IN_TURN", 2)
    storage = NotingStorage()
    clock = ManualClock()
    new_table(clock, storage=storage)
    found = open_table(storage, clock)
    write(found, [(f"k{n}", f"p{n:02d}", n, "x") for n in range(24)])
    found.state.slices = PackedSlices.of(found.state.slices)
    write(found, [("new", "p99", 1, "x")])
    gone = [str(one.applied.paths[0]) for one in found.state.latest_slices()]
    gone = [gone[3], gone[-1]]
    for path in gone:
        storage.delete(path)
    seen = set()
    assert len(found.state.slices.parts) <= 14
    for _ in range(7):  # two parts at a time
        storage.requests.clear()
        errors = [str(error) for error in lost_files(found)]
        assert sum(kind == "list" and path.startswith("p") for kind, path, _ in storage.requests) <= 7
        assert any(gone[1] in error for error in errors), "what was written last is looked at each time"
        seen |= {path for path in gone if any(path in error for error in errors)}
        clock.advance(3600)
    assert seen == set(gone)
    assert len(lost_files(found, everywhere=True)) == 2
