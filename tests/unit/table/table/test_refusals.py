"""Bad input and broken tables: a typed error that says what was found, and not one byte changed."""

import pickle
import shutil

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import QUIET, SCHEMA, contents, create, declare, listing, new_table, open_table, rows_of, write

from tideline_table.action import run_clean, run_clustering, write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import (
    CorruptMetadata,
    DuplicateKey,
    InvalidOption,
    InvalidRecord,
    SchemaMismatch,
    StorageError,
    TableExists,
    TableFrozen,
    TableNotFound,
    TidelineError,
    UnsupportedTable,
)
from tideline_table.hudi.properties import CHECKSUM, PROPERTIES_PATH, format_properties, parse_properties, read_properties
from tideline_table.log.checkpoint import POINTER
from tideline_table.log.entry import entry_path
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import BloomIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation


@pytest.fixture
def table():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    return table, storage, clock


def refused(table, rows, operation, error, words, **options):
    table, storage, _ = table
    before = listing(storage)
    with pytest.raises(error, match=words) as caught:
        write_rows(table, rows, operation, options=options, parallelism=1)
    assert caught.value.found
    assert listing(storage) == before


ROW = {"id": ["c"], "part": ["p"], "ts": [1], "v": ["x"]}
INPUTS = [
    (pa.table({"id": ["c"], "zz": [1]}), SchemaMismatch, "'zz'"),
    (pa.table({"part": ["p"]}), SchemaMismatch, "without key column 'id', ordering column 'ts'"),
    (pa.table({name: ROW[name] for name in ("id", "part", "ts")}), SchemaMismatch, "'v'"),
    (pa.table(ROW | {"id": pa.array([None], pa.string())}), SchemaMismatch, "null"),
    (pa.table(ROW | {"id": [""]}), InvalidRecord, "record key"),
    (pa.table(ROW | {"part": [".."]}), InvalidRecord, "partition value '..'"),
    (pa.table(ROW | {"part": ["x/../../y"]}), InvalidRecord, "partition value"),
    (pa.table(ROW | {"part": [".hoodie"]}), InvalidRecord, "partition value"),
    (pa.table(ROW | {"ts": ["soon"]}), SchemaMismatch, "'ts'"),
    (pa.table(ROW | {"ts": [1.5]}), SchemaMismatch, "'ts'"),
    (pa.table(ROW | {"id": [1]}), SchemaMismatch, "'id'"),
    (pa.table(ROW | {"_hoodie_is_deleted": ["yes"]}), SchemaMismatch, "_hoodie_is_deleted"),
    (
        pa.Table.from_arrays([pa.array(column) for column in [*ROW.values(), ["d"]]], names=[*ROW, "id"]),
        SchemaMismatch,
        "more than once",
    ),
]


@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT, Operation.BULK_INSERT])
@pytest.mark.parametrize(("rows", "error", "words"), INPUTS)
def test_rows_that_cannot_be_written(table, rows, error, words, operation):
    refused(table, rows, operation, error, words)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (pa.table({"id": [None, "a"], "part": ["p", "p"]}), InvalidRecord, "record key"),
        (pa.table({"part": ["p"]}), InvalidRecord, "record key"),
        (pa.table({"id": ["a"], "part": ["../.."]}), InvalidRecord, "partition value"),
        (pa.table({"id": [1.5], "part": ["p"]}), SchemaMismatch, "'id'"),
    ],
)
def test_keys_that_cannot_be_deleted(table, rows, error, words):
    refused(table, rows, Operation.DELETE, error, words)


def test_options_of_a_write(table):
    refused(table, rows_of([("c", "p", 1, "x")]), Operation.UPSERT, InvalidOption, "did|unknown", **{"hoodie.nope": 1})
    refused(
        table, rows_of([("c", "p", 1, "x")]), Operation.UPSERT, InvalidOption, "codec", **{"hoodie.parquet.compression.codec": "x"}
    )


def test_duplicates_where_they_are_not_combined(table):
    twice = rows_of([("c", "p", 1, "x"), ("c", "p", 2, "y")])
    refused(table, twice, Operation.UPSERT, DuplicateKey, "'c'", **{"hoodie.combine.before.upsert": False})
    for operation in (Operation.INSERT, Operation.BULK_INSERT):
        refused(table, twice, operation, DuplicateKey, "'c'", **{"hoodie.datasource.insert.dup.policy": "fail"})


def test_bulk_insert_sort_columns_are_checked(table):
    rows = rows_of([("c", "p", 1, "x")])
    key = "hoodie.bulkinsert.user.defined.partitioner.sort.columns"
    refused(table, rows, Operation.BULK_INSERT, SchemaMismatch, "'nope'", **{key: "ts,nope"})


def test_columns_of_a_read_are_checked(table):
    with pytest.raises(SchemaMismatch, match="'nope'"):
        table[0].read(["id", "nope"])


# --- places without a sound table ----------------------------------------------------------------------------------------


def open_refused(storage, error, words, write_too=True):
    before = listing(storage)
    with pytest.raises(error, match=words):
        open_table(storage, ManualClock())
    assert listing(storage) == before


def test_no_table_there(tmp_path):
    with pytest.raises(TableNotFound, match="no table at"):
        Table.open(str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnsupportedTable, match="s3://bucket/path"):
        Table.open("gs://bucket/t")
    with pytest.raises(UnsupportedTable, match="empty base path"):
        Table.open("")
    for impossible in ("a\x00b", "\ud800", "file:/a%00b"):
        with pytest.raises(UnsupportedTable, match="characters that a file system can store"):
            Table.open(impossible)
    with pytest.raises(TableNotFound):
        Table.open("//[x")


def with_properties(storage, **changes):
    properties = {**parse_properties(storage.read(PROPERTIES_PATH)), **{k.replace("_", "."): v for k, v in changes.items()}}
    storage.put(PROPERTIES_PATH, format_properties({k: v for k, v in properties.items() if v is not None}, "test"))


@pytest.mark.parametrize("version", ["5", "8", "9", "60"])
def test_other_versions(table, version):
    with_properties(table[1], hoodie_table_version=version)
    open_refused(table[1], UnsupportedTable, f"version {version}")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"hoodie_table_version": "six"}, CorruptMetadata, "'six'"),
        ({"hoodie_table_version": "²"}, CorruptMetadata, "hoodie.table.version"),
        ({"hoodie_table_version": None}, CorruptMetadata, "a release of Apache Hudi before 0.6 made the table"),
        ({"hoodie_table_name": None, CHECKSUM: None}, CorruptMetadata, "without hoodie.table.name"),
        ({"hoodie_table_name": "other"}, CorruptMetadata, "checksum"),
        ({"hoodie_table_type": "COLUMNS"}, CorruptMetadata, "COLUMNS"),
        ({"hoodie_table_base_file_format": "HFILE"}, UnsupportedTable, "HFILE"),
    ],
)
def test_properties_that_cannot_be_used(table, changes, error, words):
    with_properties(table[1], **changes)
    open_refused(table[1], error, words)


@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage \\u12", b"a=\\uZZZZ"])
def test_broken_properties(table, content):
    table[1].put(PROPERTIES_PATH, content)
    open_refused(table[1], CorruptMetadata, "hoodie.properties")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hoodie__populate__meta__fields": "false"}, "meta fields"),
        ({"hoodie__datasource__write__drop__partition__columns": "true"}, "drops its partition columns"),
    ],
)
def test_tables_that_are_only_read(table, changes, words):
    storage = table[1]
    declare(storage, **changes)
    opened = open_table(storage, table[2])
    refused((opened, storage, None), rows_of([("c", "p", 1, "x")]), Operation.UPSERT, UnsupportedTable, words)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"[]"])
def test_broken_identity(table, content):
    table[1].put(".hoodie/.tideline/table.json", content)
    open_refused(table[1], CorruptMetadata, r"table\.json")


@pytest.mark.parametrize("sequence", [1, 2])
@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"log_format": 1}'])
def test_broken_log_entry(table, sequence, content):
    table[1].delete(POINTER)  # it repeats the entries
    table[1].put(entry_path(sequence), content)
    open_refused(table[1], CorruptMetadata, f"{sequence:020d}")


def test_log_entry_in_another_place(table):
    table[1].delete(POINTER)
    table[1].put(entry_path(2), table[1].read(entry_path(1)))
    open_refused(table[1], CorruptMetadata, "names sequence 1")


def test_newer_log_format(table):
    table[1].put(entry_path(3), b'{"log_format": 2}')
    open_refused(table[1], UnsupportedTable, "upgrade Tideline")


def test_a_writer_that_meets_a_broken_entry_stops(table):
    opened, storage, _ = table
    storage.put(entry_path(3), b"{")
    for _ in range(2):
        refused(table, rows_of([("c", "p", 1, "x")]), Operation.UPSERT, CorruptMetadata, "cannot be read")
    assert opened.state.sequence == 2


@pytest.mark.parametrize(
    "name",
    [
        "20990101000000000.commit",
        "20990101000000000.commit.requested",
        "20250101000000000.inflight",
        "20250101000000000.compaction.requested",
    ],
)
def test_foreign_instant_freezes(table, name):
    table[1].put(f".hoodie/{name}", b"")
    refused(table, rows_of([("c", "p", 1, "x")]), Operation.UPSERT, TableFrozen, name[:17])
    for service in (schedule_clustering, schedule_clean, run_clustering, run_clean):
        with pytest.raises(TableFrozen):
            service(table[0])


def test_foreign_savepoint_of_own_commit_freezes(table):
    """A savepoint shares its instant with the commit that it protects; cleaning would not know of it."""
    at = table[0].state.completed_writes()[0].instant
    table[1].put(f".hoodie/{at}.savepoint", b"")
    refused(table, rows_of([("c", "p", 1, "x")]), Operation.UPSERT, TableFrozen, "savepoint")


def test_a_copied_table_is_frozen_until_adopted(tmp_path):
    clock = ManualClock()
    storage = LocalStorage(tmp_path / "one")
    create(storage, clock)
    write(open_table(storage, clock), [("a", "p", 1, "x")])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    copy = LocalStorage(tmp_path / "two")
    opened = open_table(copy, clock)
    assert contents(opened) == [("a", "p", 1, "x")]
    refused((opened, copy, clock), rows_of([("c", "p", 1, "x")]), Operation.UPSERT, TableFrozen, "adopt")
    old = opened.uid
    assert opened.adopt().uid != old
    write(opened, [("c", "p", 1, "x")])
    assert len(contents(open_table(copy, clock))) == 2
    assert len(contents(open_table(storage, clock))) == 1


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "flipped"])
def test_broken_base_file(table, damage):
    opened, storage, _ = table
    path = opened.slices()[0].path
    content = storage.read(path)
    middle = len(content) // 4
    broken = {
        "truncated": content[:-10],
        "empty": b"",
        "garbage": b"PAR1" + b"\x00" * 50 + b"PAR1",
        "flipped": content[:10] + bytes(255 - b for b in content[10:middle]) + content[middle:],
    }[damage]
    storage.put(path, broken)
    fresh = open_table(storage, table[2])
    with pytest.raises(CorruptMetadata, match=r"file '?p/"):
        fresh.read()
    with pytest.raises(CorruptMetadata, match=r"file '?p/"):
        write(fresh, [("a", "p", 5, "y")])
    storage.put(path, content)
    assert len(contents(fresh)) == 2
    assert list(fresh.state.pending()) == []


def test_missing_base_file_is_named(table):
    opened, storage, _ = table
    path = opened.slices()[0].path
    storage.delete(path)
    with pytest.raises(TidelineError, match="p/"):
        opened.read()


# --- creation ------------------------------------------------------------------------------------------------------------


REQUESTS = [
    ({"name": "a/b"}, InvalidOption, "table name"),
    ({"name": ""}, InvalidOption, "table name"),
    ({"name": "-x"}, InvalidOption, "table name"),
    ({"key_fields": (), "meta_fields": False}, InvalidOption, "no record key"),
    ({"key_fields": (), "index": BloomIndex()}, InvalidOption, "no record key"),
    ({"key_fields": ("zz",)}, SchemaMismatch, "'zz'"),
    ({"partition_fields": ("zz",)}, SchemaMismatch, "'zz'"),
    ({"ordering_field": "zz"}, SchemaMismatch, "'zz'"),
    ({"schema": pa.schema([])}, SchemaMismatch, "without columns"),
    ({"schema": pa.schema([("id", pa.string()), ("id", pa.string())])}, SchemaMismatch, "once"),
    ({"schema": pa.schema([("id", pa.string()), ("_hoodie_record_key", pa.string())])}, SchemaMismatch, "meta field"),
    ({"schema": pa.schema([("id", pa.float64())]), "partition_fields": (), "ordering_field": ""}, SchemaMismatch, "'id'"),
    ({"schema": SCHEMA.append(pa.field("o", pa.list_(pa.int32()))), "ordering_field": "o"}, SchemaMismatch, "ordering column"),
    ({"schema": SCHEMA.append(pa.field("u", pa.uint64()))}, SchemaMismatch, "'u'"),
    ({"schema": SCHEMA.append(pa.field("not ok", pa.int32()))}, SchemaMismatch, "rename"),
]


@pytest.mark.parametrize(("changes", "error", "words"), REQUESTS)
def test_requests_that_cannot_be_met_write_nothing(changes, error, words):
    request = {
        "name": "t1",
        "schema": SCHEMA,
        "key_fields": ("id",),
        "partition_fields": ("part",),
        "ordering_field": "ts",
        **changes,
    }
    storage = MemoryStorage()
    with pytest.raises(error, match=words):
        create_table(storage.root, TableRequest(**request), ManualClock(), storage)
    assert listing(storage) == {}


def test_a_table_is_not_created_twice(table):
    before = listing(table[1])
    with pytest.raises(TableExists):
        create(table[1], table[2])
    assert listing(table[1]) == before


def test_a_store_that_ignores_the_condition_is_refused():
    class Careless(MemoryStorage):
        def put_if_absent(self, path, data):
            self.put(path, data)

    storage = Careless()
    with pytest.raises(UnsupportedTable, match="second conditional put"):
        create(storage, ManualClock())
    assert listing(storage) == {}


def test_errors_cross_processes(table):

    with pytest.raises(DuplicateKey) as caught:
        write_rows(
            table[0], rows_of([("a", "p", 1, "x")]), Operation.INSERT, options={"hoodie.datasource.insert.dup.policy": "fail"}
        )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.found, str(again)) == (DuplicateKey, caught.value.found, str(caught.value))


def test_a_full_disk_is_a_typed_error(table, monkeypatch):
    _, storage, clock = table

    def full(path, data):
        raise StorageError(f"No space left on device at {path!r}")

    opened = open_table(storage, clock)
    before = listing(storage)
    monkeypatch.setattr(storage, "put_if_absent", full)
    with pytest.raises(TidelineError):
        write_rows(opened, rows_of([("c", "p", 1, "x")]), Operation.UPSERT, options=QUIET, parallelism=1)
    monkeypatch.undo()
    assert listing(storage) == before


def test_an_ordering_field_that_the_rows_do_not_have_is_named():
    """Found by a flipped bit in `hoodie.properties`: it ended in an `IndexError`."""
    table, storage, clock = new_table(type=TableType.MOR)
    for ts in (1, 2):
        write(table, [("a", "p", ts, "x")])
    declare(storage, hoodie__table__precombine__field="t4")
    with pytest.raises(SchemaMismatch, match="no column or field of a struct 't4'"):
        contents(open_table(storage, clock))


@pytest.mark.parametrize(
    "key", ["hoodie.table.type", "hoodie.datasource.write.hive_style_partitioning", "hoodie.table.recordkey.fields"]
)
@pytest.mark.parametrize("flip", ["name", "value"])
def test_a_property_of_the_creation_that_changed_is_named_with_its_value(table, key, flip):
    """Without an entry for its type, a merge-on-read table would be read without its log files."""
    _, storage, clock = table
    properties = dict(read_properties(storage))
    value = properties.pop(key)
    kept = {f"{key}s": value} if flip == "name" else {key: {"true": "false", "false": "true"}.get(value, "MERGE_ON_READ")}
    storage.put(PROPERTIES_PATH, format_properties({**properties, **kept}, "by hand"))
    with pytest.raises(CorruptMetadata) as caught:
        open_table(storage, clock)
    assert key in str(caught.value)
    assert {"hoodie.table.type": "COPY_ON_WRITE"}.get(key, value) in str(caught.value.expected)
    assert "restore" in caught.value.remedy
