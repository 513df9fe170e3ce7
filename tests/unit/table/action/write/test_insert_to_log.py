"""Inserts into log files: new groups without a base file, small groups filled without rewriting theirs, and keys that stay
unique."""

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.tables import cluster, contents, create, open_table, rows_of, write

from tideline_table.action import run_compaction, write_rows
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import DuplicateKey
from tideline_table.log.checkpoint import read_opening, write_checkpoint
from tideline_table.log_format.key_index import INDEX_FOLDER, read_index
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

NOW = {"hoodie.compact.inline.max.delta.commits": 1}
SMALL = {"hoodie.parquet.small.file.limit": 100_000_000}
TO_LOG = {"tideline.insert.to.log": True, **SMALL}
POLICY = "hoodie.datasource.insert.dup.policy"


def mor_table(**options):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    return open_table(storage, clock, **{**TO_LOG, **options}), storage


def compact(table):
    schedule_compaction(table, NOW)
    return run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def shapes(table):
    return sorted((bool(s.base_file), len(s.log_files)) for s in table.slices())


def test_a_new_group_begins_with_a_log_file_and_compaction_gives_it_a_base_file():
    table, _ = mor_table()
    committed = write(table, [(k, "p", 1, "x") for k in "abc"])
    assert shapes(table) == [(False, 1)]
    (found,) = table.slices()
    assert found.base_instant == committed.instant, "the slice is that of the write that opened it"
    (stat,) = committed.stats
    assert (stat.num_inserts, stat.num_updates, stat.prev_commit, stat.base_file) == (3, 0, committed.instant, "")
    assert stat.log_files == (found.log_files[0].name,)
    assert table.timeline.log.read(committed.sequence).body.inserted_key_hashes is not None
    second = write(table, [("c", "p", 2, "y"), ("d", "p", 2, "y")])
    assert shapes(table) == [(False, 2)]
    assert (second.rows_updated, second.rows_inserted) == (1, 1)
    before = contents(table)
    assert before == [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "p", 2, "y"), ("d", "p", 2, "y")]
    compact(table)
    assert shapes(table) == [(True, 0)]
    assert contents(table) == before


def test_a_small_group_takes_inserts_without_its_base_file_being_written_again():
    table, _ = mor_table()
    write(
        table,
        [(f"k{n}", "p", n * 2654435761 % 2**40, f"{n * 2654435761 % 2**40:x}" * 5) for n in range(2000)],
        Operation.BULK_INSERT,
    )
    (before,) = table.slices()
    write(table, [("k1", "p", 2**50, "y"), ("new", "p", 2, "y")])
    write(table, [("newer", "p", 3, "z"), ("new", "p", 3, "z")])
    (after,) = table.slices()
    assert (after.base_file, shapes(table)) == (before.base_file, [(True, 2)])
    assert sum(log.size_bytes for log in after.log_files) < before.size_bytes
    assert table.look_up(["new", "newer", "k1"], ["ts"]).column(0).to_pylist().count(3) == 2
    assert len({r[0] for r in contents(table)}) == len(contents(table)) == 2002


def test_full_groups_take_none():
    table, _ = mor_table(**{"hoodie.parquet.max.file.size": 2048, "hoodie.parquet.small.file.limit": 1024})
    write(table, [(f"k{n}", "p", 1, "x") for n in range(8)])
    write(table, [(f"m{n}", "p", 1, "x") for n in range(8)])
    assert len(table.slices()) == 2, "a log of more than the small limit is no small group"


def test_marked_deletions_of_unknown_keys_vanish():
    table, _ = mor_table()
    write(table, [("a", "p", 1, "x")])
    columns = {"id": ["a", "b", "c"], "part": ["p"] * 3, "ts": [2, 2, 2], "v": ["y"] * 3, "_hoodie_is_deleted": [True, True, False]}
    committed = write_rows(table, pa.table(columns), Operation.UPSERT, parallelism=1)
    assert (committed.rows_inserted, committed.rows_deleted) == (1, 1)
    assert contents(table) == [("c", "p", 2, "y")]


@pytest.mark.parametrize("window_files", [0, 8])
def test_two_writers_that_insert_one_key_conflict(window_files, monkeypatch):
    """Of new groups nothing but the keys tells; carried as hashes, or looked up in the log file of the other."""
    table, storage = mor_table(**{"tideline.log.index.clique.files": window_files, "hoodie.parquet.small.file.limit": 0})
    other = open_table(storage, table.clock, "other", **TO_LOG)
    heard = []

    def meanwhile(transaction, *args, **more):
        monkeypatch.undo()
        monkeypatch.setattr("tideline_table.action.write.transaction.MAX_CARRIED_HASHES", 0)
        write(other, [("a", "p", 5, "other")], **{"hoodie.parquet.small.file.limit": 0})
        return transaction.commit(*args, **more)

    monkeypatch.setattr("tideline_table.action.write.run.WriteTransaction.commit", meanwhile)
    committed = write_rows(
        table, rows_of([("a", "p", 9, "mine")]), Operation.UPSERT, on_conflict=lambda e, n: heard.append(e), parallelism=1
    )
    assert committed.attempts == 2
    assert "were inserted by" in str(heard[0])
    assert contents(table) == [("a", "p", 9, "mine")]
    assert len(table.slices()) == 1


@pytest.mark.parametrize(("key", "attempts"), [("b", 1), ("a", 2)])
def test_two_writers_that_fill_one_group_at_once(key, attempts, monkeypatch):
    """Other keys: the log file moves behind the other's, and its index with it. The same key: the write is done again."""
    table, storage = mor_table()
    write(table, [("x", "p", 1, "x")])
    other = open_table(storage, table.clock, "other", **TO_LOG)
    commit = WriteTransaction.commit

    def meanwhile(transaction, *args, **more):
        monkeypatch.undo()
        write(other, [(key, "p", 5, "other")])
        return commit(transaction, *args, **more)

    monkeypatch.setattr(WriteTransaction, "commit", meanwhile)
    assert write(table, [("a", "p", 9, "mine")]).attempts == attempts
    assert contents(table) == sorted({("a", "p", 9, "mine"), ("x", "p", 1, "x"), *([("b", "p", 5, "other")] if key == "b" else [])})
    (found,) = table.slices()
    assert [len(read_index(storage, path).logs) for path in found.log_paths] == [1, 2, 3]
    assert [log.path for log in read_index(storage, found.log_paths[-1]).logs] == list(found.log_paths)
    assert len(list(storage.list_objects(INDEX_FOLDER))) == 3, "what moved left no index behind"
    write(table, [("a", "p", 10, "again"), ("b", "p", 10, "again")])
    assert len({row[0] for row in contents(table)}) == len(contents(table)) == 3


def test_two_writers_that_fill_one_group_conflict():
    table, storage = mor_table()
    write(table, [("a", "p", 1, "x")])
    other = open_table(storage, table.clock, "other", **TO_LOG)
    other.refresh()
    write(table, [("b", "p", 1, "x")])
    write(other, [("c", "p", 1, "x"), ("b", "p", 2, "y")])
    table.refresh()
    assert contents(table) == [("a", "p", 1, "x"), ("b", "p", 2, "y"), ("c", "p", 1, "x")]
    assert shapes(table) == [(False, 3)]


def test_blind_inserts_open_new_groups():
    table, _ = mor_table()
    write(table, [("a", "p", 1, "x")], Operation.INSERT)
    write(table, [("b", "p", 1, "x")], Operation.INSERT)
    assert shapes(table) == [(False, 1), (False, 1)]
    write(table, [("a", "p", 2, "again")], Operation.INSERT)
    assert [r[0] for r in contents(table)] == ["a", "a", "b"], "as the duplicate policy says: a key is written again"
    write(table, [("c", "p", 1, "x"), ("c", "p", 2, "y")], Operation.INSERT)
    assert [r[0] for r in contents(table)] == ["a", "a", "b", "c", "c"], "merging a log would take the two for one"
    assert any(s.base_file for s in table.slices())


def test_inserts_with_a_duplicate_policy_find_keys_of_logs():
    table, _ = mor_table()
    write(table, [("a", "p", 1, "x")], Operation.INSERT)
    write(table, [("a", "p", 2, "y"), ("b", "p", 2, "y")], Operation.INSERT, **{POLICY: "drop"})
    assert contents(table) == [("a", "p", 1, "x"), ("b", "p", 2, "y")]
    with pytest.raises(DuplicateKey):
        write(table, [("b", "p", 3, "z")], Operation.INSERT, **{POLICY: "fail"})


def test_without_the_option_nothing_changes():
    table, _ = mor_table(**{"tideline.insert.to.log": False})
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 2, "x")])
    write(table, [("b", "p", 1, "x")])
    assert shapes(table) == [(True, 0), (True, 1)]
    write(table, [("c", "p", 1, "x")], Operation.BULK_INSERT, **TO_LOG)
    assert (False, 1) not in shapes(table), "a first load writes base files"


def test_keys_that_a_compaction_dropped_are_found_in_the_log_that_brought_them_back():
    """Deleted before the plan, written again while it was pending: the new base file does not have the key, the new log file
    has."""
    table, _ = mor_table(**{"tideline.insert.to.log": False})
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x")])
    write(table, [("a", "p", 0, "")], Operation.DELETE)
    schedule_compaction(table, NOW)
    write(table, [("a", "p", 2, "back")])
    run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
    write(table, [("a", "p", 3, "updated")])
    assert contents(table) == [("a", "p", 3, "updated"), ("b", "p", 1, "x")]


def test_only_log_files_that_may_add_keys_are_looked_into():
    table, storage = mor_table(**{"tideline.insert.to.log": False})
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 2, "x")])
    assert [log.adds_keys for log in table.slices()[0].log_files] == [False]
    write(table, [("b", "p", 2, "x")], **TO_LOG)
    write(table, [("b", "p", 3, "")], Operation.DELETE)
    write(table, [("a", "p", 3, "x"), ("b", "p", 3, "x")], **TO_LOG)
    flags = [(log.adds_keys, log.deletes_keys) for log in table.slices()[0].log_files]
    assert flags == [(False, False), (True, False), (False, True), (False, False)]
    write_checkpoint(storage, table.refresh())
    assert read_opening(storage).state.slices == table.state.slices


def test_clustering_takes_groups_of_log_files_only():
    table, _ = mor_table()
    write(table, [("a", "p", 1, "x"), ("c", "p", 1, "x")])
    write(table, [("a", "p", 2, "y")])
    write(table, [("b", "p", 1, "x")], **{"hoodie.parquet.small.file.limit": 0})
    before = contents(table)
    assert schedule_clustering(table) is not None
    cluster(table)
    assert shapes(table) == [(True, 0)]
    assert contents(table) == before
