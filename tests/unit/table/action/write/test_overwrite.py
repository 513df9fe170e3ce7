"""Insert-overwrite and delete-partition: what they replace, and what happens beside other writers and services."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.tables import cluster, contents, create, new_table, open_table, rows_of, write

from tideline_table.action import delete_partitions, run_clean, write_rows
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.compaction.run import run_compaction
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidOption, WriteConflict
from tideline_table.hudi.instant import Action
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

FIRST = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "q", 1, "x")]
KINDS = [TableType.COW, TableType.MOR]


def table_of(kind, **options):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock, **options)
    write(table, FIRST)
    return table, storage, clock


def overwrite(table, rows, operation=Operation.INSERT_OVERWRITE, **more):
    table.clock.advance(1)
    return write_rows(table, rows_of(rows), operation, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_insert_overwrite_replaces_the_partitions_of_its_rows(kind):
    table, _, _ = table_of(kind)
    write(table, [("a", "p", 2, "y")])
    before = table.state.sequence
    committed = overwrite(table, [("a", "p", 1, "new"), ("d", "p", 1, "new")])
    assert contents(table) == [("a", "p", 1, "new"), ("c", "q", 1, "x"), ("d", "p", 1, "new")]
    record = table.state.actions[committed.instant]
    assert (record.action, record.operation) == (Action.REPLACE_COMMIT, "INSERT_OVERWRITE")
    changes = table.changes(before).scan(["id"])
    found = sorted((row["op"], (row["before"] or row["after"])["id"]) for batch in changes for row in batch.to_pylist())
    assert found == [("d", "b"), ("i", "d"), ("u", "a")]
    assert contents(table, as_of=sorted(table.state.actions)[-2])[0] == ("a", "p", 2, "y")


def test_an_overwrite_makes_base_files_whatever_inserts_do():
    table, _, _ = table_of(TableType.MOR, **{"tideline.insert.to.log": "true"})
    assert any(s.log_files and not s.base_file for s in table.slices())
    overwrite(table, [("d", "p", 1, "new")])
    assert all(s.base_file for s in table.slices() if s.group.partition_path == "p")
    assert contents(table) == [("c", "q", 1, "x"), ("d", "p", 1, "new")]


@pytest.mark.parametrize("kind", KINDS)
def test_insert_overwrite_table_replaces_everything_and_no_rows_empty_it(kind):
    table, storage, _ = table_of(kind)
    overwrite(table, [("z", "r", 1, "new")], Operation.INSERT_OVERWRITE_TABLE)
    assert contents(table) == [("z", "r", 1, "new")]
    overwrite(table, [], Operation.INSERT_OVERWRITE_TABLE)
    assert contents(table) == []
    write(table, [("a", "p", 1, "again")])
    assert contents(open_table(storage, table.clock)) == [("a", "p", 1, "again")]


@pytest.mark.parametrize("kind", KINDS)
def test_delete_partitions_and_cleaning_takes_the_files(kind):
    table, storage, clock = table_of(kind, **{"hoodie.cleaner.commits.retained": "1"})
    clock.advance(1)
    done = delete_partitions(table, ["p"])
    assert contents(table) == [("c", "q", 1, "x")]
    assert storage.read(f".hoodie/{done.instant}.replacecommit")
    for n in range(3):
        write(table, [("c", "q", n + 2, "x")])
    assert schedule_clean(table) is not None
    run_clean(table)
    assert not [o.path for o in storage.list_objects("p") if o.path.endswith(".parquet")]
    assert contents(table) == [("c", "q", 4, "x")]


@pytest.mark.parametrize("kind", KINDS)
def test_replaced_rows_count_as_deleted(kind):
    """They counted as none. -1: log files delete rows or add keys, so only reading tells how many there were."""
    table, storage, _ = table_of(kind)
    write(table, [("a", "p", 2, "y")])
    done = [
        overwrite(table, [("d", "p", 1, "new")]),
        overwrite(table, [("e", "r", 1, "new")]),
        delete_partitions(table, ["q", "r"]),
    ]
    assert [(c.rows_inserted, c.rows_updated, c.rows_deleted) for c in done] == [(1, 0, 2), (1, 0, 0), (0, 0, 2)]
    write(table, [("f", "p", 1, "x")])
    write(table, [("d", "p", 1, "")], Operation.DELETE)
    done.append(overwrite(table, [], Operation.INSERT_OVERWRITE_TABLE))
    assert done[-1].rows_deleted == (1 if kind is TableType.COW else -1)
    for committed in done:
        content = storage.read(f".hoodie/{committed.instant}.replacecommit")
        assert CommitMetadata.from_bytes(content, "").rows_deleted == committed.rows_deleted


def test_replaced_rows_that_apache_hudi_did_not_count_are_unknown():
    by_hudi = CommitMetadata("INSERT_OVERWRITE", (), {}, {"p": ("f",)})
    damaged = CommitMetadata("DELETE_PARTITION", (), {"tideline.replaced.rows": "x"}, {"p": ("f",)})
    assert (by_hudi.rows_deleted, damaged.rows_deleted) == (-1, -1)
    assert CommitMetadata("CLUSTER", (), {}, {"p": ("f",)}).rows_deleted == 0


def test_unknown_partitions_and_rows_without_use_are_refused():
    table, _, _ = new_table()
    write(table, FIRST)
    before = table.state.sequence
    with pytest.raises(InvalidOption, match=r"'pp'.*expected p"):
        delete_partitions(table, ["q", "pp"])
    with pytest.raises(InvalidOption, match="tideline delete-partition"):
        write_rows(table, rows_of(FIRST), Operation.DELETE_PARTITION)
    assert table.refresh().sequence == before


def beside(monkeypatch, action):
    """Let `action` happen right before the next commit."""
    stage, done = WriteTransaction.commit, []

    def late(self, *arguments, **more):
        if not done:
            done.append(self.instant)
            action()
        return stage(self, *arguments, **more)

    monkeypatch.setattr(WriteTransaction, "commit", late)


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_add_meanwhile_is_replaced_too(monkeypatch, kind):
    """Apache Hudi #18830 lets such inserts slip past: they would stay beside the rows that took the place of everything."""
    table, storage, clock = table_of(kind, **{"hoodie.parquet.small.file.limit": "0"})
    other = open_table(storage, clock, "other", **{"hoodie.parquet.small.file.limit": "0"})
    beside(monkeypatch, lambda: write(other, [("e", "p", 1, "other"), ("f", "q", 1, "other")]))
    committed = overwrite(table, [("a", "p", 1, "new")])
    assert committed.attempts == 1
    assert contents(table) == [("a", "p", 1, "new"), ("c", "q", 1, "x"), ("f", "q", 1, "other")]


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_of_what_was_replaced_meanwhile_is_done_again(monkeypatch, kind):
    table, storage, clock = table_of(kind)
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: overwrite(other, [("b", "p", 7, "over")]))
    committed = write(table, [("a", "p", 2, "late")])
    assert committed.attempts == 2
    assert contents(table) == [("a", "p", 2, "late"), ("b", "p", 7, "over"), ("c", "q", 1, "x")]


def test_an_insert_of_a_key_that_an_overwrite_brought_meanwhile_is_done_again(monkeypatch):
    table, storage, clock = table_of(TableType.COW, **{"hoodie.parquet.small.file.limit": "0"})
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: overwrite(other, [("n", "p", 7, "over")]))
    committed = write(table, [("n", "p", 8, "late")])
    assert committed.attempts == 2
    assert contents(table) == [("c", "q", 1, "x"), ("n", "p", 8, "late")]


def test_a_clustering_of_what_was_replaced_loses(monkeypatch):
    table, storage, clock = table_of(TableType.COW, **{"hoodie.parquet.small.file.limit": "0"})
    write(table, [("e", "p", 1, "x")])
    other = open_table(storage, clock, "other")
    assert schedule_clustering(table) is not None
    overwrite(other, [("a", "p", 1, "new")])
    with pytest.raises(WriteConflict, match="was replaced by"):
        cluster(table)
    assert contents(table) == [("a", "p", 1, "new"), ("c", "q", 1, "x")]


def test_a_group_under_compaction_is_not_overwritten():
    options = {"hoodie.compact.inline.max.delta.commits": "1", "tideline.write.conflict.retries": "1"}
    table, _, _ = table_of(TableType.MOR, **options)
    write(table, [("a", "p", 2, "y")])
    assert schedule_compaction(table) is not None
    with pytest.raises(WriteConflict, match=r"is under compaction.*run the compaction"):
        overwrite(table, [("a", "p", 1, "new")])
    overwrite(table, [("c", "q", 1, "new")])
    run_compaction(table, "", run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
    overwrite(table, [("a", "p", 1, "new")])
    assert contents(table) == [("a", "p", 1, "new"), ("c", "q", 1, "new")]
