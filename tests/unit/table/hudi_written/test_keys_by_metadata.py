"""Look-ups by key in tables without a table log ask the record index of the metadata table, where it can decide."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.plans import schedule_clean
from tests.unit.table.hudi_written.test_listed_by_metadata import as_written_by_hudi
from tests.unit.table.tables import compact, new_table, open_table, set_properties, write

from tideline_table.action import archive, create_metadata, run_clean
from tideline_table.config import ARCHIVAL_MIN_AGE_S
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.metadata_table import hudi_keys
from tideline_table.metadata_table.hudi_slices import newest_slices
from tideline_table.reader.where import parse_where
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.table.query import sorted_keys
from tideline_table.writer import Operation

GLOBAL = {"hoodie.index.type": "RECORD_INDEX"}
KEYS = ["1", "5", "7"]


def made(kind: TableType = TableType.COW, version: int = 9, first: Operation = Operation.UPSERT, **more: Any) -> tuple[Table, Any]:
    _, storage, clock = new_table(type=kind, version=version, **more)
    table = open_table(storage, clock, **GLOBAL, **{"hoodie.parquet.small.file.limit": 0})
    create_metadata(table, ["record_index"])
    for number in range(0, 8, 2):
        operation = first if not number else Operation.UPSERT
        write(table, [(str(n), "abcd"[n // 2], n, "x") for n in (number, number + 1)], operation)
    return table, clock


def opened(copy: MemoryStorage, clock: Any, **options: object) -> Table:
    return Table.open(copy.root, storage=copy, clock=clock, options=options)


def asked(table: Table, keys: list[str]) -> int:
    """How many slices a look-up leaves, by the record index alone; its rows are those of a filter."""
    found = table.snapshot()
    wanted = sorted_keys(keys)
    named = ", ".join(f"'{key}'" for key in keys)
    where = parse_where(f"_hoodie_record_key in ({named})", found.schema)
    every = sorted(found.read(["id", "v"], where).to_pylist(), key=str)
    assert sorted(table.look_up(keys, ["id", "v"]).to_pylist(), key=str) == every
    return len(table.timeline.holding(wanted, found.slices))


@pytest.mark.parametrize(
    ("kind", "version"), [*((TableType.COW, v) for v in (6, 8, 9)), (TableType.MOR, 8), (TableType.MOR, 9)], ids=str
)
def test_the_same_rows_from_the_groups_that_hold_the_keys(kind: TableType, version: int) -> None:
    table, clock = made(kind, version, ordering="")

    def asks(keys: list[str]) -> int:
        return asked(opened(as_written_by_hudi(table), clock, **GLOBAL), keys)

    assert asks(KEYS) == 3
    # An index may lack a key that the table has: writers with a bucket index add keys to log files without a word to it.
    assert asks([*KEYS, "none"]) == 4
    write(table, [("7", "d", 9, "y"), ("8", "a", 9, "y")])
    assert asks(KEYS) == 3
    write(table, [("5", "c", 9, "y")], Operation.DELETE)
    assert asks(["1", "7"]) == 2
    assert asks(KEYS) == len(table.slices())
    if kind is TableType.MOR:
        compact(table)
        assert asks(["1", "7"]) == 2


@pytest.mark.parametrize(("version", "ordering"), [(6, "ts"), (6, ""), (8, "ts"), (9, "ts")])
def test_where_a_deletion_may_lose_the_index_forgets_keys_that_the_table_has(version: int, ordering: str) -> None:
    """Apache Hudi takes the key of a deletion out of its index, whatever its ordering value, and adds it to another group later."""
    table, clock = made(TableType.MOR, version, ordering=ordering)
    write(table, [("5", "c", 9, "y")])
    assert asked(opened(as_written_by_hudi(table), clock, **GLOBAL), KEYS) == 4


def test_without_the_option_keys_of_several_partitions_may_be_equal() -> None:
    table, clock = made()
    assert asked(opened(as_written_by_hudi(table), clock), KEYS) == 4


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.INSERT_OVERWRITE])
def test_a_write_that_looks_no_key_up_may_repeat_one(operation: Operation) -> None:
    """Apache Hudi's index names the last place of a key then, and a query by it loses the other row."""
    table, clock = made()
    write(table, [("9", "e", 9, "y")], operation)
    assert asked(opened(as_written_by_hudi(table), clock, **GLOBAL), KEYS) == len(table.slices())


def test_a_write_of_an_operation_that_is_not_known_may_repeat_a_key() -> None:
    table, clock = made(version=6)
    copy = as_written_by_hudi(table)
    last = f".hoodie/{max(table.refresh().actions)}.commit"
    copy.put(last, copy.read(last).replace(b'"UPSERT"', b'"UNKNOWN"'))
    assert asked(opened(copy, clock, **GLOBAL), KEYS) == 4


@pytest.mark.parametrize("version", [6, 9])
def test_what_a_writer_that_died_told_the_index_may_have_been_merged_into_it(version: int) -> None:
    table, clock = made(version=version)
    assert asked(opened(as_written_by_hudi(table), clock, **GLOBAL), ["1", "5"]) == 2
    copy = as_written_by_hudi(table)
    last = max(table.refresh().actions)
    folder = ".hoodie" if version == 6 else ".hoodie/timeline"
    (completed,) = (f.path for f in copy.list_folder(folder).objects if last in f.path and f.path.endswith(".commit"))
    copy.delete(completed)
    assert asked(opened(copy, clock, **GLOBAL), ["1", "5"]) == 3


def test_an_index_that_is_dropped_while_it_is_read_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its files, those with the newest places may be gone first."""
    table, clock = made()
    copy = as_written_by_hudi(table)

    def dropped(*args: Any) -> Any:
        found = newest_slices(*args)
        set_properties(copy, {**read_properties(copy), METADATA_PARTITIONS: "files"})
        return found

    reader = opened(copy, clock, **GLOBAL)
    monkeypatch.setattr(hudi_keys, "newest_slices", dropped)
    assert len(reader.timeline.holding(sorted_keys(KEYS), reader.snapshot().slices)) == 4


ONE_FOLDER = {"partitions": ()}


def test_in_a_table_of_one_partition_a_key_is_once_with_any_index() -> None:
    table, clock = made(**ONE_FOLDER)
    assert asked(opened(as_written_by_hudi(table), clock), KEYS) == 3


def test_the_first_write_may_repeat_a_key_too() -> None:
    """Apache Hudi 1.2.0 takes a bulk insert with two rows of one key into a table with a record index."""
    table, clock = made(first=Operation.BULK_INSERT)
    assert asked(opened(as_written_by_hudi(table), clock, **GLOBAL), KEYS) == 4


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("more", [{}, ONE_FOLDER], ids=["partitions", "one folder"])
def test_archived_writes_may_have_repeated_a_key(more: dict[str, Any], version: int) -> None:
    """A writer with a global index does not look up the keys of an insert either."""
    table, clock = made(version=version, **more)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    clock.advance(10_000)
    few = {"hoodie.cleaner.commits.retained": 1, "hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    done, *_ = archive(table, {**few, ARCHIVAL_MIN_AGE_S.key: 1})
    assert done is not None
    copy = opened(as_written_by_hudi(table), clock, **({} if more else GLOBAL))
    assert len(copy.state.completed_writes()) < 4
    assert asked(copy, KEYS) == 4


def test_an_index_of_another_state_is_not_asked() -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    behind = opened(copy, clock, **GLOBAL)
    write(table, [("1", "a", 9, "y")])
    last = max(table.refresh().actions)
    (completed,) = (
        f.path for f in table.storage.list_folder(".hoodie/timeline").objects if f.path.rpartition("/")[2].startswith(f"{last}_")
    )
    copy.put(completed, table.storage.read(completed))
    found = behind.snapshot()
    assert len(behind.timeline.holding(sorted_keys(KEYS), found.slices)) == 4


@pytest.mark.parametrize("lack", ["off", "torn", "behind", "partitioned", "being made"])
def test_without_an_index_that_can_be_read_all_groups_are_asked(lack: str, caplog: pytest.LogCaptureFixture) -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    held = list(copy.list_folder(".hoodie/metadata/record_index").objects)
    if lack == "off":
        set_properties(copy, {**read_properties(copy), METADATA_PARTITIONS: "files"})
    elif lack == "behind":
        last = max(table.refresh().actions)
        for found in list(copy.list_folder(".hoodie/metadata/.hoodie/timeline").objects):
            if found.path.rpartition("/")[2].startswith(last):
                copy.delete(found.path)
    elif lack == "being made":
        copy.put(f".hoodie/timeline/{'9' * 17}.indexing.requested", b"")
    for found in held:
        if lack == "torn":
            copy.put(found.path, copy.read(found.path)[:-20])
        elif lack == "partitioned":
            copy.put(found.path.replace("record-index-", "record-index-a-"), copy.read(found.path))
            copy.delete(found.path)
    with caplog.at_level(logging.WARNING):
        assert asked(opened(copy, clock, **GLOBAL), KEYS) == 4
    assert ("without the record index" in caplog.text) is (lack in ("torn", "behind", "partitioned"))
