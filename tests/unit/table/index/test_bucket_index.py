"""Tables with a bucket index: where rows go, what two writers of one bucket do, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.tables import SCHEMA, Row, beside, cluster, compact, contents, create, new_table, open_table, rows_of, write

from tideline_table.action import (
    NotDue,
    Rules,
    TableService,
    Trigger,
    decide,
    delete_partitions,
    run_clustering,
    run_compaction,
    write_rows,
)
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.plan import checked_order, due_plan
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask, clustering_tasks
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.coordination.shared.hudi_rules import check_buckets
from tideline_table.errors import (
    DuplicateKey,
    InvalidOption,
    InvalidRecord,
    TableExists,
    TidelineError,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import PROPERTIES_PATH, format_properties, read_properties
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.log.entry import IDENTITY_PATH
from tideline_table.log.state import TableState
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

KEYS = [f"k{n:03}" for n in range(60)]
TO_LOG = {"tideline.insert.to.log": True}
POLICY = "hoodie.datasource.insert.dup.policy"
NUMBER = "hoodie.bucket.index.num.buckets"
FIELDS = "hoodie.bucket.index.hash.field"


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest) -> Table:
    found, _, _ = new_table(type=request.param, index=NewBuckets(4))
    return found


def rows(keys: Iterable[str], ts: int, v: str, partition: str = "p") -> list[Row]:
    return [(key, partition, ts, v) for key in keys]


def check_places(table: Table) -> None:
    """Every row is in the file group of its bucket, every bucket has one file group, and no key is there twice."""
    index = table.definition.buckets
    assert index is not None
    by_partition: dict[str, list[FileSlice]] = {}
    for file_slice in table.slices():
        by_partition.setdefault(file_slice.group.partition_path, []).append(file_slice)
    for slices in by_partition.values():
        index.group_of_each(slices)
    found = table.read()
    names = [name.split("_")[0] for name in found.column("_hoodie_file_name").to_pylist()]
    assert [bucket_of_file_id(name) for name in names] == index.buckets(found.column("_hoodie_record_key")).tolist()
    identities = list(zip(found.column("part").to_pylist(), found.column("_hoodie_record_key").to_pylist(), strict=True))
    assert len(set(identities)) == len(identities)


def test_upserts_and_deletes_find_rows_by_their_buckets(table: Table) -> None:
    write(table, rows(KEYS[:40], 1, "a") + rows(KEYS[:10], 1, "a", "q"))
    check_places(table)
    assert {bucket_of_file_id(s.group.file_id) for s in table.slices() if s.group.partition_path == "p"} == {0, 1, 2, 3}
    write(table, rows(KEYS[20:60], 2, "b"))
    write(table, rows(KEYS[30:35], 1, "older"))
    write(table, rows([*KEYS[50:60], "unknown"], 0, ""), Operation.DELETE)
    check_places(table)
    expected = rows(KEYS[:20], 1, "a") + rows(KEYS[20:50], 2, "b") + rows(KEYS[:10], 1, "a", "q")
    assert contents(table) == sorted(expected, key=repr)
    assert contents(open_table(table.storage, table.clock)) == sorted(expected, key=repr)


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
def test_inserts_fill_buckets_and_keep_each_key_once(table: Table, operation: Operation) -> None:
    first = write(table, [*rows(KEYS[:30], 1, "a"), ("k000", "p", 3, "twice")], operation)
    again = write(table, rows(KEYS[20:40], 2, "b"), operation)
    check_places(table)
    assert contents(table) == [("k000", "p", 3, "twice"), *rows(KEYS[1:20], 1, "a"), *rows(KEYS[20:40], 2, "b")]
    named = [table.timeline.log.read(done.sequence).operation for done in (first, again)]
    assert named == [operation.hudi_name] * 2


def test_bulk_insert_sorts_the_rows_of_a_bucket() -> None:
    table, _, _ = new_table(index=NewBuckets(2))
    sort = {"hoodie.bulkinsert.user.defined.partitioner.sort.columns": "v"}
    write(table, [(key, "p", 1, f"v{99 - n}") for n, key in enumerate(KEYS)], Operation.BULK_INSERT, **sort)
    check_places(table)
    for file_slice in table.slices():
        own = table.read(where=pa.compute.field("_hoodie_file_name") == file_slice.base_file).column("v").to_pylist()
        assert own == sorted(own)
        assert len(own) > 1


def test_duplicate_policies_see_what_the_buckets_hold(table: Table) -> None:
    write(table, rows(KEYS[:10], 1, "a"))
    write(table, rows(KEYS[:2], 0, ""), Operation.DELETE)
    with pytest.raises(DuplicateKey):
        write(table, rows(KEYS[5:12], 2, "b"), Operation.INSERT, **{POLICY: "fail"})
    write(table, rows(KEYS[:12], 2, "b"), Operation.INSERT, **{POLICY: "drop"})
    assert write(table, rows(KEYS[:12], 3, "c"), Operation.INSERT, **{POLICY: "drop"}).stats == ()
    check_places(table)
    assert contents(table) == rows(KEYS[:2], 2, "b") + rows(KEYS[2:10], 1, "a") + rows(KEYS[10:12], 2, "b")


def test_repeated_keys_that_are_not_combined_are_refused(table: Table) -> None:
    for operation in (Operation.UPSERT, Operation.INSERT, Operation.INSERT_OVERWRITE):
        with pytest.raises(DuplicateKey):
            write(table, rows(["a", "a"], 1, "x"), operation, **{"hoodie.combine.before.upsert": False})
    assert table.refresh().latest_slices() == []


@pytest.mark.parametrize("operation", [Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE])
def test_overwrites_open_the_buckets_anew(table: Table, operation: Operation) -> None:
    write(table, rows(KEYS[:20], 1, "a") + rows(KEYS[:3], 1, "a", "q"))
    before = {s.group.file_id for s in table.slices()}
    write(table, [*rows(KEYS[10:15], 0, "b"), ("k010", "p", 1, "twice")], operation)
    check_places(table)
    kept = rows(KEYS[:3], 1, "a", "q") if operation is Operation.INSERT_OVERWRITE else []
    assert contents(table) == sorted([("k010", "p", 1, "twice"), *rows(KEYS[11:15], 0, "b"), *kept], key=repr)
    assert before.isdisjoint(s.group.file_id for s in table.slices() if s.group.partition_path == "p")
    write(table, rows(KEYS[:20], 2, "c"))
    check_places(table)
    delete_partitions(table, ["p"])
    write(table, rows(KEYS[:5], 3, "d"))
    check_places(table)


@pytest.mark.parametrize("options", [{}, TO_LOG])
def test_merge_on_read_appends_new_keys_to_existing_groups(options: dict[str, Any]) -> None:
    table, _, _ = new_table(type=TableType.MOR, index=NewBuckets(3))
    write(table, rows(KEYS[:20], 1, "a"), **options)
    assert {(bool(s.base_file), len(s.log_files)) for s in table.slices()} == {(not options, 1 if options else 0)}
    write(table, rows(KEYS[10:30], 2, "b"), **options)
    assert {len(s.log_files) for s in table.slices()} == {2 if options else 1}
    check_places(table)
    # Keys outside the key range of the base file are in log files only; a point look-up must look there.
    assert table.look_up(["k029", "k000"], ["id", "v"]).to_pylist() == [{"id": "k000", "v": "a"}, {"id": "k029", "v": "b"}]
    again = open_table(table.storage, table.clock)
    assert again.look_up(["k029"], ["v"]).to_pylist() == [{"v": "b"}]
    with pytest.raises(DuplicateKey):  # of a key that only a log file has, where nobody counted it as inserted
        write(again, rows(["k029"], 3, "c"), Operation.INSERT, **{POLICY: "fail"})
    before = contents(table)
    compact(table)
    assert all(s.base_file and not s.log_files for s in table.slices())
    assert contents(table) == before == rows(KEYS[:10], 1, "a") + rows(KEYS[10:30], 2, "b")
    check_places(table)
    write(table, rows(KEYS[25:40], 3, "c"), **options)
    check_places(table)


def test_new_keys_beside_a_pending_compaction_join_the_group_of_their_bucket() -> None:
    table, _, _ = new_table(type=TableType.MOR, index=NewBuckets(2))
    write(table, rows(KEYS[:10], 1, "a"))
    write(table, rows(KEYS[5:12], 2, "b"))
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    write(table, rows(KEYS[8:20], 3, "c"))
    check_places(table)
    before = contents(table)
    run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
    assert contents(table) == before == rows(KEYS[:5], 1, "a") + rows(KEYS[5:8], 2, "b") + rows(KEYS[8:20], 3, "c")
    check_places(table)


def test_tagging_reads_no_data_file(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    write(table, rows(KEYS[:20], 1, "a"))
    fresh, read = open_table(table.storage, table.clock), []

    def refuse(*_: object) -> None:
        raise AssertionError("tagging looked up keys")

    monkeypatch.setattr(fresh.index, "locate", refuse)
    if table.definition.has_logs:
        opened = table.storage.open_input
        monkeypatch.setattr(fresh.storage, "open_input", lambda path: read.append(path) or opened(path))
    write(fresh, rows(KEYS[10:30], 2, "b"))
    write(fresh, rows(KEYS[:1], 0, ""), Operation.DELETE)
    assert not [path for path in read if path.endswith(".parquet")]


@pytest.mark.parametrize("options", [{}, TO_LOG])
def test_two_first_writers_of_a_bucket_make_one_group(
    table: Table, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_table(table.storage, table.clock, "other")
    beside(monkeypatch, lambda: write(other, rows(KEYS[:20], 1, "theirs"), **options))
    conflicts: list[str] = []
    table.clock.advance(1)
    committed = write_rows(
        table,
        rows_of(rows(KEYS[20:40], 1, "mine")),
        Operation.UPSERT,
        options=options,
        parallelism=1,
        on_conflict=lambda error, _: conflicts.append(str(error)),
    )
    assert committed.attempts == 2
    assert "got its file group" in conflicts[0]
    check_places(table)
    assert len(table.slices()) == 4
    assert contents(table) == rows(KEYS[:20], 1, "theirs") + rows(KEYS[20:40], 1, "mine")


def test_first_writers_of_other_buckets_do_not_meet(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index = table.definition.buckets
    assert index is not None
    numbers = index.buckets(pa.array(KEYS))
    other = open_table(table.storage, table.clock, "other")
    theirs = [key for key, bucket in zip(KEYS, numbers, strict=True) if bucket < 2]
    beside(monkeypatch, lambda: write(other, [*rows(theirs, 1, "theirs"), *rows(KEYS, 1, "theirs", "q")]))
    mine = [key for key in KEYS if key not in theirs]
    assert write(table, rows(mine, 1, "mine")).attempts == 1
    check_places(table)
    assert len(table.read()) == 2 * len(KEYS)


def test_an_overwrite_beside_a_first_writer(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_table(table.storage, table.clock, "other")
    beside(monkeypatch, lambda: write(other, rows(KEYS[:20], 1, "theirs")))
    write(table, rows(KEYS[10:30], 1, "mine"), Operation.INSERT_OVERWRITE)
    check_places(table)
    assert contents(table) == rows(KEYS[10:30], 1, "mine")


def test_a_first_writer_beside_an_overwrite(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_table(table.storage, table.clock, "other")
    beside(monkeypatch, lambda: write(other, rows(KEYS[:20], 1, "theirs"), Operation.INSERT_OVERWRITE))
    assert write(table, rows(KEYS[10:30], 2, "mine")).attempts == 2
    check_places(table)
    assert contents(table) == rows(KEYS[:10], 1, "theirs") + rows(KEYS[10:30], 2, "mine")


def test_two_writers_append_new_keys_to_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = new_table(type=TableType.MOR, index=NewBuckets(1))
    write(table, rows(["a"], 1, "x"))
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: write(other, rows(["b"], 1, "theirs")))
    assert write(table, rows(["c"], 1, "mine")).attempts == 1
    beside(monkeypatch, lambda: write(other, rows(["d"], 1, "theirs")))
    assert write(table, rows(["d"], 2, "mine")).attempts == 2
    assert contents(table) == [("a", "p", 1, "x"), ("b", "p", 1, "theirs"), ("c", "p", 1, "mine"), ("d", "p", 2, "mine")]
    check_places(table)


def test_composite_keys_go_by_their_hash_fields(table: Table) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    request = TableRequest("t", SCHEMA, ("id", "v"), ("part",), "ts", table.definition.type, index=NewBuckets(4, ("id",)))
    create_table(storage.root, request, clock, storage)
    composite = open_table(storage, clock)
    write(composite, [(key, "p", 1, v) for key in KEYS for v in "xyz"])
    write(composite, [(key, "p", 2, "x") for key in KEYS[:5]])
    check_places(composite)
    assert len(composite.read()) == 3 * len(KEYS)
    by_key: dict[str, set[str]] = {}
    for row in composite.read(["id", "_hoodie_file_name"]).to_pylist():
        by_key.setdefault(row["id"], set()).add(row["_hoodie_file_name"].split("_")[0])
    assert {len(names) for names in by_key.values()} == {1}


def test_a_null_hash_field_is_refused_and_can_be_deleted() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create_table(storage.root, TableRequest("t", SCHEMA, ("id", "v"), (), "ts", index=NewBuckets(4, ("v",))), clock, storage)
    table = open_table(storage, clock)
    null: list[Any] = [("a", "p", 1, None)]
    with pytest.raises(InvalidRecord, match="null hash field in the record key 'id:a,v:__null__'"):
        write(table, null)
    write(table, [("a", "p", 1, "x")])
    write(table, null, Operation.DELETE)
    assert contents(table) == [("a", "p", 1, "x")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"hoodie.index.type": "SIMPLE"},
        {"hoodie.index.type": "GLOBAL_BLOOM"},
        {NUMBER: 8},
        {FIELDS: "v"},
        {FIELDS: "id,v"},
    ],
)
def test_a_writer_with_other_settings_is_refused(table: Table, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="for a table with a bucket index; expected 4 bucket\\(s\\) by id"):
        write(table, rows(KEYS, 1, "x"), **wrong)
    assert table.refresh().latest_slices() == []
    write(table, rows(KEYS, 1, "x"), **{"hoodie.index.type": "BUCKET", NUMBER: 4, FIELDS: "id"})
    check_places(table)


def test_the_bucket_index_cannot_be_chosen_by_a_writer() -> None:
    table, _, _ = new_table()
    with pytest.raises(InvalidOption, match="for a table without a bucket index"):
        write(table, rows(KEYS, 1, "x"), **{"hoodie.index.type": "BUCKET"})


@pytest.mark.parametrize(
    "changed",
    [{NUMBER: "8"}, {NUMBER: "2"}, {NUMBER: "0"}, {NUMBER: ""}, {"hoodie.index.type": "SIMPLE"}, {"hoodie.index.bucket.engine": "CONSISTENT_HASHING"}],
)  # fmt: skip
def test_changed_properties_are_refused_by_open_and_new_writers(table: Table, changed: dict[str, str]) -> None:
    write(table, rows(KEYS[:20], 1, "a"))
    table.clock.advance(1)
    properties = {**read_properties(table.storage), **changed}
    table.storage.put(PROPERTIES_PATH, format_properties(properties, "changed"))
    for writer in (table, open_table(table.storage, table.clock)):
        with pytest.raises(UnsupportedTable, match="bucket"):
            write(writer, rows(KEYS[:20], 2, "b"))
        assert contents(writer) == rows(KEYS[:20], 1, "a")
    with pytest.raises(UnsupportedTable, match=r"no bucket index that a query of .* can rely on"):
        open_table(table.storage, table.clock).snapshot().sampled([0])


def test_an_unfinished_creation_keeps_its_index() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, index=NewBuckets(4))
    storage.delete(PROPERTIES_PATH)
    with pytest.raises(TableExists, match="the beginning of a table with 4 bucket"):
        create(storage, clock, index=NewBuckets(8))
    create(storage, clock, index=NewBuckets(4))
    assert json.loads(storage.read(IDENTITY_PATH))["index"] == "4 bucket(s) by id"
    table = open_table(storage, clock)
    table.adopt(in_place=True)
    write(table, rows(KEYS, 1, "a"))
    check_places(table)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"index": NewBuckets(0)}, "0 buckets"),
        ({"index": NewBuckets(100_000)}, "100000 buckets"),
        ({"index": NewBuckets(4, ("v",))}, "hash fields v; expected each once, and columns of the record key"),
        ({"index": NewBuckets(fields=("id",))}, "without a number of buckets"),
        ({"index": NewBuckets(4), "meta_fields": False}, "without meta fields"),
    ],
)
def test_impossible_requests_create_nothing(wrong: dict[str, Any], match: str) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with pytest.raises(InvalidOption, match=match):
        create(storage, clock, **wrong)
    assert list(storage.list_objects("")) == []


SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "v"}


def test_clustering_sorts_the_rows_of_each_bucket_and_moves_none(table: Table) -> None:
    write(table, [(key, "p", 1, f"v{(7 * n) % 60:02}") for n, key in enumerate(KEYS)])
    write(table, [(key, "p", 2, f"w{n % 5}") for n, key in enumerate(KEYS[:20])])
    before = contents(table)
    groups = {bucket_of_file_id(s.group.file_id): s.group for s in table.slices()}
    assert schedule_clustering(table) is None, "without sort columns there is nothing to gain"
    assert schedule_clustering(table, SORTED) is not None
    done = cluster(table)
    assert done is not None
    assert len(done.stats) == 4
    assert contents(table) == before
    check_places(table)
    found = {bucket_of_file_id(s.group.file_id): s for s in table.slices()}
    assert found.keys() == groups.keys()
    assert not [b for b in found if found[b].group == groups[b] or found[b].log_files]
    for file_slice in found.values():
        values = replace(table.snapshot(), slices=(file_slice,)).read(["v"])["v"].to_pylist()
        assert values == sorted(values)
    assert schedule_clustering(table, SORTED) is None, "nothing changed since"
    write(table, rows(KEYS[:1], 3, "new"))
    assert schedule_clustering(table, SORTED) is not None
    again = cluster(table)
    assert again is not None
    assert len(again.stats) == 1, "only the bucket that changed"
    write(table, rows(KEYS, 9, "last"))
    check_places(table)
    assert table.read().num_rows == 60


def test_a_planner_waits_for_its_number_of_writes_and_keeps_its_budget(table: Table) -> None:
    def why(**trigger: Any) -> str | None:
        found = decide(table, TableService.CLUSTERING, Rules(trigger=Trigger(2, **trigger), options=SORTED))
        return found.reason if isinstance(found, NotDue) else None

    write(table, [(key, "p", 1, "v") for key in KEYS])
    assert why(min_commits=2) == "1 of 2 commits since the last plan"
    write(table, rows(KEYS[:1], 2, "w"))
    assert why(min_commits=2) is None
    assert why(min_commits=2, max_bytes=1) == "no changed bucket has 1 bytes or less"


def test_a_writer_beside_a_clustering_of_its_bucket_goes_first(table: Table) -> None:
    write(table, rows(KEYS, 1, "a"))
    other = open_table(table.storage, table.clock, "w2")
    assert schedule_clustering(table, SORTED) is not None

    def beside_it(tasks: Sequence[ClusteringTask]) -> Sequence[ClusteredGroup]:
        done = [cluster_group(task, table.storage) for task in tasks]
        write(other, rows(KEYS[:1], 2, "b"))
        return done

    with pytest.raises(WriteConflict):
        run_clustering(table, run=beside_it)
    table.refresh()
    check_places(table)
    assert sorted(table.read()["v"].to_pylist()) == ["a"] * 59 + ["b"]


def test_a_plan_that_merges_buckets_is_refused(table: Table) -> None:
    write(table, rows(KEYS, 1, "a"))
    slices = table.slices()
    order = checked_order(table.options, table.schema)
    due = due_plan(table.state, table.storage.root, table.options, [slices[:2]], "by hand", order)
    plan = due.body.plan  # type: ignore[union-attr]
    with pytest.raises(UnsupportedTable, match="rows stay in their bucket"):
        clustering_tasks(
            table.storage.root,
            "20300101000000000",
            plan,
            table.log_rule(),
            table.schema,
            table.footer_schema(),
            1,
            table.options,
            table.definition.buckets,
        )


def placed(*file_ids: str) -> list[FileSlice]:
    return [FileSlice(FileGroupId("p", file_id), "20260101000000000", f"{file_id}.parquet", 1, 1) for file_id in file_ids]


TAIL = "aaaa-4bbb-8ccc-dddddddddddd-0"


@pytest.mark.parametrize(
    ("file_ids", "match"),
    [
        ([f"0000000a-{TAIL}"], "has no bucket number"),
        ([f"00000004-{TAIL}"], "is of bucket 4, and the table has 4"),
        ([f"00000001-{TAIL}", f"00000001-{TAIL[:-1]}1"], "are of one bucket"),
    ],
)
def test_file_groups_that_the_index_does_not_allow_are_named(file_ids: list[str], match: str) -> None:
    index = bucket_index(4, ["id"], ["id"])
    with pytest.raises(UnsupportedTable, match=match):
        index.group_of_each(placed(*file_ids))
    state = TableState()
    for found in placed(*file_ids):
        state.slices[found.group] = {found.base_instant: found}
    with pytest.raises(UnsupportedTable, match=match):
        check_buckets(state, {**index.properties, "hoodie.table.recordkey.fields": "id"})
    check_buckets(TableState(), {**index.properties, "hoodie.table.recordkey.fields": "id"})


@pytest.mark.usefixtures("unrecorded_files")
def test_rows_of_another_bucket_are_named_before_they_are_written_again() -> None:
    """As a writer leaves them that counts off by another number of buckets."""
    table, _, _ = new_table(index=NewBuckets(4))
    write(table, rows(KEYS, 1, "a"))
    storage = table.storage
    one, two = (storage.read(table.slices()[at].path) for at in (0, 1))
    storage.put(table.slices()[0].path, two)
    storage.put(table.slices()[1].path, one)
    with pytest.raises(TidelineError, match="of other buckets"):
        write(open_table(storage, table.clock), rows(KEYS, 2, "b"))


def test_rows_of_another_bucket_in_log_files_are_named_before_they_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _, _ = new_table(type=TableType.MOR, index=NewBuckets(4))
    write(table, rows(KEYS, 1, "a"))
    right = BucketIndex.buckets_of
    monkeypatch.setattr(BucketIndex, "buckets_of", lambda index, codes: (right(index, codes) + 1) % 4)
    write(table, rows(KEYS, 2, "b"))
    monkeypatch.undo()
    with pytest.raises(TidelineError, match="of other buckets"):
        compact(table)
    assert not any(s.base_instant > table.slices()[0].base_instant for s in table.state.every_slice())
