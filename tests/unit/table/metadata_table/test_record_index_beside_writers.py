"""Writers beside a process that creates, drops or repairs the record index: they repeat.

Writers by another index beside a record index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.unit.table.tables import contents, new_table, open_table, rows_of

from tideline_table.action import check_table, create_metadata, drop_metadata, repair_metadata, write_rows
from tideline_table.action.metadata.requirements import key_check
from tideline_table.action.write import run
from tideline_table.coordination.committed import Committed
from tideline_table.errors import DuplicateKey, WriteConflict
from tideline_table.file_group.slice import FileSlice
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.metadata_table import record_index
from tideline_table.storage import Storage
from tideline_table.table import BloomIndex, Table, TableType
from tideline_table.writer import Operation

BEFORE = [("a", "p", 1, "x"), ("b", "q", 1, "x")]
ROW = [("a", "q", 2, "y")]


def indexed() -> tuple[Table, Storage, Any]:
    table, storage, clock = new_table()
    create_metadata(table, (RECORD_INDEX,))
    upsert(table, BEFORE)
    return table, storage, clock


def upsert(table: Table, rows: list[Any], **more: Any) -> Committed:
    return write_rows(table, rows_of(rows), Operation.UPSERT, parallelism=1, **more)


def drop(table: Table) -> None:
    drop_metadata(table, (RECORD_INDEX,))


@pytest.mark.parametrize("double", [[("a", "q", 3, "z")], [("n", "s", 3, "z"), ("n", "t", 3, "z")]], ids=["old", "new"])
def test_a_creation_reads_of_each_later_state_only_what_changed(monkeypatch: pytest.MonkeyPatch, double: list[Any]) -> None:
    """So it ends beside writers that never pause: otherwise each commit makes it read all keys again."""
    table, _, _ = new_table(type=TableType.MOR)
    upsert(table, [*BEFORE, ("c", "r", 1, "x")])
    read, real, check = list[str](), record_index.live_keys, key_check(table, RECORD_INDEX)

    def noted(source: Any, file_slice: FileSlice) -> Any:
        read.append(file_slice.group.partition_path)
        return real(source, file_slice)

    monkeypatch.setattr(record_index, "live_keys", noted)
    upsert(table, [("d", "r", 1, "x")])
    check(table.refresh())
    check(table.refresh())
    assert sorted(read) == ["p", "q", "r", "r"]
    upsert(table, [("a", "p", 2, "y"), ("e", "s", 2, "y")])
    check(table.refresh())
    assert sorted(read[4:]) == ["p", "s"]
    upsert(table, double)
    for _ in range(2):
        with pytest.raises(DuplicateKey, match=f"'{double[0][0]}'"):
            check(table.refresh())


@pytest.mark.parametrize(("act", "lands_in"), [(drop, "q"), (repair_metadata, "p")], ids=["drop", "repair"])
def test_a_write_between_the_deletion_of_the_files_and_the_entry_repeats(act: Callable[[Table], object], lands_in: str) -> None:
    """Once there is no record index, a key is unique in its partition only."""
    _, storage, clock = indexed()
    other, writer = (open_table(storage, clock, name) for name in ("other", "writer"))
    real, appended, written = other.timeline.append, list[Any](), list[Committed]()

    def append(decide: Any, *gather: Any, **more: Any) -> Any:
        def go_on(*_: object) -> None:
            if not appended:
                appended.append(real(decide, *gather, **more))

        written.append(upsert(writer, ROW, on_conflict=go_on))
        return appended[0]

    other.timeline.append = append  # type: ignore[method-assign]
    act(other)
    assert written[0].attempts > 1
    kept = [row for row in BEFORE if lands_in == "q" or row[0] != "a"]
    assert contents(writer) == sorted([*kept, *ROW], key=repr)
    assert writer.read(["_hoodie_partition_path"], pc.field("v") == "y").column(0).to_pylist() == [lands_in]
    assert check_table(open_table(storage, clock, "reader")) == []


def test_a_write_that_looked_before_the_drop_repeats_without_the_index() -> None:
    table, storage, clock = indexed()
    other, real, once = open_table(storage, clock, "other"), table.timeline.append, iter([True])

    def append(decide: Any, *gather: Any, **more: Any) -> Any:
        if next(once, False):
            drop(other)
        return real(decide, *gather, **more)

    table.timeline.append = append  # type: ignore[method-assign]
    assert upsert(table, ROW).attempts == 2
    assert contents(table) == sorted([*BEFORE, *ROW], key=repr)


def test_a_write_that_meets_a_drop_before_it_looks_keys_up_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = indexed()
    other, real, once = open_table(storage, clock, "other"), run.tag_input, iter([True])

    def behind_a_drop(*given: Any) -> Any:
        if next(once, False):
            drop(other)
            table.refresh()
        return real(*given)

    monkeypatch.setattr(run, "tag_input", behind_a_drop)
    assert upsert(table, ROW).attempts == 2
    assert contents(table) == sorted([*BEFORE, *ROW], key=repr)


def test_a_drop_that_died_halfway_names_the_repair() -> None:
    _, storage, clock = indexed()
    other = open_table(storage, clock, "other")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    other.timeline.append = die  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        drop(other)
    writer = open_table(storage, clock, "writer", **{"tideline.write.conflict.retries": 0})
    with pytest.raises(WriteConflict, match="--repair"):
        upsert(writer, ROW)
    repair_metadata(writer)
    upsert(writer, ROW)
    assert check_table(writer) == []


@pytest.mark.parametrize("named", ["kept", "GLOBAL_SIMPLE", "GLOBAL_BLOOM"])
@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT, Operation.UPSERT], ids=str)
def test_writers_that_look_keys_up_by_another_index_put_them_in_one_place(operation: Operation, named: str) -> None:
    """An insert was refused for good, as if the record index had just been created."""
    table, storage, clock = new_table(index=BloomIndex(across_partitions=True) if named == "kept" else None)
    upsert(table, BEFORE)
    create_metadata(table, (RECORD_INDEX,))
    options = {} if named == "kept" else {"hoodie.index.type": named}
    rows = rows_of([("c", "p", 2, "new"), ("a", "p", 2, "known")])
    assert write_rows(table, rows, operation, options=options, parallelism=1).attempts == 1
    assert contents(table) == [("a", "p", 2, "known"), BEFORE[1], ("c", "p", 2, "new")]
    assert check_table(open_table(storage, clock, "reader")) == []
    with pytest.raises(DuplicateKey, match="partition 'q'"):
        write_rows(table, rows_of([("b", "p", 3, "elsewhere")]), Operation.INSERT_OVERWRITE, options=options, parallelism=1)
    write_rows(table, rows_of([("a", "p", 3, "alone")]), Operation.INSERT_OVERWRITE, options=options, parallelism=1)
    assert contents(table) == [("a", "p", 3, "alone"), BEFORE[1]]
    assert check_table(open_table(storage, clock, "reader")) == []


def test_a_write_by_another_index_that_meets_the_creation_repeats() -> None:
    table, storage, clock = new_table(index=BloomIndex(across_partitions=True))
    upsert(table, BEFORE)
    other, real, once = open_table(storage, clock, "other"), table.timeline.append, iter([True])

    def append(decide: Any, *gather: Any, **more: Any) -> Any:
        if gather and next(once, False):  # the commit
            create_metadata(other, (RECORD_INDEX,))
        return real(decide, *gather, **more)

    table.timeline.append = append  # type: ignore[method-assign]
    assert write_rows(table, rows_of([("c", "p", 2, "new")]), Operation.INSERT, parallelism=1).attempts == 2
    assert check_table(open_table(storage, clock, "reader")) == []
