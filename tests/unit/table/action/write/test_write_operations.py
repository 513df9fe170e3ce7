import threading
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.simulation.faults import FaultyStorage
from tests.unit.table.tables import SCHEMA, contents, create, new_table, open_table, rows_of, write

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.errors import DuplicateKey, InvalidOption, InvalidRecord, SchemaMismatch
from tideline_table.hudi.instant import Action
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import Table, TableType, create_table, summarise
from tideline_table.table.create import TableRequest
from tideline_table.writer import Operation

LISTS = pa.list_(pa.string())
DUP = "hoodie.datasource.insert.dup.policy"


@pytest.fixture
def table():
    table, _, _ = new_table()
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "other")])
    return table


def test_upsert_updates_and_inserts(table):
    committed = write(table, [("a", "p", 2, "y"), ("c", "p", 1, "z")])
    assert (committed.rows_inserted, committed.rows_updated, committed.rows_deleted) == (1, 1, 0)
    assert contents(table) == [("a", "p", 2, "y"), ("a", "q", 1, "other"), ("b", "p", 1, "x"), ("c", "p", 1, "z")]


def test_keys_are_unique_inside_a_partition_only(table):
    write(table, [("b", "q", 1, "second b")])
    assert [r for r in contents(table) if r[0] == "b"] == [("b", "p", 1, "x"), ("b", "q", 1, "second b")]


def test_delete(table):
    committed = write(table, [("a", "p", 0, ""), ("nope", "p", 0, ""), ("b", "zz", 0, "")], Operation.DELETE)
    assert committed.rows_deleted == 1
    assert contents(table) == [("a", "q", 1, "other"), ("b", "p", 1, "x")]
    write(table, [("b", "p", 0, "")], Operation.DELETE)
    assert contents(table) == [("a", "q", 1, "other")]
    write(table, [("b", "p", 0, "again")])
    assert ("b", "p", 0, "again") in contents(table)


def test_an_operation_that_changes_nothing_is_a_commit_without_files(table):
    before = contents(table)
    files = len(table.state.every_slice())
    for rows, operation in (
        ([], Operation.UPSERT),
        ([], Operation.DELETE),
        ([("a", "p", 0, "late")], Operation.UPSERT),
        ([("n", "p", 0, "")], Operation.DELETE),
    ):
        committed = write(table, rows, operation)
        assert committed.stats == ()
        assert table.state.actions[committed.instant].action is Action.COMMIT
    assert contents(table) == before
    assert len(table.state.every_slice()) == files


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
@pytest.mark.parametrize("limit", [0, 10**8])
def test_insert_policies(table, operation, limit):
    small = {"hoodie.parquet.small.file.limit": limit}
    rows = [("a", "p", 5, "dup"), ("d", "p", 5, "new")]
    with pytest.raises(DuplicateKey, match=r"1 record key\(s\)"):
        write(table, rows, operation, **{DUP: "fail"}, **small)
    assert len(contents(table)) == 3
    assert list(table.state.pending()) == []
    assert write(table, rows, operation, **{DUP: "drop"}, **small).rows_inserted == 1
    assert [r for r in contents(table) if r[0] in "ad"] == [("a", "p", 1, "x"), ("a", "q", 1, "other"), ("d", "p", 5, "new")]
    write(table, rows, operation, **{DUP: "none"}, **small)
    assert len([r for r in contents(table) if r[:2] == ("a", "p")]) == 2


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
@pytest.mark.parametrize(("policy", "after"), [("fail", ["theirs"]), ("drop", ["theirs"]), ("none", ["mine", "theirs"])])
def test_policies_mind_what_another_one_inserts_meanwhile(operation, policy, after):
    """The key was in no file when this write looked for it."""
    _, disk, clock = new_table()
    faulty = FaultyStorage(disk)
    others = []

    def before(_, call, path):
        if call == "open_output" and not others:
            others.append(write(open_table(disk, clock, "other"), [("new", "p", 1, "theirs")], Operation.INSERT))

    faulty.before = before
    expected = pytest.raises(DuplicateKey) if policy == "fail" else nullcontext()
    with expected:
        write(open_table(faulty, clock, "mine"), [("new", "p", 1, "mine")], operation, **{DUP: policy})
    table = open_table(disk, clock)
    assert [v for _, _, _, v in contents(table)] == after
    assert list(table.state.pending()) == []


def test_drop_leaves_no_key_twice(table):
    rows = [("a", "p", 5, "known"), ("a", "p", 6, "known"), ("n", "p", 5, "first"), ("n", "p", 6, "second")]
    write(table, rows, Operation.INSERT, **{DUP: "drop"})
    assert [r for r in contents(table) if r[1] == "p" and r[0] in "an"] == [("a", "p", 1, "x"), ("n", "p", 6, "second")]


def test_the_same_key_in_two_partitions_is_no_duplicate(table):
    write(table, [("k", "p", 1, "x"), ("k", "q", 1, "x")], Operation.INSERT, **{DUP: "fail"})
    assert len([r for r in contents(table) if r[0] == "k"]) == 2


def test_deleting_a_key_that_inserts_doubled_removes_all_of_it(table):
    write(table, [("a", "p", 7, "copy")], Operation.INSERT)
    write(table, [("a", "p", 8, "copy")], Operation.BULK_INSERT)
    assert len([r for r in contents(table) if r[:2] == ("a", "p")]) == 3
    write(table, [("a", "p", 0, "")], Operation.DELETE)
    assert [r for r in contents(table) if r[:2] == ("a", "p")] == []


def test_combine_before_insert(table):
    rows = [("n", "p", 2, "second"), ("n", "p", 1, "first")]
    write(table, rows, Operation.INSERT, **{"hoodie.combine.before.insert": True})
    assert [r for r in contents(table) if r[0] == "n"] == [("n", "p", 2, "second")]


@pytest.mark.parametrize(
    ("key", "value", "order"),
    [
        ("user.defined.partitioner.sort.columns", "ts", ["y", "x", "z"]),
        ("sort.mode", "GLOBAL_SORT", ["x", "y", "z"]),
        ("sort.mode", "partition_sort", ["x", "y", "z"]),
        ("sort.mode", "PARTITION_PATH_REPARTITION_AND_SORT", ["z", "x", "y"]),
    ],
)
def test_bulk_insert_sorts(table, key, value, order):
    rows = [("z", "p", 3, "c"), ("x", "p", 2, "a"), ("y", "p", 1, "b")]
    committed = write(table, rows, Operation.BULK_INSERT, **{f"hoodie.bulkinsert.{key}": value})
    found = table.read().filter(pc.field("_hoodie_commit_time") == committed.instant)
    assert found.column("id").to_pylist() == order


@pytest.mark.parametrize("kind", [LISTS, pa.struct([("inner", LISTS)]), pa.map_(pa.string(), pa.int64())])
def test_a_sort_column_without_an_order_is_refused(kind):
    """Arrow's own error came, while the rows were sorted."""
    rows = pa.table({"id": ["a"], "it": pa.array([None], kind)})
    storage = MemoryStorage()
    create_table("memory", TableRequest("t", rows.schema, ("id",)), storage=storage)
    table = Table.open("memory", storage=storage)
    with pytest.raises(SchemaMismatch, match=r"sort column 'it' of type .* no lists or maps"):
        write_rows(table, rows, Operation.BULK_INSERT, options={"hoodie.bulkinsert.user.defined.partitioner.sort.columns": "it"})


def test_files_stay_below_the_target_size(table):
    rows = [(f"k{n:04d}", "p", n, "x" * 50) for n in range(400)]
    committed = write(
        table, rows, Operation.INSERT, **{"hoodie.parquet.max.file.size": 20_000, "hoodie.copyonwrite.record.size.estimate": 1}
    )
    assert len(committed.stats) > 1
    assert len({s.file_id for s in committed.stats}) == len(committed.stats)
    assert len(contents(table)) == 403


@pytest.mark.parametrize("kind", TableType)
def test_the_files_of_a_first_load_have_the_size_that_was_asked_for(kind):
    """A 30 KB target gave files of 5.7 KB: each row counted as 256 bytes."""
    table, _, _ = new_table(type=kind)
    rows = [(f"k{n:06}", "p", n, f"value {n * 7919 % 1000}") for n in range(5000)]
    done = write(table, rows, Operation.INSERT, **{"hoodie.parquet.max.file.size": 30_000})
    assert sorted(stat.file_size_bytes for stat in done.stats)[1] in range(20_000, 40_000)
    more = write(table, [(f"l{n:06}", "q", n, "x") for n in range(10)], Operation.INSERT)
    assert len(more.stats) == 1


def test_unpartitioned_and_complex_tables(tmp_path):
    for number, (keys, partitions) in enumerate([(("id",), ()), (("id", "ts"), ("part", "v"))]):
        storage = LocalStorage(tmp_path / str(number))

        create_table(
            storage.root,
            TableRequest("t", SCHEMA, keys, partitions, "ts", hive_style=True, url_encode=True),
            storage=storage,
            clock=ManualClock(),
        )
        table = open_table(storage, ManualClock())
        write(table, [("a", "x/y", 1, "v=1"), ("b", None, 1, "")])
        write(table, [("a", "x/y", 1, "v=1")])
        assert contents(table) == [("a", "x/y", 1, "v=1"), ("b", None, 1, "")]
        default = "__HIVE_DEFAULT_PARTITION__"
        expected = {"part=x%2Fy/v=v%3D1", f"part={default}/v={default}"} if partitions else {""}
        assert {s.group.partition_path for s in table.slices()} == expected
        for partition in expected:
            text = storage.read(f"{partition}/.hoodie_partition_metadata".lstrip("/")).decode()
            assert f"partitionDepth={2 if partitions else 0}" in text


def test_summary(table):
    write(table, [("a", "p", 2, "y")])
    summary = summarise(table)
    assert (summary.rows, summary.partitions, summary.file_groups, summary.files, summary.commits) == (3, 2, 2, 3, 2)
    assert summary.latest_bytes == sum(s.size_bytes for s in table.slices())
    assert summary.health.is_healthy


def test_threads_may_share_an_open_table(tmp_path):
    """Readers on the same object never see half of a commit: both rows of a pair change together."""
    storage = LocalStorage(tmp_path)

    create(storage, SystemClock(), ordering="")
    table = open_table(storage, SystemClock())
    write(table, [("a", "p", 0, "v"), ("a", "q", 0, "v")])
    stop, seen, failed = threading.Event(), [], []

    def read():
        try:
            while not stop.is_set():
                seen.append({r[2] for r in contents(table)})
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(1, 15):
        write_rows(table, rows_of([("a", "p", n, "v"), ("a", "q", n, "v")]), Operation.UPSERT, parallelism=2)
    stop.set()
    for reader in readers:
        reader.join()
    assert failed == []
    assert seen
    assert {len(s) for s in seen} == {1}


@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("ordering", ["ts", ""])
def test_an_upsert_removes_keys_whatever_their_ordering_values(kind, ordering):
    table, storage, clock = new_table(type=kind, ordering=ordering)
    write(table, [("a", "p", 50, "old"), ("b", "p", 50, "old"), ("c", "q", 50, "old"), ("d", "q", 50, "old")])
    clock.advance(1)
    removed = pa.table({"id": ["a", "c", "nowhere", "a"], "part": ["p", "q", "q", "p"]})
    upserted = rows_of([("b", "p", 60, "new"), ("d", "q", 40, "older"), ("e", "p", 1, "new")])
    marked = upserted.append_column("_hoodie_is_deleted", pa.array([False, True, False]))
    committed = write_rows(table, marked, Operation.UPSERT, removed=removed, parallelism=1)
    survivor = [("d", "q", 50, "old")] if ordering else []
    assert contents(table) == [("b", "p", 60, "new"), *survivor, ("e", "p", 1, "new")]
    if kind is TableType.COW:
        assert (committed.rows_inserted, committed.rows_updated, committed.rows_deleted) == (1, 1, 2 if ordering else 3)
    # What was removed may come again: as the key's first version, except that a base file below a log still has its old one.
    again = ("a", "p", 1 if kind is TableType.COW or not ordering else 99, "again")
    write(table, [again])
    assert again in contents(open_table(storage, clock))


def test_keys_to_remove_are_refused_where_they_mean_nothing():
    table, _, _ = new_table()
    removed = pa.table({"id": ["a"], "part": ["p"]})
    with pytest.raises(DuplicateKey, match="'a'"):
        write_rows(table, rows_of([("a", "p", 1, "x")]), Operation.UPSERT, removed=removed)
    with pytest.raises(InvalidOption):
        write_rows(table, rows_of([("b", "p", 1, "x")]), Operation.INSERT, removed=removed)
    with pytest.raises(InvalidRecord):
        write_rows(table, rows_of([]), Operation.UPSERT, removed=removed.select(["part"]))
    assert table.refresh().sequence == 0
    write_rows(table, rows_of([]), Operation.UPSERT, removed=removed)
    assert contents(table) == []
