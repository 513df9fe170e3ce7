"""Savepoints: what they protect, what refuses them, and that cleaning and time travel know of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import (
    DEATH_S,
    History,
    base_stat,
    cluster,
    compact,
    contents,
    instant,
    listing,
    log_stat,
    new_table,
    open_table,
    rows_of,
    write,
)

from tideline_table.action import create_savepoint, delete_savepoint, roll_back_dead, run_clean, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination import roll_back
from tideline_table.coordination.conflict import find_savepoint_conflict
from tideline_table.errors import (
    CorruptMetadata,
    IllegalTransition,
    InstantNotFound,
    SavepointRefused,
    TableFrozen,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.log.checkpoint import read_opening, write_checkpoint
from tideline_table.log.progress import Progress, ProgressStep
from tideline_table.log.savepoint import saved_slices
from tideline_table.log.timeline_files import timeline_files
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

RETAIN_1 = {"hoodie.cleaner.commits.retained": 1}
A = [("a", "p", 1, "x"), ("b", "q", 1, "x")]


def clean(table):
    planned = schedule_clean(table, RETAIN_1)
    return run_clean(table) if planned else None


def updated(table, times, start=2):
    for number in range(start, start + times):
        write(table, [("a", "p", number, "later"), ("b", "q", number, "later")])


@pytest.mark.parametrize("kind", TableType)
def test_cleaning_keeps_what_a_savepoint_needs_and_nothing_more(kind):
    table, storage, clock = new_table(type=kind)
    write(table, A)
    updated(table, 1)
    saved = contents(table)
    made = create_savepoint(table, comment="before the import", user="ada")
    updated(table, 4, 3)
    if kind is TableType.MOR:
        for start in (7, 10):
            compact(table)
            updated(table, 2, start)
        compact(table)
    assert clean(table)
    assert contents(open_table(storage, clock), as_of=made.instant) == saved
    if kind is TableType.COW:
        files = [p for p in listing(storage) if p.endswith(".parquet")]
        assert len(files) == 2 * 3, "the savepoint's, the one of the retained commit, the newest"
    with pytest.raises(InstantNotFound, match="savepoint"):
        table.read(as_of=table.state.completed_writes()[0].instant)
    delete_savepoint(table, made.instant)
    updated(table, 1, 20)
    assert clean(table)
    with pytest.raises(InstantNotFound):
        table.read(as_of=made.instant)
    assert {s.path for s in table.state.every_slice() if s.base_file} == {p for p in listing(storage) if p.endswith(".parquet")}


def test_a_replaced_group_stays_for_its_savepoint():
    table, storage, clock = new_table()
    write(table, A)
    write(table, [("c", "p", 1, "x")])
    saved = contents(table)
    made = create_savepoint(table)
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    assert cluster(table) is not None
    updated(table, 3)
    clean(table)
    assert contents(open_table(storage, clock), as_of=made.instant) == saved
    delete_savepoint(table, made.instant)
    updated(table, 1, 9)
    assert clean(table)
    gone = {g for g in table.state.replaced if g in table.state.slices}
    assert not gone, "what the clustering replaced went with the savepoint"


def test_the_timeline_shows_it_as_hudi_does():
    table, storage, _ = new_table()
    at = write(table, A).instant
    made = create_savepoint(table, at, comment="c", user="u")
    assert (made.user, made.comment, made.instant, made.sequence) == ("u", "c", at, table.state.sequence)
    assert storage.read(f".hoodie/{at}.savepoint.inflight") == b""
    path = f".hoodie/{at}.savepoint"
    document = decode_document(storage.read(path), path)
    assert (document["savepointedBy"], document["comments"], document["version"]) == ("u", "c", 1)
    named = {f"{p}/{name}" for p, part in document["partitionMetadata"].items() for name in part["savepointDataFile"]}
    assert named == {s.path for s in table.slices()}
    delete_savepoint(table, at)
    assert not [p for p in listing(storage) if "savepoint" in p]
    assert create_savepoint(table).instant == at, "one may be made again"


def test_log_files_are_in_it():
    table, storage, _ = new_table(type=TableType.MOR)
    write(table, A)
    write(table, [("a", "p", 2, "y")])
    made = create_savepoint(table)
    path = f".hoodie/{made.instant}.savepoint"
    names = [
        n for part in decode_document(storage.read(path), path)["partitionMetadata"].values() for n in part["savepointDataFile"]
    ]
    assert sorted(names) == sorted(p.rsplit("/", 1)[-1] for s in table.slices() for p in s.paths)
    assert any(".log." in n for n in names)


def test_what_is_no_completed_write_is_refused():
    table, storage, _ = new_table()
    with pytest.raises(SavepointRefused, match="without a completed write"):
        create_savepoint(table)
    at = write(table, A).instant
    with pytest.raises(SavepointRefused, match="no instant"):
        create_savepoint(table, instant(1))
    begun = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    with pytest.raises(SavepointRefused, match="inflight"):
        create_savepoint(table, begun.instant)
    begun.roll_back()
    with pytest.raises(SavepointRefused, match="rolledback"):
        create_savepoint(table, begun.instant)
    create_savepoint(table, at)
    with pytest.raises(SavepointRefused, match="already"):
        create_savepoint(table, at)
    with pytest.raises(InstantNotFound, match=at):
        delete_savepoint(table, begun.instant)
    before = listing(storage)
    with pytest.raises(UnsupportedTable, match="completed"):
        roll_back(table.timeline, at)
    assert listing(storage) == before


def test_older_than_cleaning_keeps_is_refused():
    table, *_ = new_table()
    at = write(table, A).instant
    updated(table, 3)
    assert clean(table)
    with pytest.raises(SavepointRefused, match="cleaning") as refused:
        create_savepoint(table, at)
    assert table.state.last_clean_retained in refused.value.expected
    assert create_savepoint(table, table.state.last_clean_retained)


def test_a_pending_clean_that_names_its_files_conflicts():
    table, *_ = new_table()
    at = write(table, A).instant
    updated(table, 3)
    planned = schedule_clean(table, RETAIN_1)
    with pytest.raises(WriteConflict) as lost:
        create_savepoint(table, at)
    assert lost.value.with_instant == planned
    late = create_savepoint(table)
    assert run_clean(table)
    assert contents(table, as_of=late.instant) == contents(table)


def test_a_clean_that_names_the_files_of_a_savepoint_deletes_nothing():
    """Planned rightly it cannot; what others put on the timeline can."""
    table, storage, clock = new_table()
    write(table, A)
    updated(table, 2)
    planned = schedule_clean(table, RETAIN_1)
    at = table.state.completed_writes()[0].instant
    other = open_table(storage, clock)
    # Behind the conflict check, as if it had been there before the plan.
    other.timeline.state.savepoints[at] = replace(create_savepoint(table), instant=at)
    before = {p for p in listing(storage) if p.endswith(".parquet")}
    with pytest.raises(CorruptMetadata, match="savepoint"):
        run_clean(other, planned)
    assert {p for p in listing(storage) if p.endswith(".parquet")} == before


@pytest.mark.parametrize("behind_s", [0, 1])
def test_a_deletion_that_died_behind_its_entry_freezes_nobody(behind_s):
    """Not those either whose clock is behind (found by the simulator)."""
    table, storage, clock = new_table()
    write(table, A)
    clock.advance(1)
    at = create_savepoint(table).instant
    files = {p: c for p, c in listing(storage).items() if "savepoint" in p}
    delete_savepoint(table, at)
    for path, content in files.items():
        storage.put(path, content)
    slow = ManualClock()
    slow.advance(clock.monotonic_s() - 1 - behind_s)
    fresh = open_table(storage, slow)
    write(fresh, [("c", "p", 1, "x")])
    assert not [p for p in listing(storage) if "savepoint" in p]
    storage.put(f".hoodie/{at}.savepoint", b"")
    with pytest.raises(TableFrozen):
        write(fresh, [("d", "p", 1, "x")])


def test_a_savepoint_whose_files_come_late_does_not_bring_them_back():
    table, storage, _ = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    made = table.timeline.log.read(table.state.sequence)
    delete_savepoint(table, at)
    table.timeline.log.materialise(made)
    assert not [p for p in listing(storage) if "savepoint" in p]
    create_savepoint(table, at)
    table.timeline.log.materialise(made)
    assert len([p for p in listing(storage) if "savepoint" in p]) == 2, "the one that was made again stays"


def test_it_survives_checkpoints_and_later_openers():
    table, storage, clock = new_table()
    write(table, A)
    create_savepoint(table, comment="kept")
    again = MemoryStorage("memory:again", clock)
    write_checkpoint(again, table.state)
    assert read_opening(again).state.savepoints == table.state.savepoints
    assert open_table(storage, clock).state.savepoints == table.state.savepoints


def test_progress_is_that_of_the_write():
    table, *_ = new_table()

    def fed(key, before, value, number):
        table.clock.advance(1)
        return write_rows(
            table, rows_of([(f"r{number}", "p", 1, "x")]), Operation.INSERT, progress=ProgressStep(key, before, value)
        )

    first = fed("k", None, "1", 1).instant
    second = fed("j", None, "7", 2).instant
    fed("k", "1", "2", 3)
    last = fed("k", "2", "3", 4).instant
    assert create_savepoint(table, second).progress == {"k": Progress("1", first), "j": Progress("7", second)}
    assert create_savepoint(table, first).progress == {"k": Progress("1", first)}
    assert create_savepoint(table).progress["k"] == Progress("3", last)


def test_dead_writers_are_none_of_its_business():
    table, storage, clock = new_table()
    write(table, A)
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT").abandon()
    create_savepoint(table)
    clock.advance(DEATH_S)
    assert len(roll_back_dead(open_table(storage, clock))) == 1


# --- pure -----------------------------------------------------------------------------------------------------------------------


def saved_history():
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)))
    history.commit(instant(2), base_stat("g-0", instant(2)))
    return history


def entry_of(history, at, before=State.NONE, after=State.COMPLETED):
    body = {"metadata": {"savepointedBy": "u", "savepointedAt": 1, "comments": "", "partitionMetadata": {}}, "progress": {}}
    return history.entry(at, Action.SAVEPOINT, before, after, body, "SAVEPOINT")


@pytest.mark.parametrize(
    ("at", "before", "after"),
    [
        (1, State.COMPLETED, State.ROLLED_BACK),
        (1, State.NONE, State.INFLIGHT),
        (1, State.INFLIGHT, State.COMPLETED),
        (3, State.NONE, State.COMPLETED),
    ],
)
def test_illegal_steps(at, before, after):
    history = saved_history()
    with pytest.raises(IllegalTransition):
        history.state.apply(entry_of(history, instant(at), before, after))
    assert history.state.sequence == 4


def test_a_savepoint_does_not_hide_its_write():
    history = saved_history()
    history.state.apply(entry_of(history, instant(1)))
    record = history.state.actions[instant(1)]
    assert (record.action, record.state) == (Action.COMMIT, State.COMPLETED)
    assert history.state.savepoints[instant(1)].sequence == 5
    assert [a.instant for a in history.state.completed_writes()] == [instant(1), instant(2)]
    history.state.apply(entry_of(history, instant(1), State.COMPLETED, State.ROLLED_BACK))
    assert not history.state.savepoints


def test_a_body_without_its_document_is_refused_whole():
    history = saved_history()
    with pytest.raises(CorruptMetadata):
        history.state.apply(history.entry(instant(1), Action.SAVEPOINT, State.NONE, State.COMPLETED, {"metadata": {}}))
    assert (history.state.sequence, history.state.savepoints) == (4, {})


def test_files_of_a_deletion_go_completed_first():
    history = saved_history()
    made = entry_of(history, instant(1))
    deleted = entry_of(history, instant(1), State.COMPLETED, State.ROLLED_BACK)
    created = [path for path, _ in timeline_files(made, WRITTEN).create]
    assert created == [f".hoodie/{instant(1)}.savepoint.inflight", f".hoodie/{instant(1)}.savepoint"]
    assert list(timeline_files(deleted, WRITTEN).delete) == created[::-1]


def test_slices_that_an_instant_reads():
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)))
    history.commit(instant(2), log_stat("g-0", instant(1)))
    group = FileGroupId("p", "g-0")
    history.plan_compaction(instant(3), [group])
    history.commit(instant(4), log_stat("g-0", instant(3)))
    slices = history.state.slices[group]
    assert [s.base_instant for s in saved_slices(slices, None, instant(4))] == [instant(3), instant(1)]
    assert [s.base_instant for s in saved_slices(slices, None, instant(2))] == [instant(1)]
    assert saved_slices(slices, instant(2), instant(2)) == []
    assert [s.base_instant for s in saved_slices(slices, instant(5), instant(2))] == [instant(1)]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("nothing", None),
        ("pending clean that names its files", WriteConflict),
        ("pending clean of other files", None),
        ("completed clean", SavepointRefused),
        ("pending compaction", None),
        ("pending clustering", None),
        ("the same savepoint", SavepointRefused),
    ],
)
def test_the_row_of_savepoints_in_the_matrix(column, expected):
    history = saved_history()
    path = {1: base_stat("g-0", instant(1)).path, 9: base_stat("x-0", instant(1)).path}
    if "pending clean" in column:
        named = path[1 if "names" in column else 9]
        plan = {"filePathsToBeDeletedPerPartition": {"p": [{"filePath": f"memory:t/{named}"}]}}
        history.step(instant(5), Action.CLEAN, State.NONE, State.REQUESTED, {"plan": plan}, "CLEAN")
    elif column == "completed clean":
        history.clean(instant(5), {}, {"earliestCommitToRetain": instant(2), "partitionMetadata": {}})
    elif column == "pending compaction":
        history.plan_compaction(instant(5), [FileGroupId("p", "g-0")])
    elif column == "pending clustering":
        history.plan_clustering(instant(5), [FileGroupId("p", "g-0")])
    elif column == "the same savepoint":
        history.state.apply(entry_of(history, instant(1)))
    found = find_savepoint_conflict(history.state, instant(1))
    assert found is None if expected is None else type(found) is expected


def test_a_file_that_comes_behind_the_deletion_freezes_nothing_and_goes():
    """Found by the simulator: the maker had died, and its last put took a minute; nobody could write any more."""
    table, storage, _ = new_table()
    write(table, [("a", "p", 1, "x")])
    create_savepoint(table)
    (saved,) = table.state.savepoints
    completed = storage.read(f".hoodie/{saved}.savepoint")
    delete_savepoint(table, saved)
    storage.put_if_absent(f".hoodie/{saved}.savepoint.inflight", b"")
    write(table, [("a", "p", 2, "y")])
    assert contents(table) == [("a", "p", 2, "y")]
    assert not [o.path for o in storage.list_folder(".hoodie").objects if ".savepoint" in o.path]
    storage.put_if_absent(f".hoodie/{saved}.savepoint", completed)
    write(table, [("a", "p", 3, "z")])
    assert not [o.path for o in storage.list_folder(".hoodie").objects if ".savepoint" in o.path]
    storage.put_if_absent(f".hoodie/{saved}.savepoint", b"Apache Hudi's")
    with pytest.raises(TableFrozen, match="savepoint, completed"):
        write(table, [("a", "p", 4, "z")])
