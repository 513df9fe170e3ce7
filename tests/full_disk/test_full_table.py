"""A table on a disk that runs full at each of its pages: typed errors, no acknowledged update lost, nothing stuck once space is
back."""

import os

import pytest
from tests.full_disk.small_disk import PAGE_BYTES
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.archives import FEW, OLD_S
from tests.unit.table.tables import DEATH_S, cluster, compact, contents, new_table, open_table, write

from tideline_locks import open_hudi_lock
from tideline_locks.hudi_file_lock import LOCK_FILE
from tideline_table.action import archive, roll_back_dead, run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.coordination.reserve import FILES, KEPT_BY_ROLLBACKS, RESERVE_FOLDER
from tideline_table.errors import StorageFull, WriteConflict
from tideline_table.hudi.instant import Action
from tideline_table.log.checkpoint import read_opening
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import STAGING, LocalStorage
from tideline_table.table import TableType, share_table
from tideline_table.writer import Operation

ONE_VERSION = {"hoodie.cleaner.commits.retained": 1}
SHORT_LIVED = {"hoodie.client.heartbeat.interval_in_ms": 100, "hoodie.client.heartbeat.tolerable.misses": 1}
OFTEN = {"tideline.log.checkpoint.interval": 2}


def text(bytes_of_it=12_000):
    """What no codec makes smaller."""
    return os.urandom(bytes_of_it // 2).hex()


class DatedStorage(LocalStorage):
    """A folder whose objects get their modification times from the test's clock: a table lives for hours in a moment."""

    def __init__(self, folder, clock):
        super().__init__(folder)
        self._clock = clock

    def put(self, path, data):
        super().put(path, data)
        self._date(path)

    def put_if_absent(self, path, data):
        super().put_if_absent(path, data)
        self._date(path)

    def _date(self, path):
        seconds = self._clock.now().timestamp()
        os.utime(self.local_path(path), (seconds, seconds))


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request, disk):
    if os.geteuid():
        return None  # the test runs in a namespace of its own
    clock = ManualClock()
    _, storage, _ = new_table(clock, DatedStorage(disk.folder / "t", clock), type=request.param)
    made = open_table(storage, clock, **OFTEN)
    write(made, [(f"k{n}", "p", 0, text()) for n in range(4)])
    return made


def reserve(table):
    return [o.path for o in table.storage.list_folder(RESERVE_FOLDER).objects]


def spend_reserve(table):
    for path in reserve(table):
        table.storage.delete(path)


def reopened(table):
    return open_table(table.storage, table.clock, "another", **OFTEN)


def assert_sound(table, disk, rows):
    """With space again: what was acknowledged is there, recovery leaves nothing pending, and the table can be written."""
    disk.free()
    again = reopened(table)
    assert contents(again) == rows
    table.clock.advance(DEATH_S)
    roll_back_dead(again)
    assert [a for a in again.state.pending() if a.action in (Action.COMMIT, Action.DELTA_COMMIT, Action.ROLLBACK)] == []
    assert contents(again) == rows
    assert table.storage.list_folder(STAGING).objects == ()


def at_each_page(disk, table, call, rows):
    """`call` with 0, 1, 2 … free pages until it succeeds; returns how often it failed.

    Any error but `StorageFull` fails the test.
    """
    for pages in range(200):
        disk.fill(pages * PAGE_BYTES)
        try:
            call()
        except StorageFull:
            assert_sound(table, disk, rows)
        else:
            assert_sound(table, disk, rows)
            return pages
    pytest.fail("it never succeeded")


def test_a_begin_that_cannot_have_landed_has_failed_for_certain(disk, table):
    head = table.state.sequence
    disk.fill()
    with pytest.raises(StorageFull, match=r"\.hoodie/\.tideline/log/"):
        WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    assert reopened(table).state.sequence == head
    disk.free()
    write(table, [("k0", "p", 9, "x")])


@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT, Operation.DELETE])
def test_writes_at_each_page(disk, table, operation):
    rows = {key: (key, part, ts, v) for key, part, ts, v in contents(table)}
    outcomes = set()
    for pages in (*range(20), *range(20, 60, 8)):
        key = f"k{pages % 4}" if operation is not Operation.INSERT else f"n{pages}"
        if operation is Operation.DELETE:
            write(table, [(key, "p", pages, "again")])
            rows[key] = (key, "p", pages, "again")
        disk.fill(pages * PAGE_BYTES)
        row = (key, "p", pages, text(4000))
        try:
            write(table, [row], operation)
        except StorageFull:
            outcomes.add("full")
        else:
            outcomes.add("written")
            rows[key] = row
            if operation is Operation.DELETE:
                del rows[key]
        assert_sound(table, disk, sorted(rows.values(), key=repr))
    assert outcomes == {"full", "written"}
    assert read_opening(table.storage).state.sequence > 10


def test_clustering_at_each_page(disk, table):
    write(table, [(f"m{n}", "q", 0, text()) for n in range(3)], Operation.BULK_INSERT)
    write(table, [(f"n{n}", "q", 0, text()) for n in range(3)], Operation.BULK_INSERT)
    rows = contents(table)

    def run():
        if not any(table.refresh().pending_clusterings()):
            schedule_clustering(table)
        assert cluster(table) is not None

    assert at_each_page(disk, table, run, rows) > 3


def test_compaction_at_each_page(disk):
    """An attempt that failed may be taken over once its heartbeat is old, by the clock of the store, too: so time is real here."""
    _, storage, clock = new_table(SystemClock(), LocalStorage(disk.folder / "t"), type=TableType.MOR)
    table = open_table(storage, clock, **OFTEN, **SHORT_LIVED)
    write(table, [(f"k{n}", "p", 0, text()) for n in range(4)])
    write(table, [("k0", "p", 1, text())])
    rows = contents(table)
    failures = 0
    for pages in range(0, 200, 2):
        disk.fill(pages * PAGE_BYTES)
        try:
            while (done := compacted_or_taken(table)) is TAKEN:
                clock.sleep(0.05)
        except StorageFull:
            failures += 1
            disk.free()
            assert contents(reopened(table)) == rows
        else:
            break
    assert done is not None
    assert failures > 3
    disk.free()
    assert contents(reopened(table)) == rows
    assert all(not s.log_files for s in table.refresh().latest_slices())
    assert list(table.state.pending()) == []


TAKEN = object()


def compacted_or_taken(table):
    try:
        return compact(table)
    except WriteConflict:
        return TAKEN


def test_archival_at_each_page(disk, table):
    for number in range(8):
        write(table, [("k0", "p", number + 1, text(200))])
    with_old_versions(table, 2)
    clean(table)
    write(table, [("k1", "p", 90, "x")])
    write(table, [("k1", "p", 91, "x")])
    table.clock.advance(OLD_S)
    rows = contents(table)

    def run():
        table.refresh()
        archived, *_ = archive(table, FEW)
        assert archived is not None

    assert at_each_page(disk, table, run, rows) > 0
    assert table.state.archived_before


def with_old_versions(table, count=6):
    for number in range(count):
        if not table.definition.has_logs:
            write(table, [(f"k{number % 4}", "p", number + 1, text())])
            continue
        for key in ("a", "b"):
            write(table, [(f"{key}{number}", "p", number, text())], Operation.BULK_INSERT)
        assert schedule_clustering(table)
        cluster(table)
    return contents(table)


def clean(table):
    assert schedule_clean(table, ONE_VERSION) is not None
    return run_clean(table)


@pytest.mark.parametrize("use_up", ["fill", "fill_names"])
def test_a_full_disk_can_be_cleaned(disk, table, use_up):
    rows = with_old_versions(table, 24)
    assert len(reserve(table)) == FILES
    getattr(disk, use_up)()
    with pytest.raises(StorageFull):
        write(table, [("k0", "p", 99, "x")])
    assert clean(table) > 3
    assert contents(reopened(table)) == rows
    assert len(reserve(table)) == FILES, "it is there for the next time"
    assert disk.free_bytes > 0
    write(table, [("k0", "p", 99, "x")])
    assert_sound(table, disk, sorted([r for r in rows if r[0] != "k0"] + [("k0", "p", 99, "x")], key=repr))


def test_a_clean_at_each_page_without_a_reserve(disk, table):
    """As of a table that an earlier release made; what only spares requests is spent then."""
    rows = with_old_versions(table, 16)
    spend_reserve(table)

    def run():
        if not any(a.action is Action.CLEAN for a in table.refresh().pending()):
            schedule_clean(table, ONE_VERSION)
        assert run_clean(table)

    assert at_each_page(disk, table, run, rows) < 12
    assert reserve(table), "the clean made one"


def test_a_clean_that_died_on_a_full_disk_is_finished_by_the_next(disk, table):
    rows = with_old_versions(table)
    disk.fill()
    assert schedule_clean(table, ONE_VERSION) is not None
    again = reopened(table)
    assert run_clean(again) > 3
    assert_sound(table, disk, rows)


def test_failing_writes_leave_the_reserve_that_a_clean_needs(disk, table):
    rows = with_old_versions(table)
    disk.fill(10 * PAGE_BYTES)
    failures = 0
    for number in range(60):
        try:
            write(table, [(f"k{n}", "p", 100 + number, text(400_000)) for n in range(4)])
        except StorageFull:
            failures += 1
    assert failures == 60
    assert KEPT_BY_ROLLBACKS <= len(reserve(table)) <= FILES
    assert clean(table) > 3
    assert_sound(table, disk, rows)


def test_a_shared_table_can_be_cleaned(disk):
    """Its lock is a file, too."""
    exclusive, _, _ = new_table(SystemClock(), LocalStorage(disk.folder / "t"))
    write(exclusive, [("k0", "p", 0, text())])
    table = share_table(exclusive, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    rows = with_old_versions(table)
    assert len(reserve(table)) == FILES
    disk.fill()
    with pytest.raises(StorageFull):
        write(table, [("k0", "p", 99, "x")])
    assert not (disk.folder / "t" / LOCK_FILE).exists()
    assert clean(table) > 1
    disk.free()
    assert contents(table) == rows
    write(table, [("k0", "p", 99, "x")])
    assert list(table.state.pending()) == []


def test_no_reserve_where_deleting_takes_no_space():
    table, storage, _ = new_table()
    write(table, [("k", "p", 1, "x")])
    assert not [o for o in storage.list_objects("") if o.path.startswith(RESERVE_FOLDER)]
