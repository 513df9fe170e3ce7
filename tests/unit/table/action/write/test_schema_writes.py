"""Writes that change the schema of a table, alone and against each other; and tables without meta fields."""

import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import (
    SCHEMA,
    History,
    base_stat,
    cluster,
    contents,
    instant,
    new_table,
    open_table,
    rows_of,
    write,
)

from tideline_table.action import run_clean, write_rows
from tideline_table.action.write import run as module
from tideline_table.clock import ManualClock
from tideline_table.coordination import SchemaStep, WriteSet, find_conflict
from tideline_table.errors import SchemaMismatch, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.hudi.properties import PROPERTIES_PATH
from tideline_table.hudi.write_stats import SCHEMA_KEY
from tideline_table.schema import META_FIELDS
from tideline_table.schema.avro import avro_evolved
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, TableType, create_table
from tideline_table.writer import Operation

EVOLVE = {"tideline.write.schema.evolution": "evolve"}
RECONCILE = {"hoodie.datasource.write.reconcile.schema": True}
FILL = {"hoodie.write.set.null.for.missing.columns": True}


@pytest.fixture
def place():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "y")])
    return table, storage, clock


def wide(rows, **columns):
    found = rows_of(rows)
    for name, values in columns.items():
        found = found.append_column(name, values)
    return found


def upsert(table, rows, **options):
    table.clock.advance(1)
    return write_rows(table, rows, Operation.UPSERT, options=options, parallelism=1)


def columns(table, *names):
    return sorted(tuple(row.values()) for row in table.read(["id", *names]).to_pylist())


def test_a_new_column_is_refused_unless_the_writer_asks_for_it(place):
    table, _, _ = place
    rows = wide([("c", "p", 1, "z")], score=pa.array([7], pa.int32()))
    with pytest.raises(SchemaMismatch, match="'score' that the table does not have"):
        upsert(table, rows)
    assert [a.operation for a in table.state.actions.values()] == ["UPSERT"]


def test_a_new_column_is_added_at_the_end(place):
    table, storage, clock = place
    upsert(table, wide([("a", "p", 2, "x2"), ("c", "p", 1, "z")], score=pa.array([7, None], pa.int32())), **EVOLVE)
    assert table.schema.names == ["id", "part", "ts", "v", "score"]
    assert columns(table, "score") == [("a", 7), ("b", None), ("c", None)]
    again = open_table(storage, clock, "other")
    assert again.schema == table.schema
    slice_ = max(table.state.latest_slices(), key=lambda s: s.base_instant)
    with storage.open_input(slice_.path) as source:
        footer = json.loads(pq.ParquetFile(source).metadata.metadata[b"parquet.avro.schema"])
    assert [f["name"] for f in footer["fields"]] == [*META_FIELDS, *table.schema.names]
    write(table, [("d", "q", 1, "w")], **FILL)
    assert table.schema.names[-1] == "score"
    assert columns(table, "score") == [("a", 7), ("b", None), ("c", None), ("d", None)]


def test_time_travel_shows_the_schema_of_its_time(place):
    table, storage, clock = place
    first = table.state.last_instant
    upsert(table, wide([("a", "p", 2, "x2")], score=pa.array([7], pa.int32())), **EVOLVE)
    second = table.state.last_instant
    upsert(table, wide([("b", "q", 2, "y2")], score=pa.array([2**40], pa.int64())), **EVOLVE)
    for found in (table, open_table(storage, clock)):
        assert found.read(as_of=first).column_names == [*META_FIELDS, "id", "part", "ts", "v"]
        assert found.read(["score"], as_of=second).schema.field("score").type == pa.int32()
        assert found.look_up(["a"], as_of=first).column_names == [*META_FIELDS, "id", "part", "ts", "v"]
        assert found.read().schema.field("score").type == found.schema.field("score").type == pa.int64()
        assert found.read(as_of="20200101000000000").column_names == [*META_FIELDS, "id", "part", "ts", "v"]
        with pytest.raises(SchemaMismatch, match="'score' is not in the table"):
            found.read(["score"], as_of=first)


def test_types_widen_and_older_files_are_read_in_the_new_type(place):
    table, _, _ = place
    upsert(table, wide([("a", "p", 2, "x")], n=pa.array([1], pa.int32())), **EVOLVE)
    upsert(table, wide([("c", "q", 2, "x")], n=pa.array([0.5])), **EVOLVE)
    assert table.schema.field("n").type == pa.float64()
    assert columns(table, "n") == [("a", 1.0), ("b", None), ("c", 0.5)]
    upsert(table, wide([("e", "p", 2, "x")], n=pa.array([2], pa.int32())), **EVOLVE)
    assert columns(table, "n") == [("a", 1.0), ("b", None), ("c", 0.5), ("e", 2.0)]


def test_members_of_structs_are_added(place):
    table, _, _ = place
    narrow = pa.array([[{"p": 1}]], pa.list_(pa.struct([("p", pa.int32())])))
    upsert(table, wide([("a", "p", 2, "x")], s=narrow), **EVOLVE)
    upsert(table, wide([("b", "q", 2, "x")], s=pa.array([[{"q": "n", "p": 2}]])), **EVOLVE)
    assert columns(table, "s") == [("a", [{"p": 1, "q": None}]), ("b", [{"p": 2, "q": "n"}])]


def test_keys_partitions_and_ordering_keep_their_types(place):
    table, _, _ = place
    rows = rows_of([("c", "p", 3, "z")]).set_column(2, "ts", pa.array([3.0]))
    upsert(table, rows, **EVOLVE)
    assert table.schema.field("ts").type == pa.int64()


def test_reconciling_adds_columns_and_keeps_types(place):
    table, _, _ = place
    upsert(table, wide([("a", "p", 2, "x")], n=pa.array([1], pa.int32())), **EVOLVE)
    rows = wide([("b", "q", 2, "x")], n=pa.array([5], pa.int64()), m=pa.array([True])).drop_columns(["v"])
    upsert(table, rows, **RECONCILE)
    assert (table.schema.field("n").type, table.schema.names[-1]) == (pa.int32(), "m")
    assert columns(table, "v", "n", "m") == [("a", "x", 1, None), ("b", None, 5, True)]


@pytest.mark.parametrize("more", [{}, EVOLVE])
def test_missing_columns_are_refused_unless_the_writer_says_that_they_become_null(place, more):
    table, _, _ = place
    rows = rows_of([("a", "p", 2, "x")]).drop_columns(["v"])
    with pytest.raises(SchemaMismatch, match=r"'v'.*set\.null\.for\.missing"):
        upsert(table, rows, **more)
    assert ("a", "x") in columns(table, "v")
    upsert(table, rows, **FILL, **more)
    assert ("a", None) in columns(table, "v")


@pytest.mark.parametrize("more", [{}, EVOLVE])
def test_missing_members_of_structs_are_refused_as_columns_are(place, more):
    table, _, _ = place
    upsert(table, wide([("a", "p", 2, "x")], s=pa.array([{"p": 1, "q": 2}])), **EVOLVE)
    rows = wide([("a", "p", 3, "x")], s=pa.array([{"p": 5}]))
    with pytest.raises(SchemaMismatch, match=r"'s\.q'.*set\.null\.for\.missing"):
        upsert(table, rows, **more)
    upsert(table, rows, **FILL, **more)
    assert ("a", {"p": 5, "q": None}) in columns(table, "s")


@pytest.mark.parametrize("operation", [o for o in Operation if o not in (Operation.DELETE, Operation.DELETE_PARTITION)])
@pytest.mark.parametrize("options", [{}, FILL, EVOLVE | FILL, RECONCILE], ids=["refuse", "fill", "evolve", "reconcile"])
@pytest.mark.parametrize(("name", "role"), [("id", "key"), ("part", "partition"), ("ts", "ordering")])
def test_key_partition_and_ordering_columns_are_never_filled(place, operation, options, name, role):
    table, _, _ = place
    before = contents(table)
    rows = wide([("a", "p", 2, "x2")], _hoodie_is_deleted=pa.array([True])).drop_columns([name])
    with pytest.raises(SchemaMismatch, match=f"rows without {role} column '{name}'"):
        write_rows(table, rows, operation, options=options)
    assert contents(table) == before


def test_a_member_of_a_struct_that_is_a_partition_or_ordering_field_is_never_filled():
    schema = pa.schema([("id", pa.string()), ("at", pa.struct([("part", pa.string()), ("ts", pa.int64()), ("v", pa.string())]))])
    storage, clock = MemoryStorage(), ManualClock()
    create_table(storage.root, TableRequest("t", schema, ("id",), ("at.part",), "at.ts"), clock, storage)
    table = open_table(storage, clock)
    row = {"part": "p", "ts": 1, "v": "x"}
    write_rows(table, pa.table({"id": ["a"], "at": [row]}, schema), Operation.UPSERT)
    for name in ("part", "ts"):
        less = pa.table({"id": ["a"], "at": [{key: value for key, value in row.items() if key != name}]})
        with pytest.raises(SchemaMismatch, match=f"column 'at.{name}'"):
            write_rows(table, less, Operation.UPSERT, options=FILL)
    write_rows(table, pa.table({"id": ["a"], "at": [{"part": "p", "ts": 2}]}), Operation.UPSERT, options=FILL)
    assert table.read(["id", "at"]).to_pylist() == [{"id": "a", "at": {"part": "p", "ts": 2, "v": None}}]


def test_a_new_column_needs_a_type(place):
    table, _, _ = place
    with pytest.raises(SchemaMismatch, match="'n' without a type"):
        upsert(table, wide([("a", "p", 2, "x")], n=pa.nulls(1)), **EVOLVE)


def test_deletions_and_deletion_marks_change_nothing(place):
    table, _, _ = place
    upsert(table, wide([("a", "p", 2, "x")], _hoodie_is_deleted=pa.array([True])), **EVOLVE)
    write(table, [("b", "q", 9, "x")], Operation.DELETE, **EVOLVE)
    assert table.schema.names == ["id", "part", "ts", "v"]
    assert table.read().num_rows == 0


def evolve_meanwhile(monkeypatch, other, rows):
    """The other writer commits `rows` right after the first attempt of whichever process writes next was routed."""

    inner, done = module.route_input, []

    def route(*arguments):
        if not done:
            done.append(True)
            upsert(other, rows, **EVOLVE)
        return inner(*arguments)

    monkeypatch.setattr(module, "route_input", route)


@pytest.mark.parametrize("mine", ["other column", "same column", "none"])
def test_the_later_of_two_changes_takes_the_earlier_along(place, monkeypatch, mine):
    table, storage, clock = place
    other = open_table(storage, clock, "other")
    evolve_meanwhile(monkeypatch, other, wide([("n1", "r", 2, "x")], one=pa.array([1], pa.int32())))
    added = {"other column": {"two": pa.array(["2"])}, "same column": {"one": pa.array([5], pa.int32())}, "none": {}}[mine]
    committed = upsert(table, wide([("n2", "s", 2, "x")], **added), **EVOLVE, **FILL)
    # Changing the table alike is no conflict.
    assert committed.attempts == (1 if mine == "same column" else 2)
    assert table.schema.names == ["id", "part", "ts", "v", "one", *(["two"] if mine == "other column" else [])]
    expected = {"other column": None, "same column": 5, "none": None}[mine]
    assert [row for row in columns(table, "one") if row[0].startswith("n")] == [("n1", 1), ("n2", expected)]


def test_clustering_publishes_the_schema_of_now(place, monkeypatch):
    table, storage, clock = place
    write(table, [("c", "p", 1, "z")], Operation.BULK_INSERT)
    assert schedule_clustering(table) is not None
    other = open_table(storage, clock, "other")
    upsert(other, wide([("n", "r", 2, "x")], one=pa.array([1], pa.int32())), **EVOLVE)
    committed = cluster(table)
    document = json.loads(storage.read(f".hoodie/{committed.instant}.replacecommit"))
    assert "one" in document["extraMetadata"][SCHEMA_KEY]
    assert table.schema.names[-1] == "one"
    assert columns(table, "one") == [("a", None), ("b", None), ("c", None), ("n", 1)]


# --- the decision --------------------------------------------------------------------------------------------------------------

G = FileGroupId("p", "g-0")
OLD, NEW, OWN = ('{"schema":1}', '{"schema":2}', '{"schema":3}')


@pytest.mark.parametrize(
    ("current", "step", "conflicts"),
    [
        (OLD, SchemaStep(OLD, OLD), False),
        (OLD, SchemaStep(OLD, OWN), False),
        (NEW, SchemaStep(OLD, OWN), True),
        (NEW, SchemaStep(OLD, OLD), True),
        (OWN, SchemaStep(OLD, OWN), False),
        ("", SchemaStep(OLD, OWN), False),
        (NEW, None, False),
    ],
)
def test_a_change_of_the_schema_is_a_conflict(current, step, conflicts):
    history = History()
    history.begin(instant(10))
    history.commit(instant(5), base_stat("g-0", instant(5)))
    history.state.schema_json = current
    own = WriteSet(instant(10), {G: SliceVersion(instant(5), 0)}, schema=step)
    found = find_conflict(own, history.state, ())
    assert (found is not None) == conflicts
    if found is not None:
        assert "schema of the table changed" in found.found
        assert found.with_instant == instant(5)


# --- without meta fields --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare():
    table, storage, clock = new_table(meta_fields=False)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "y")], Operation.BULK_INSERT)
    return table, storage, clock


@pytest.mark.parametrize("kind", TableType)
@pytest.mark.parametrize("partitions", [(), ("part",)])
@pytest.mark.parametrize("keys", [("id",), ("id", "ts")])
def test_look_ups_derive_the_keys_of_rows_without_meta_fields(kind, partitions, keys):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create_table(storage.root, TableRequest("t1", SCHEMA, keys, partitions, type=kind, meta_fields=False), clock, storage)
    table = open_table(storage, clock)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "y"), ("c", "p", 1, "z")], Operation.BULK_INSERT)
    write(table, [("d", "p", 1, "u")], Operation.INSERT)

    def key(name):
        return name if len(keys) == 1 else f"id:{name},ts:1"

    assert table.look_up([key("99")], ["id"]).num_rows == 0
    assert table.look_up([key("b"), key("d"), key("e")], ["v"]).sort_by("v").to_pylist() == [{"v": "u"}, {"v": "y"}]
    assert table.look_up([key("a"), key("c")], ["id"], where="v = 'z'").to_pylist() == [{"id": "c"}]


def test_rows_are_added_without_meta_fields(bare):
    table, storage, _ = bare
    assert b"hoodie.populate.meta.fields=false" in storage.read(PROPERTIES_PATH)
    write(table, [("a", "p", 2, "again")], Operation.INSERT, **{"hoodie.parquet.small.file.limit": 10**9})
    assert contents(table) == [("a", "p", 1, "x"), ("a", "p", 2, "again"), ("b", "q", 1, "y")]
    found = table.read()
    for name in META_FIELDS:
        assert found[name].null_count == 3
    (slice_,) = [s for s in table.state.latest_slices() if s.group.partition_path == "p"]
    with storage.open_input(slice_.path) as source:
        stored = pq.ParquetFile(source)
        assert stored.schema_arrow.names == [*META_FIELDS, *table.schema.names]
        assert stored.metadata.num_rows == 2
        assert b"hoodie_min_record_key" not in stored.metadata.metadata


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        (Operation.UPSERT, {}),
        (Operation.DELETE, {}),
        (Operation.INSERT, {"hoodie.datasource.insert.dup.policy": "drop"}),
        (Operation.INSERT, {"hoodie.datasource.insert.dup.policy": "fail"}),
    ],
)
def test_rows_without_keys_are_not_found_again(bare, operation, options):
    table, _, _ = bare
    with pytest.raises(UnsupportedTable, match="no meta fields"):
        write(table, [("a", "p", 1, "x")], operation, **options)


@pytest.mark.parametrize("kind", TableType)
def test_rows_that_were_added_without_meta_fields_are_found_by_their_files(kind):
    table, _, _ = new_table(meta_fields=False, type=kind)
    into_one_file, apart = {"hoodie.parquet.small.file.limit": 10**9}, {"hoodie.parquet.small.file.limit": 0}
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")], Operation.INSERT)
    start = table.refresh().sequence
    # The same row once more, in a new version of its file; one beside it in a file of its own; one in another partition.
    write(table, [("a", "p", 1, "x"), ("c", "p", 2, "y")], Operation.INSERT, **into_one_file)
    middle = table.refresh().sequence
    write(table, [("a", "p", 1, "x"), ("d", "r", 3, "z")], Operation.INSERT, **apart)
    added = [("a", "p", 1, "x"), ("a", "p", 1, "x"), ("c", "p", 2, "y"), ("d", "r", 3, "z")]

    def rows(since, until="", **query):
        names = ["id", "part", "ts", "v"]
        return sorted(tuple(row[n] for n in names) for row in table.incremental(since, until).read(names, **query).to_pylist())

    for _ in range(2):
        assert rows(start) == added
        assert rows(start, middle) == [("a", "p", 1, "x"), ("c", "p", 2, "y")]
        assert rows(middle) == [("a", "p", 1, "x"), ("d", "r", 3, "z")]
        assert rows(start, where="v <> 'x'") == added[2:]
        assert table.incremental(start).read([]).num_rows == 4
        assert len(rows("")) == 6
        assert rows(table.state.sequence) == []
        cluster(table, schedule_clustering(table))  # which moves rows and adds none
    before = table.refresh().sequence
    write(table, [("e", "p", 9, "new")], Operation.INSERT_OVERWRITE)
    assert rows(before) == [("e", "p", 9, "new")]
    assert rows(start) == [("d", "r", 3, "z"), ("e", "p", 9, "new")]
    with pytest.raises(UnsupportedTable, match="no meta fields"):
        table.changes(start)
    with pytest.raises(TypeError, match="different processes"):
        pickle.dumps(table.incremental(start))


@pytest.mark.parametrize("kind", TableType)
def test_files_without_meta_fields_are_clustered(kind):
    table, _, _ = new_table(meta_fields=False, type=kind)
    # Not to logs, whose rows would have keys.
    small = {"hoodie.parquet.small.file.limit": 0, "tideline.insert.to.log": True}
    for number in range(3):
        write(table, [("a", "p", 3 - number, "x")], Operation.INSERT, **small)
    assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "ts"}) is not None
    entry = table.timeline.log.read(cluster(table).sequence)
    # There are no keys to compare.
    assert json.loads(entry.body.metadata.extra["tideline.receipt"])["verify"] == "full"
    found = table.read()
    assert found["ts"].to_pylist() == [1, 2, 3]
    assert all(found[name].null_count == 3 for name in META_FIELDS)
    assert len(table.slices()) == 1


def test_what_was_rewritten_is_cleaned(bare):
    table, _, _ = bare
    keep = {"hoodie.cleaner.commits.retained": 1}
    for number in range(3):
        write(table, [(f"k{number}", "p", 1, "x")], Operation.INSERT, **{"hoodie.parquet.small.file.limit": 10**9})
    assert schedule_clean(table, keep) is not None
    assert run_clean(table)
    assert len(contents(table)) == 5


def test_an_evolved_text_is_what_the_table_says(place):
    table, _, _ = place
    before = table.schema_json
    upsert(table, wide([("a", "p", 2, "x")], n=pa.array([1], pa.int8())), **EVOLVE)
    assert table.schema_json == avro_evolved(before, pa.schema([*table.schema]), "t1")
    assert table.schema.field("n").type == pa.int32()


@pytest.mark.usefixtures("unrecorded_files")
def test_what_a_writer_did_to_its_rows_is_read_where_it_says_so(place):
    table, storage, clock = place
    slice_ = table.state.latest_slices()[0]
    with storage.open_input(slice_.path) as source:
        stored = pq.read_table(source)
    said = stored.add_column(5, "_hoodie_operation", pa.array(["U"]))
    storage.delete(slice_.path)
    with storage.open_output(slice_.path) as sink:
        pq.write_table(said, sink)
    reader = open_table(storage, clock, "reader", **{"hoodie.allow.operation.metadata.field": True})
    assert reader.read().column_names[:7] == [*META_FIELDS, "_hoodie_operation", "id"]
    assert columns(reader, "_hoodie_operation") == [("a", "U"), ("b", None)]
    assert "_hoodie_operation" not in table.read().column_names
    write_rows(table, reader.read(), Operation.UPSERT, options=EVOLVE, parallelism=1)
    assert table.schema.names == ["id", "part", "ts", "v"]
