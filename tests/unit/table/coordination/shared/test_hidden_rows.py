"""Rows that a rewrite hides are named, whichever rewrite it is, and appended again as readers would have seen them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.coordination.shared.test_shared_gaps import LATE, ONE, SMALL, run_pending, unlocked_job, unseen
from tests.unit.table.shared import before_commit, opened, put, shared_table
from tests.unit.table.tables import Row, contents

from tideline_table.action import NotDue, cluster_group, reappend_hidden, request_clean, run_clustering
from tideline_table.clock import ManualClock
from tideline_table.errors import InstantNotFound, UnsupportedTable
from tideline_table.storage import Storage
from tideline_table.table import FindingKind, Table, TableType, findings_of
from tideline_table.writer import Operation

BESIDE: dict[str, object] = {"hoodie.parquet.small.file.limit": 10**8}
"""New rows go into file groups that are there."""
Rewrite = Callable[[Table], object]


def _compact(table: Table) -> object:
    assert schedule_compaction(table, ONE)
    return run_pending(table)


def _cluster(table: Table) -> object:
    assert schedule_clustering(table, SMALL)
    return run_clustering(table, run=lambda tasks: [cluster_group(task, table.storage) for task in tasks])


def _table(kind: TableType) -> tuple[Storage, ManualClock]:
    first, storage, clock = shared_table(kind)
    put(first, [("a", "p", 1, "1"), ("c", "p", 1, "1")])
    put(first, [("a", "p", 2, "2"), ("b", "p", 2, "2")])
    return storage, clock


def _hidden_behind(rewrite: Rewrite, kind: TableType, rows: list[Row], **options: object) -> tuple[Storage, ManualClock, str]:
    """A job writes rows; between its instant and its files a rewrite is planned and run."""
    storage, clock = _table(kind)
    job = unlocked_job(storage, clock)

    def meanwhile() -> None:
        clock.advance(1)
        with unseen(storage):
            rewrite(opened(storage, clock, "services"))

    with before_commit(job, meanwhile):
        done = put(job, rows, **options)
    return storage, clock, done.instant


def _named(table: Table) -> list[str]:
    table.timeline.catch_up()
    table.refresh()
    return [found.text for found in findings_of(table) if found.kind is FindingKind.HIDDEN_COMMIT]


@pytest.mark.parametrize(
    ("rewrite", "kind", "name"),
    [
        (_compact, TableType.MOR, "compaction"),
        (_cluster, TableType.MOR, "clustering"),
        (_cluster, TableType.COW, "clustering"),
    ],
    ids=["compaction", "clustering of logs", "clustering"],
)
def test_a_hidden_write_is_named_and_its_rows_come_back(rewrite: Rewrite, kind: TableType, name: str) -> None:
    newer = ("a", "p", 5, "late")
    storage, clock, instant = _hidden_behind(rewrite, kind, [newer])
    services = opened(storage, clock, "services")
    (text,) = _named(services)
    assert instant in text
    assert f"after {name} " in text
    assert "tideline reappend PATH" in text
    assert newer not in contents(services)
    (done,) = reappend_hidden(services)
    assert (done.instant, done.rows, done.older) == (instant, 1, 0)
    assert sorted(contents(opened(storage, clock))) == sorted([newer, ("b", "p", 2, "2"), ("c", "p", 1, "1")])
    assert _named(opened(storage, clock, "services")) == []
    assert reappend_hidden(services) == ()


def test_a_row_that_was_written_again_since_stays() -> None:
    storage, clock, instant = _hidden_behind(_compact, TableType.MOR, [("a", "p", 5, "late"), ("c", "p", 5, "late")])
    put(opened(storage, clock, "ours"), [("a", "p", 9, "newest")])
    (done,) = reappend_hidden(opened(storage, clock, "services"))
    assert (done.instant, done.rows, done.older) == (instant, 1, 1)
    assert sorted(contents(opened(storage, clock))) == [("a", "p", 9, "newest"), ("b", "p", 2, "2"), ("c", "p", 5, "late")]


def test_a_write_of_older_rows_alone_is_settled_by_an_empty_commit() -> None:
    storage, clock, _ = _hidden_behind(_compact, TableType.MOR, [("a", "p", 1, "older")])
    services = opened(storage, clock, "services")
    before = contents(services)
    assert len(_named(services)) == 1
    (done,) = reappend_hidden(services)
    assert (done.rows, done.older) == (0, 1)
    assert contents(opened(storage, clock)) == before
    assert _named(opened(storage, clock, "services")) == []


@pytest.mark.parametrize("deletes", [False, True])
def test_a_row_that_nobody_finds_comes_back_unless_a_later_write_may_have_deleted_it(deletes: bool) -> None:
    storage, clock, instant = _hidden_behind(_cluster, TableType.COW, [("n", "p", 5, "late")], **BESIDE)
    ours = opened(storage, clock, "ours")
    if deletes:
        put(ours, [("b", "p", 2, "2")], Operation.DELETE)
    services = opened(storage, clock, "services")
    if not deletes:
        assert [done.rows for done in reappend_hidden(services)] == [1]
        assert ("n", "p", 5, "late") in contents(opened(storage, clock))
        return
    with pytest.raises(UnsupportedTable, match="deleted rows, perhaps n") as refused:
        reappend_hidden(services)
    assert instant in str(refused.value)
    assert len(_named(services)) == 1


@pytest.mark.parametrize(("rewrite", "kind"), [(_compact, TableType.MOR), (_cluster, TableType.MOR), (_cluster, TableType.COW)])
def test_a_hidden_write_that_deleted_rows_is_refused_by_name(rewrite: Rewrite, kind: TableType) -> None:
    storage, clock = _table(kind)
    job = unlocked_job(storage, clock)

    def meanwhile() -> None:
        clock.advance(1)
        with unseen(storage):
            rewrite(opened(storage, clock, "services"))

    with before_commit(job, meanwhile):
        put(job, [("a", "p", 5, "")], Operation.DELETE)
    services = opened(storage, clock, "services")
    assert len(_named(services)) == 1
    with pytest.raises(UnsupportedTable, match="it deleted rows"):
        reappend_hidden(services)
    (text,) = _named(services)
    with pytest.raises(InstantNotFound, match="hidden write 20200101000000000"):
        reappend_hidden(services, ["20200101000000000"])
    assert [done.rows for done in reappend_hidden(services, [text.split()[1]])] == [0]
    assert _named(services) == []


@pytest.mark.parametrize("rewrite", [_compact, _cluster], ids=["compaction", "clustering"])
def test_a_clean_by_versions_keeps_what_a_pending_write_has_begun_on(rewrite: Rewrite) -> None:
    newer = ("a", "p", 5, "late")
    storage, clock = _table(TableType.MOR)
    job = unlocked_job(storage, clock)

    def meanwhile() -> None:
        clock.advance(1)
        with unseen(storage):
            rewrite(opened(storage, clock, "services"))
        by_versions = {"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": 1}
        assert isinstance(request_clean(opened(storage, clock, "services"), by_versions), NotDue)

    with before_commit(job, meanwhile):
        put(job, [newer])
    assert len(reappend_hidden(opened(storage, clock, "services"))) == 1
    assert sorted(contents(opened(storage, clock))) == sorted([newer, ("b", "p", 2, "2"), ("c", "p", 1, "1")])


def test_nothing_is_cleaned_while_a_write_is_hidden() -> None:
    storage, clock, instant = _hidden_behind(_compact, TableType.MOR, [("a", "p", 5, "late")])
    clean = {"hoodie.cleaner.commits.retained": 1}
    services = opened(storage, clock, "services", **clean)
    services.timeline.catch_up()
    answer = request_clean(services)
    assert isinstance(answer, NotDue)
    assert instant in answer.reason
    assert "tideline reappend PATH" in answer.until
    reappend_hidden(services)
    put(services, [("a", "p", 6, "6")])
    assert isinstance(request_clean(services), str)


def test_what_a_pending_compaction_will_read_is_left_to_it() -> None:
    storage, clock, _ = _hidden_behind(lambda table: schedule_compaction(table, ONE), TableType.MOR, [LATE])
    services = opened(storage, clock, "services")
    assert len(_named(services)) == 1
    assert reappend_hidden(services) == ()
    run_pending(services)
    assert _named(services) == []


def test_a_base_file_below_that_of_a_compaction_is_named_and_its_rows_come_back() -> None:
    """A job that puts new rows into a small base file, which got a log file and was compacted meanwhile."""
    first, storage, clock = shared_table(TableType.MOR)
    put(first, [("a", "p", 1, "1"), ("c", "p", 1, "1")])
    job = unlocked_job(storage, clock)

    def meanwhile() -> None:
        clock.advance(1)
        with unseen(storage):
            put(opened(storage, clock, "ours"), [("a", "p", 2, "2")])
            _compact(opened(storage, clock, "services"))

    with before_commit(job, meanwhile):
        instant = put(job, [("n", "p", 5, "late")], **BESIDE).instant
    services = opened(storage, clock, "services")
    (text,) = _named(services)
    assert f"{instant}" in text
    assert "after compaction " in text
    assert [(done.instant, done.rows) for done in reappend_hidden(services)] == [(instant, 1)]
    assert sorted(contents(opened(storage, clock))) == [("a", "p", 2, "2"), ("c", "p", 1, "1"), ("n", "p", 5, "late")]
    assert _named(opened(storage, clock, "services")) == []
