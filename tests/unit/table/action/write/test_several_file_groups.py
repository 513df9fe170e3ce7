"""Tables whose buckets have several file groups (pattern 2 of RFC-29): where rows go, what is read for a write and a query, and
what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import SCHEMA, Row, beside, cluster, compact, contents, new_table, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action.write.resize import resize_buckets
from tideline_table.clock import ManualClock
from tideline_table.errors import DuplicateKey, InvalidOption, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import PROPERTIES_PATH, format_properties, read_properties
from tideline_table.index.bucket import SEVERAL_FILE_GROUPS
from tideline_table.index.simple import Location
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

SMALL = {
    "hoodie.parquet.max.file.size": 8_000,
    "hoodie.parquet.small.file.limit": 4_000,
    "hoodie.copyonwrite.record.size.estimate": 400,
}
"""About 20 rows in a file, and inserts into files of less than 10 rows."""
POLICY = "hoodie.datasource.insert.dup.policy"


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest) -> Table:
    found, _, _ = new_table(type=request.param, index=BucketIndex(4, several_file_groups=True))
    return found


def rows(numbers: Iterable[int], ts: int, v: str, partition: str = "p") -> list[Row]:
    return [(f"k{n:04}", partition, ts, v) for n in numbers]


def groups(table: Table) -> Counter[tuple[str, int | None]]:
    return Counter((s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices())


def check_places(table: Table) -> None:
    """Every row is in a file group of its bucket, and no key is there twice."""
    index, found = table.definition.buckets, table.read()
    assert index is not None
    keys = found.column("_hoodie_record_key")
    held = [bucket_of_file_id(name.split("_")[0]) for name in found.column("_hoodie_file_name").to_pylist()]
    assert held == index.buckets(keys).tolist()
    places = list(zip(found.column("_hoodie_partition_path").to_pylist(), keys.to_pylist(), strict=True))
    assert len(places) == len(set(places))


def test_a_bucket_that_outgrows_the_largest_file_gets_another_file_group(table: Table) -> None:
    write(table, rows(range(60), 1, "a"), **SMALL)
    before = groups(table)
    write(table, rows(range(60, 300), 2, "b"), **SMALL)
    after = groups(table)
    assert set(after) == {("p", n) for n in range(4)}
    assert max(after.values()) > max(before.values())
    check_places(table)
    assert table.read().num_rows == 300


def test_rows_are_updated_and_deleted_where_they_are(table: Table) -> None:
    write(table, rows(range(300), 1, "a"), **SMALL)
    held = {s.group for s in table.slices()}
    write(table, rows(range(0, 300, 2), 2, "b"), **SMALL)
    write(table, rows(range(0, 300, 3), 3, ""), Operation.DELETE, **SMALL)
    assert {s.group for s in table.slices()} == held
    check_places(table)
    assert {k: v for k, _, _, v in contents(table)} == {f"k{n:04}": "b" if n % 2 == 0 else "a" for n in range(300) if n % 3}


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
def test_inserts_update_the_keys_that_a_bucket_holds(table: Table, operation: Operation) -> None:
    write(table, rows(range(200), 1, "a"), **SMALL)
    write(table, rows(range(100, 300), 2, "b"), operation, **SMALL)
    check_places(table)
    assert Counter(v for *_, v in contents(table)) == {"a": 100, "b": 200}


def test_duplicate_policies_see_what_the_buckets_hold(table: Table) -> None:
    write(table, rows(range(200), 1, "a"), **SMALL)
    with pytest.raises(DuplicateKey, match="1 record key"):
        write(table, rows([199, 200], 2, "b"), Operation.INSERT, **{POLICY: "fail", **SMALL})
    write(table, rows(range(150, 250), 2, "b"), Operation.INSERT, **{POLICY: "drop", **SMALL})
    check_places(table)
    assert Counter(v for *_, v in contents(table)) == {"a": 200, "b": 50}


@pytest.mark.parametrize("operation", [Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE])
def test_overwrites_open_the_buckets_anew(table: Table, operation: Operation) -> None:
    write(table, rows(range(200), 1, "a") + rows(range(50), 1, "a", "q"), **SMALL)
    write(table, rows(range(100, 200), 2, "b"), operation, **SMALL)
    check_places(table)
    kept = 50 if operation is Operation.INSERT_OVERWRITE else 0
    assert Counter(v for *_, v in contents(table)) == Counter({"a": kept, "b": 100})


def test_inserts_go_to_log_files_of_small_groups_of_their_bucket() -> None:
    table, _, _ = new_table(type=TableType.MOR, index=BucketIndex(2, several_file_groups=True))
    options = {**SMALL, "tideline.insert.to.log": True}
    write(table, rows(range(20), 1, "a"), **options)
    write(table, rows(range(20, 30), 1, "b"), **options)
    assert set(groups(table).values()) == {1}, "small groups take the inserts"
    assert all(not s.base_file for s in table.slices())
    write(table, rows(range(30), 2, "c"), **options)
    compact(table)
    check_places(table)
    assert Counter(v for *_, v in contents(table)) == {"c": 30}


def test_a_write_reads_only_files_of_its_buckets(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    write(table, rows(range(400), 1, "a"), **SMALL)
    index = table.definition.buckets
    assert index is not None
    fresh, asked = open_table(table.storage, table.clock), []
    locate = fresh.index.locate

    def spy(keys: pa.ChunkedArray, slices: Iterable[FileSlice], *, by_filters: bool = False) -> Location:
        found = list(slices)
        asked.append((set(index.buckets(keys).tolist()), {bucket_of_file_id(s.group.file_id) for s in found}, by_filters))
        return locate(keys, found, by_filters=by_filters)

    monkeypatch.setattr(fresh.index, "locate", spy)
    write(fresh, rows([7], 2, "b"), **SMALL)
    assert asked
    assert all(wanted == held and len(held) == 1 and by_filters for wanted, held, by_filters in asked)


def test_queries_leave_other_buckets_out(table: Table) -> None:
    write(table, rows(range(400), 1, "a"), **SMALL)
    index, snapshot = table.definition.buckets, replace(table.snapshot(), skipping=None)
    assert index is not None
    own = index.buckets(pa.array(["k0007"])).tolist()
    for part in (snapshot.only(pc.field("id") == "k0007"), snapshot.only(keys=pa.array(["k0007"]))):
        assert {bucket_of_file_id(s.group.file_id) for s in part.slices} == set(own)
        assert 1 < len(part.slices) < len(snapshot.slices)
    sampled = snapshot.sampled([0])
    assert {bucket_of_file_id(s.group.file_id) for s in sampled.slices} == {0}


def test_two_writers_of_one_new_key_leave_it_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may open two file groups of one bucket; the keys decide, as in a table without buckets."""
    other = open_table(table.storage, table.clock, "other")
    beside(monkeypatch, lambda: write(other, rows(range(40), 1, "theirs"), **SMALL))
    assert write(table, rows(range(30, 60), 2, "mine"), **SMALL).attempts == 2
    check_places(table)
    assert Counter(v for *_, v in contents(table)) == {"theirs": 30, "mine": 30}


def test_first_writers_of_other_keys_of_one_bucket_do_not_meet(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_table(table.storage, table.clock, "other")
    beside(monkeypatch, lambda: write(other, rows(range(40), 1, "theirs"), **SMALL))
    assert write(table, rows(range(40, 80), 2, "mine"), **SMALL).attempts == 1
    check_places(table)
    assert table.read().num_rows == 80


def test_clustering_sorts_each_file_group_and_moves_no_row(table: Table) -> None:
    write(table, [(f"k{n:04}", "p", 1, f"v{(7 * n) % 300:03}") for n in range(300)], **SMALL)
    before, held = contents(table), groups(table)
    assert max(held.values()) > 1
    assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "v"}) is not None
    assert cluster(table) is not None
    assert contents(table) == before
    assert groups(table) == held
    check_places(table)


def test_the_property_is_kept_and_other_ways_are_refused(table: Table) -> None:
    assert read_properties(table.storage)[SEVERAL_FILE_GROUPS] == "true"
    with pytest.raises(UnsupportedTable, match="several file groups"):
        resize_buckets(table, 8)
    with pytest.raises(UnsupportedTable, match="one file group in each bucket"):
        share_table(table, SHARING, open_hudi_lock)
    storage = MemoryStorage(clock=table.clock)
    asked = BucketIndex(2, consistent=True, several_file_groups=True)
    request = TableRequest("t", SCHEMA, ("id",), ("part",), "ts", TableType.MOR, index=asked)
    with pytest.raises(InvalidOption, match="several file groups in each bucket"):
        create_table(storage.root, request, ManualClock(), storage)
    assert not list(storage.list_objects(""))


def test_properties_that_lost_it_stop_writers(table: Table) -> None:
    """By the other kind of bucket index, a write would look up no keys."""
    write(table, rows(range(300), 1, "a"), **SMALL)
    table.clock.advance(1)
    properties = {k: v for k, v in read_properties(table.storage).items() if k != SEVERAL_FILE_GROUPS}
    table.storage.put(PROPERTIES_PATH, format_properties(properties, "changed"))
    for writer in (table, open_table(table.storage, table.clock)):
        with pytest.raises(UnsupportedTable, match="several file groups each"):
            write(writer, rows(range(3), 2, "b"), **SMALL)
        assert len(contents(writer)) == 300


def test_numbers_by_partition_hold_with_several_file_groups() -> None:
    table, _, _ = new_table(index=BucketIndex(2, partition_buckets="^q$,4", several_file_groups=True))
    write(table, rows(range(200), 1, "a") + rows(range(200), 1, "a", "q"), **SMALL)
    write(table, rows(range(100, 300), 2, "b") + rows(range(100, 300), 2, "b", "q"), **SMALL)
    assert set(groups(table)) == {("p", 0), ("p", 1), *(("q", n) for n in range(4))}
    index, found = table.definition.buckets, table.read()
    assert index is not None
    for name in ("p", "q"):
        part = found.filter(pc.field("part") == name)
        assert len(set(part["_hoodie_record_key"].to_pylist())) == part.num_rows == 300
        held = [bucket_of_file_id(file.split("_")[0]) for file in part["_hoodie_file_name"].to_pylist()]
        assert held == index.in_partition(name).buckets(part["_hoodie_record_key"]).tolist()
