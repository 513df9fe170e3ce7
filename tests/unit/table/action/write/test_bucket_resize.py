"""A resize splits buckets in place: rows, keys and history stay, and writers with the old number are repeated."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.index.test_bucket_index import KEYS, SORTED, beside, check_places, rows
from tests.unit.table.tables import cluster, compact, contents, new_table, open_table, set_properties, write

from tideline_locks import open_hudi_lock
from tideline_table.action import create_savepoint, delete_partitions, preview_restore, resize_buckets
from tideline_table.action.write import resize
from tideline_table.errors import InvalidOption, UnsupportedTable, WriteConflict
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import PROPERTIES_PATH, format_properties, read_properties
from tideline_table.index.bucket import RESIZING
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import BucketIndex, Table, TableType, share_table

NUMBER = "hoodie.bucket.index.num.buckets"


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest) -> Table:
    found, _, _ = new_table(type=request.param, index=BucketIndex(4))
    write(found, rows(KEYS[:40], 1, "a") + rows(KEYS[:10], 1, "a", "q"))
    write(found, rows(KEYS[20:60], 2, "b"))
    return found


def number_of(table: Table) -> int:
    index = table.definition.buckets
    assert index is not None
    return index.number


def test_a_resize_moves_rows_to_more_buckets_and_changes_none(table: Table) -> None:
    before, first = contents(table), min(a.instant for a in table.state.completed_writes())
    last, then = table.state.sequence, contents(table, first)
    stale = open_table(table.storage, table.clock, "stale")
    reader = open_table(table.storage, table.clock, "reader")
    done = resize_buckets(table, 8)
    assert done is not None
    assert number_of(table) == 8
    assert contents(table) == before
    check_places(table)
    assert len({bucket_of_file_id(s.group.file_id) for s in table.slices()}) == 8
    properties = read_properties(table.storage)
    assert (properties[NUMBER], properties["hoodie.index.type"], RESIZING in properties) == ("8", "BUCKET", False)
    # Who opened the table before writes and reads by the new number.
    write(stale, rows([*KEYS[50:60], "new"], 3, "c"))
    check_places(stale)
    reader.refresh()
    table.refresh()
    for opened in (reader, table, open_table(table.storage, table.clock, "fresh")):
        for key in ("k007", "k055", "new"):
            found = opened.snapshot().only(_equals(key)).slices
            assert len({bucket_of_file_id(s.group.file_id) for s in found}) == 1
            assert sorted(set(opened.read(where=_equals(key))["id"].to_pylist())) == [key]
        # Time travel finds rows by the number of that time.
        assert contents(opened, first) == then
        assert len(opened.snapshot(first).only(_equals("k007")).slices) == 2
        assert opened.read(where=_equals("k007"), as_of=first).num_rows == 2
    assert sum(batch.num_rows for batch in table.changes(last).scan()) == 11, "a resize changes no row"
    assert table.incremental(0, last).read(where=_equals("k007")).num_rows == 2
    if table.definition.has_logs:
        compact(table)
    assert schedule_clustering(table, SORTED) is not None
    assert cluster(table) is not None
    check_places(table)
    assert sorted(table.read()["id"].to_pylist()) == sorted([*KEYS, *KEYS[:10], "new"])


def _equals(key: str) -> Any:
    return pc.field("id") == key


def test_a_resize_beside_a_writer_is_repeated(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_table(table.storage, table.clock, "w2")
    beside(monkeypatch, lambda: write(other, rows([*KEYS[:5], "opened"], 5, "beside")))
    done = resize_buckets(table, 12)
    assert done is not None
    assert done.attempts == 2
    check_places(table)
    assert {r[3] for r in contents(table) if r[0] in (*KEYS[:5], "opened") and r[1] == "p"} == {"beside"}


def test_a_resize_beside_a_deletion_of_a_partition_brings_no_row_back(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_table(table.storage, table.clock, "w2")
    beside(monkeypatch, lambda: delete_partitions(other, ["q"]))
    done = resize_buckets(table, 12)
    assert done is not None
    assert done.attempts == 2
    check_places(table)
    assert sorted(table.read()["part"].unique().to_pylist()) == ["p"]


def test_a_writer_with_the_old_number_is_repeated(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that only opens buckets, and so shares no file group with the resize."""
    other = open_table(table.storage, table.clock, "w2")
    beside(monkeypatch, lambda: resize_buckets(other, 8))
    done = write(table, rows([f"n{n}" for n in range(20)], 5, "new", "empty"))
    assert done.attempts == 2
    check_places(table)
    assert number_of(table) == 8
    assert table.read(where="part = 'empty'").num_rows == 20


def test_a_failed_resize_leaves_the_table_as_it_was(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before, files = contents(table), {o.path for o in table.storage.list_objects("") if o.path.endswith(".parquet")}
    move, calls = resize._Resize._move, []

    def breaks(*args: Any) -> Any:
        calls.append(1)
        assert RESIZING in read_properties(table.storage), "Hudi's readers find no number meanwhile"
        assert "hoodie.index.type" not in read_properties(table.storage)
        if len(calls) == 3:
            raise WriteConflict("enough", with_instant="")
        return move(*args)

    monkeypatch.setattr(resize._Resize, "_move", breaks)
    with pytest.raises(WriteConflict):
        resize_buckets(table, 8, options={"tideline.write.conflict.retries": 0})
    assert contents(table) == before
    assert number_of(open_table(table.storage, table.clock)) == 4
    assert {o.path for o in table.storage.list_objects("") if o.path.endswith(".parquet")} == files
    assert (read_properties(table.storage)[NUMBER], RESIZING in read_properties(table.storage)) == ("4", False)
    write(table, rows(KEYS, 9, "z"))
    check_places(table)


def test_a_resize_that_died_after_its_commit_is_completed_by_the_next_write(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "settle", lambda _: None)
    resize_buckets(table, 8)
    monkeypatch.undo()
    assert RESIZING in read_properties(table.storage)
    found = open_table(table.storage, table.clock, "next")
    assert number_of(found) == 8
    assert found.read(where=_equals("k007")).num_rows == 2
    write(found, rows(KEYS[:9], 9, "z"))
    assert (read_properties(table.storage)[NUMBER], RESIZING in read_properties(table.storage)) == ("8", False)
    check_places(found)
    assert found.read(where=_equals("k007")).num_rows == 2
    assert resize_buckets(found, 8) is None


def test_what_cannot_be_resized_is_refused(table: Table) -> None:
    for number in (2, 5, 6):
        with pytest.raises(InvalidOption, match="a multiple of 4"):
            resize_buckets(table, number)
    plain, _, _ = new_table()
    with pytest.raises(UnsupportedTable, match="without a bucket index"):
        resize_buckets(plain, 8)
    assert number_of(table) == 4
    assert RESIZING not in read_properties(table.storage)


def test_the_number_changed_by_hand_is_found_after_a_resize_too(table: Table) -> None:
    resize_buckets(table, 8)
    properties = read_properties(table.storage)
    table.storage.put(PROPERTIES_PATH, format_properties({**properties, NUMBER: "16"}, "by hand"))
    found = open_table(table.storage, table.clock, "w3")
    with pytest.raises(UnsupportedTable, match=r"hoodie\.properties with 16 bucket"):
        write(found, rows(KEYS[:1], 9, "z"))
    assert found.read(where=_equals("k007")).num_rows == 2


def test_an_earlier_number_in_a_shared_table_is_refused(table: Table) -> None:
    """Apache Hudi's writers would use it."""
    resize_buckets(table, 8)
    shared = share_table(table, Sharing(HudiLockKind.STORAGE), open_hudi_lock)
    set_properties(table.storage, {**read_properties(table.storage), NUMBER: "4"})
    opened = Table.open(table.base_path, storage=table.storage, clock=table.clock, hudi_lock=open_hudi_lock)
    for found in (shared, opened):
        with pytest.raises(UnsupportedTable, match="4 bucket"):
            write(found, rows(KEYS[:1], 9, "z"))


def test_a_restore_before_a_resize_is_refused_by_name(table: Table) -> None:
    saved = create_savepoint(table, "")
    resize_buckets(table, 8)
    with pytest.raises(UnsupportedTable, match="split the buckets"):
        preview_restore(table, saved.instant)
    check_places(table)


def test_a_pending_compaction_goes_first() -> None:
    table, _, _ = new_table(type=TableType.MOR, index=BucketIndex(4))
    write(table, rows(KEYS, 1, "a"))
    write(table, rows(KEYS, 2, "b"))
    assert schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1}) is not None
    with pytest.raises(WriteConflict, match="compaction"):
        resize_buckets(table, 8, options={"tideline.write.conflict.retries": 0})
    compact(table)
    assert resize_buckets(table, 8) is not None
    check_places(table)
