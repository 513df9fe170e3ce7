"""A resize of a table with numbers of buckets by partition moves the rows of the partitions whose number changes, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering
from tests.simulation.starting_point import Prepared
from tests.simulation.starting_point import place as copy_with_clock
from tests.unit.table.index.test_partition_buckets import EXPRESSIONS, KEYS, RULES, rows
from tests.unit.table.tables import (
    beside,
    cluster,
    compact,
    contents,
    create,
    new_table,
    open_table,
    rows_of,
    set_properties,
    write,
)

from tideline_locks import open_hudi_lock
from tideline_table.action import create_savepoint, preview_restore, resize_buckets
from tideline_table.action.write import resize
from tideline_table.clock import SystemClock
from tideline_table.coordination.shared.partition_numbers import newest_rules
from tideline_table.errors import InvalidOption, UnsupportedTable, WriteConflict
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket import RESIZING, BucketIndex
from tideline_table.index.partition_rules import FIRST_INSTANT, RulesFile
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation

LARGER = "^a,16;b$,4"
"""In place of `RULES`: partition `c` keeps its four buckets."""
BEFORE = {"a1": 8, "xb": 2, "c": 4}
AFTER = {"a1": 16, "xb": 4, "c": 4}
NUMBER = "hoodie.bucket.index.num.buckets"
INDEX_TYPE = "hoodie.index.type"


@cache
def prepared(kind: TableType) -> Prepared:
    """The table of each type is made once; each test gets a copy."""
    found, storage, clock = new_table(type=kind, index=NewBuckets(4, partition_buckets=RULES))
    write(found, rows(KEYS[:60], 1, "a"))
    write(found, rows(KEYS[30:], 2, "b"))
    assert isinstance(storage, MemoryStorage)
    return storage, clock.monotonic_s()


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest) -> Table:
    _, storage, clock = copy_with_clock(prepared(request.param))
    return open_table(storage, clock)


def check_places(table: Table, numbers: Mapping[str, int]) -> None:
    """Every row is in the file group of its bucket by these numbers, every bucket has one file group, and no key is there twice."""
    table.refresh()
    index = table.definition.buckets
    assert index is not None
    found = table.read(["id", "part", "_hoodie_file_name"]).to_pylist()
    for row in found:
        assert index.in_partition(row["part"]).number == numbers[row["part"]]
        own = BucketIndex(numbers[row["part"]], index.fields, index.key_fields)
        assert own.buckets(rows_of([(row["id"], "", 0, "")]).column("id")).tolist() == [bucket_of_file_id(row["_hoodie_file_name"])]
    identities = [(row["part"], row["id"]) for row in found]
    assert len(set(identities)) == len(identities)
    groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices()]
    assert len(set(groups)) == len(groups)


def slices_of(table: Table, partition: str) -> list[object]:
    return [(s.group, s.version) for s in table.slices() if s.group.partition_path == partition]


def by_key(key: str) -> Any:
    return pc.field("id") == key


def test_rules_change_with_the_commit_and_only_changed_partitions_are_written(table: Table) -> None:
    before, first, kept = contents(table), min(a.instant for a in table.state.completed_writes()), slices_of(table, "c")
    last, then = table.state.sequence, contents(table, first)
    stale, reader = (open_table(table.storage, table.clock, name) for name in ("stale", "reader"))
    done = resize_buckets(table, partition_buckets=LARGER)
    assert done is not None
    assert {s.partition_path for s in done.stats} == {"a1", "xb"}
    assert slices_of(table, "c") == kept
    assert contents(table) == before
    check_places(table, AFTER)
    properties = read_properties(table.storage)
    assert (properties[EXPRESSIONS], properties[NUMBER]) == (f"{LARGER};.*,4", "4")
    assert (properties[INDEX_TYPE], RESIZING in properties) == ("BUCKET", False)
    assert newest_rules(table.storage, table.timeline.format) == (RulesFile(done.instant, f"{LARGER};.*,4", 4),)
    assert table.storage.read(RulesFile.path_of(FIRST_INSTANT)) == RulesFile(FIRST_INSTANT, f"{RULES};.*,4", 4).content
    # Who opened the table before writes and reads by the new rules, also partitions that the resize did not see.
    numbers = {**AFTER, "a2": 16}
    write(stale, [*rows([*KEYS[70:], "new"], 3, "c"), *rows(KEYS, 3, "c", ["a2"])])
    check_places(stale, numbers)
    reader.refresh()
    table.refresh()
    for opened in (reader, table, open_table(table.storage, table.clock, "fresh")):
        for key in ("k007", "k055", "new"):
            found = opened.snapshot().only(by_key(key)).slices
            assert len({s.group.partition_path for s in found}) == len(found)
            assert set(opened.read(where=by_key(key))["id"].to_pylist()) == {key}
        # Queries as of an earlier time find rows by the rules of that time.
        assert contents(opened, first) == then
        assert len(opened.snapshot(first).only(by_key("k007")).slices) == 3
        assert opened.read(where=by_key("k007"), as_of=first).num_rows == 3
        assert opened.read(where=by_key("k007"), as_of=done.instant).num_rows == 3
    assert sum(batch.num_rows for batch in table.changes(last).scan()) == 3 * 11 + len(KEYS), "a resize changes no row"
    if table.definition.has_logs:
        assert compact(table) is not None
    assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "v"}) is not None
    assert cluster(table) is not None
    check_places(table, numbers)
    assert resize_buckets(table, partition_buckets=LARGER) is None


def test_the_number_of_the_other_partitions_changes_and_rules_stay(table: Table) -> None:
    before = contents(table)
    done = resize_buckets(table, 8)
    assert done is not None
    assert {s.partition_path for s in done.stats} == {"c"}
    assert contents(table) == before
    check_places(table, {**BEFORE, "c": 8})
    assert table.definition.index_text == f"8 bucket(s) by id, by partition {RULES};.*,8"
    assert newest_rules(table.storage, table.timeline.format) == (RulesFile(done.instant, f"{RULES};.*,8", 8),)
    # No rules: the table keeps the form with rules, and one of them for all partitions.
    assert resize_buckets(table, 8, partition_buckets="", overwrite=True) is not None
    check_places(table, {"a1": 8, "xb": 8, "c": 8})
    assert table.definition.index_text == "8 bucket(s) by id, by partition .*,8"
    assert contents(table) == before


def test_a_table_without_rules_gets_them(tmp_path: Path) -> None:
    table, _, _ = new_table(index=NewBuckets(4))
    write(table, rows(KEYS, 1, "a"))
    first = table.state.last_instant
    second = resize_buckets(table, 8)
    third = resize_buckets(table, partition_buckets="^a,16")
    assert second is not None
    assert third is not None
    check_places(table, {"a1": 16, "xb": 8, "c": 8})
    # Hudi's readers find the number of each time in a file of rules.
    for found in (
        RulesFile(FIRST_INSTANT, ".*,4", 4),
        RulesFile(second.instant, ".*,8", 8),
        RulesFile(third.instant, "^a,16;.*,8", 8),
    ):
        assert table.storage.read(found.path) == found.content
    for opened in (table, open_table(table.storage, table.clock)):
        for as_of in (first, second.instant, third.instant):
            found = opened.snapshot(as_of).only(by_key("k007")).slices
            assert sorted(s.group.partition_path for s in found) == ["a1", "c", "xb"]
            assert opened.read(where=by_key("k007"), as_of=as_of).num_rows == 3
    flat, _, _ = new_table(index=NewBuckets(4), partitions=())
    with pytest.raises(InvalidOption, match="without partitions"):
        resize_buckets(flat, partition_buckets="^a,16")


@pytest.mark.parametrize(
    ("rules_", "numbers"), [("^a,6;b$,1;c,9", {"a1": 6, "xb": 1, "c": 9}), (".*,3", {"a1": 3, "xb": 3, "c": 3})]
)
def test_an_overwrite_gives_partitions_any_number(table: Table, rules_: str, numbers: dict[str, int]) -> None:
    before = contents(table)
    done = resize_buckets(table, partition_buckets=rules_, overwrite=True)
    assert done is not None
    assert contents(table) == before
    check_places(table, numbers)
    write(table, rows(KEYS[:10], 5, "c"))
    check_places(table, numbers)
    for key in KEYS[::9]:
        assert table.read(where=by_key(key)).num_rows == 3
    assert len(contents(table)) == 3 * len(KEYS)


def test_an_overwrite_of_more_than_fits_into_memory_reads_in_turns(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read, held = contents(table), resize._Resize._read, []

    def counted(*args: Any) -> Any:
        found = read(*args)
        held.append((args[1], found[0].num_rows))
        return found

    monkeypatch.setattr(resize._Resize, "_read", counted)
    size = max(s.total_bytes for s in table.slices() if s.group.partition_path == "a1")
    limit = {"hoodie.clustering.plan.strategy.max.bytes.per.group": 3 * size}
    assert resize_buckets(table, partition_buckets="^a,9;b$,1;c,4", overwrite=True, options=limit) is not None
    assert contents(table) == before
    check_places(table, {"a1": 9, "xb": 1, "c": 4})
    # Eight buckets of one class in three turns, each with the rows of three of the nine new buckets; two buckets to one in one
    # turn.
    turns = {name: [rows for at, rows in held if at == name] for name in ("a1", "xb")}
    assert [len(found) for found in turns.values()] == [3, 1]
    assert max(turns["a1"]) < len(KEYS) * 0.6
    assert [sum(found) for found in turns.values()] == [len(KEYS)] * 2


def test_numbers_that_cannot_be_split_are_refused_by_partition(table: Table) -> None:
    before = read_properties(table.storage)
    with pytest.raises(InvalidOption, match=r"12 buckets for partition 'a1', which has 8; expected a multiple of 8.*--overwrite"):
        resize_buckets(table, partition_buckets="^a,12;b$,4")
    with pytest.raises(InvalidOption, match="4 buckets for partition 'a1', which has 8"):
        resize_buckets(table, partition_buckets="b$,2")
    for wrong in ("(?i)a,2", "^a,0", "^a"):
        with pytest.raises(InvalidOption):
            resize_buckets(table, partition_buckets=wrong)
    for number in (0, -4, 100_000):
        with pytest.raises(InvalidOption, match="1 to 99999"):
            resize_buckets(table, number)
    with pytest.raises(InvalidOption, match="without numbers"):
        resize_buckets(table)
    assert read_properties(table.storage) == before
    # A rule for partitions that have no rows needs no multiple.
    assert resize_buckets(table, partition_buckets=f"^z,7;{RULES}") is not None
    write(table, rows(KEYS, 3, "z", ["z1"]))
    check_places(table, {**BEFORE, "z1": 7})


@pytest.mark.parametrize(("partition", "attempts"), [("c", 1), ("a1", 2), ("a9", 2), ("c9", 1)])
def test_only_writes_into_partitions_that_change_let_a_resize_begin_again(
    table: Table, monkeypatch: pytest.MonkeyPatch, partition: str, attempts: int
) -> None:
    """A partition that another writer makes meanwhile counts, too: its file groups follow the old rules."""
    other = open_table(table.storage, table.clock, "w2")
    beside(monkeypatch, lambda: write(other, rows([*KEYS[:9], "opened"], 5, "beside", [partition])))
    done = resize_buckets(table, partition_buckets=LARGER)
    assert done is not None
    assert done.attempts == attempts
    check_places(table, {**AFTER, "a9": 16, "c9": 4})
    assert sum(r[3] == "beside" for r in contents(table)) == 10


@pytest.mark.parametrize("partition", ["a1", "a9", "c"])
def test_a_writer_with_the_old_rules_is_repeated(table: Table, monkeypatch: pytest.MonkeyPatch, partition: str) -> None:
    other = open_table(table.storage, table.clock, "w2")
    beside(monkeypatch, lambda: resize_buckets(other, partition_buckets=LARGER))
    done = write(table, rows([f"n{n}" for n in range(20)], 5, "new", [partition]))
    assert done.attempts == 2
    check_places(table, {**AFTER, "a9": 16})
    assert sum(r[3] == "new" for r in contents(table)) == 20


def test_two_resizes_end_with_the_later_one_and_the_files_follow(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_table(table.storage, table.clock, "w2")
    beside(monkeypatch, lambda: resize_buckets(other, partition_buckets="^a,16;b$,2"))
    done = resize_buckets(table, partition_buckets="^a,32;b$,4")
    assert done is not None
    assert done.attempts == 2
    check_places(table, {"a1": 32, "xb": 4, "c": 4})
    assert read_properties(table.storage)[EXPRESSIONS] == "^a,32;b$,4;.*,4"
    assert newest_rules(table.storage, table.timeline.format)[0].instant == done.instant
    write(open_table(table.storage, table.clock, "w3"), rows(KEYS, 6, "c"))
    check_places(table, {"a1": 32, "xb": 4, "c": 4})


def test_a_failed_resize_leaves_the_rules_as_they_were(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before, properties, move, calls = contents(table), read_properties(table.storage), resize._Resize._move, []
    paths = {o.path for o in table.storage.list_objects("") if o.path.endswith((".parquet", "_config"))}

    def breaks(*args: Any) -> Any:
        calls.append(1)
        found = read_properties(table.storage)
        assert found[RESIZING] == "4", "Hudi's readers find no index meanwhile"
        assert INDEX_TYPE not in found
        if len(calls) == 3:
            raise WriteConflict("enough", with_instant="")
        return move(*args)

    monkeypatch.setattr(resize._Resize, "_move", breaks)
    with pytest.raises(WriteConflict):
        resize_buckets(table, partition_buckets=LARGER, options={"tideline.write.conflict.retries": 0})
    assert contents(table) == before
    assert {o.path for o in table.storage.list_objects("") if o.path.endswith((".parquet", "_config"))} == paths
    assert read_properties(table.storage) == properties
    write(table, rows(KEYS, 9, "z"))
    check_places(table, BEFORE)


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("by_command", [False, True])
def test_a_resize_that_died_after_its_commit_is_completed_by_the_next_write(
    table: Table, monkeypatch: pytest.MonkeyPatch, has_file: bool, by_command: bool
) -> None:
    monkeypatch.setattr(resize, "settle", lambda _: None)
    done = resize_buckets(table, partition_buckets=LARGER)
    monkeypatch.undo()
    assert done is not None
    own = RulesFile(done.instant, f"{LARGER};.*,4", 4)
    if has_file:
        table.storage.put_if_absent(own.path, own.content)
    assert RESIZING in read_properties(table.storage)
    found = open_table(table.storage, table.clock, "next")
    assert len(found.snapshot().only(by_key("k007")).slices) == 3
    if by_command:
        assert resize_buckets(found, partition_buckets=LARGER) is None
    else:
        write(found, rows(KEYS[:9], 9, "z"))
    check_places(found, AFTER)
    assert newest_rules(table.storage, table.timeline.format) == (own,)
    assert (read_properties(table.storage)[EXPRESSIONS], RESIZING in read_properties(table.storage)) == (own.expressions, False)


def test_rules_changed_by_hand_are_found_after_a_resize_too(table: Table) -> None:
    resize_buckets(table, partition_buckets=LARGER)
    properties = read_properties(table.storage)
    for rules in ("^a,32;.*,4", ""):
        set_properties(table.storage, {**properties, EXPRESSIONS: rules})
        found = open_table(table.storage, table.clock, "w3")
        with pytest.raises(UnsupportedTable, match=r"hoodie\.properties with 4 bucket"):
            write(found, rows(KEYS[:1], 9, "z"))
        assert found.read(where=by_key("k007")).num_rows == 3


def test_a_restore_before_a_change_of_rules_is_refused(table: Table) -> None:
    saved = create_savepoint(table, "")
    resize_buckets(table, partition_buckets=LARGER)
    with pytest.raises(UnsupportedTable, match="split the buckets"):
        preview_restore(table, saved.instant)


def test_a_resized_table_is_shared_and_written_by_the_new_rules(tmp_path: Path) -> None:
    storage, clock = LocalStorage(tmp_path / "t"), SystemClock()
    create(storage, clock, index=NewBuckets(4, partition_buckets=RULES))
    table = open_table(storage, clock)
    write(table, rows(KEYS, 1, "a"))
    resize_buckets(table, partition_buckets=LARGER)
    shared = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM, expire_min=5), open_hudi_lock)
    assert shared.hudi_options()[EXPRESSIONS] == f"{LARGER};.*,4"
    write(shared, rows([*KEYS[:30], "new"], 2, "b"))
    write(shared, rows(KEYS[:3], 0, ""), Operation.DELETE)
    check_places(shared, AFTER)
    assert len(shared.snapshot().only(by_key("k007")).slices) == 3
    with pytest.raises(UnsupportedTable, match="Apache Hudi's writers"):
        resize_buckets(shared, partition_buckets="^a,32")
