"""What a resize of buckets leaves when its process dies after the commit is completed by the next writer, and by recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.faults import covering
from tests.simulation.starting_point import Prepared
from tests.simulation.starting_point import place as copy_with_clock
from tests.unit.table.action.write.test_partition_resize import AFTER, BEFORE, LARGER, check_places
from tests.unit.table.index.test_partition_buckets import EXPRESSIONS, KEYS, RULES, rows
from tests.unit.table.tables import DEATH_S, contents, new_table, open_table, set_properties, write

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, create_metadata, drop_metadata, resize_buckets, roll_back_dead
from tideline_table.action.metadata import run as index
from tideline_table.action.write import resize
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.shared.partition_numbers import newest_rules
from tideline_table.errors import StorageError, UnsupportedTable
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket import RESIZING
from tideline_table.index.bucket_properties import with_numbers
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import BucketIndex, Table, TableDefinition, TableType, bucket_numbers, share_table
from tideline_table.writer import Operation

INDEX_TYPE = "hoodie.index.type"
NEXT = "^a,32;b$,8"
AFTER_NEXT = {"a1": 32, "xb": 8, "c": 4}
SHARING = Sharing(HudiLockKind.STORAGE, expire_min=5)
WRITERS: dict[str, Callable[[Table], object]] = {
    "upsert": lambda table: write(table, rows(KEYS[:9], 9, "z")),
    "delete": lambda table: write(table, rows(KEYS[:9], 9, "z"), Operation.DELETE),
    "recovery": roll_back_dead,
    "clean": schedule_clean,
    "clustering": schedule_clustering,
    "resize": lambda table: resize_buckets(table, partition_buckets=_newest_rules(table)),
    "share": lambda table: share_table(table, SHARING, open_hudi_lock),
}
Change = Callable[[dict[str, str]], Mapping[str, str]]


@cache
def prepared() -> Prepared:
    """The table is made once; each test gets a copy."""
    found, storage, clock = new_table(type=TableType.MOR, index=BucketIndex(4, partition_buckets=RULES))
    write(found, rows(KEYS[:60], 1, "a"))
    assert isinstance(storage, MemoryStorage)
    return storage, clock.monotonic_s()


@cache
def resized() -> Prepared:
    """The table after a resize whose process died right after its commit."""
    _, storage, clock = copy_with_clock(prepared())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "settle", lambda _: None)
        assert resize_buckets(open_table(storage, clock), partition_buckets=LARGER) is not None
    assert RESIZING in read_properties(storage)
    return storage, clock.monotonic_s()


@pytest.fixture
def table() -> Table:
    _, storage, clock = copy_with_clock(prepared())
    return open_table(storage, clock)


@pytest.fixture
def left() -> Table:
    _, storage, clock = copy_with_clock(resized())
    return open_table(storage, clock)


def begun(table: Table) -> WriteTransaction:
    """A resize that is under way in another process, and has just begun."""
    other = open_table(table.storage, table.clock, "resizer")
    operation = bucket_numbers.RESIZE_OPERATION
    return WriteTransaction.begin(other.timeline, other.lock, operation.hudi_name, other.write_action(replaces=True))


def _newest_rules(table: Table) -> str:
    found = table.refresh().bucket_resize()
    assert found is not None
    return found.rules.removesuffix(";.*,4")


def check_complete(table: Table, expressions: str = f"{LARGER};.*,4") -> None:
    properties, newest = read_properties(table.storage), newest_rules(table.storage, table.timeline.format)[0]
    assert (properties[INDEX_TYPE], properties[EXPRESSIONS], RESIZING in properties) == ("BUCKET", expressions, False)
    assert (newest.expressions, newest.number) == (expressions, 4)


@pytest.mark.parametrize(("writer", "was_open"), covering(1, WRITERS, [False, True]))
def test_each_writer_completes_it(left: Table, writer: str, *, was_open: bool) -> None:
    WRITERS[writer](left if was_open else open_table(left.storage, left.clock, "next"))
    check_complete(left)
    check_places(open_table(left.storage, left.clock, "last"), AFTER)


@pytest.mark.parametrize(("writer", "was_open"), covering(1, WRITERS, [True, False]))
def test_each_writer_completes_properties_with_earlier_numbers(
    left: Table, monkeypatch: pytest.MonkeyPatch, writer: str, *, was_open: bool
) -> None:
    """A process completes the resize `left` slowly: its put comes just before the commit of the next resize, then the store
    fails."""
    commit = WriteTransaction.commit
    declared = TableDefinition.from_properties(read_properties(left.storage)).resized(left.state.bucket_resize()).buckets
    assert declared is not None
    opened = open_table(left.storage, left.clock, "next") if was_open else None

    def late(*args: Any, **more: Any) -> Any:
        kept = {key: value for key, value in read_properties(left.storage).items() if key != RESIZING}
        set_properties(left.storage, {**kept, **declared.properties})
        return commit(*args, **more)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    monkeypatch.setattr(resize, "settle", lambda _: None)
    assert resize_buckets(left, partition_buckets=NEXT) is not None
    monkeypatch.undo()
    assert (read_properties(left.storage)[EXPRESSIONS], RESIZING in read_properties(left.storage)) == (f"{LARGER};.*,4", False)
    reader = open_table(left.storage, left.clock, "reader")
    for key in KEYS[:60]:
        assert reader.read(where=f"id = '{key}'").num_rows == 3, "queries leave out buckets by the numbers of the log"
    WRITERS[writer](opened or open_table(left.storage, left.clock, "next"))
    check_complete(left, f"{NEXT};.*,4")
    check_places(open_table(left.storage, left.clock, "last"), AFTER_NEXT)


def test_earlier_numbers_are_hidden_while_the_next_resize_is_pending(left: Table) -> None:
    earlier = with_numbers(read_properties(left.storage), 4, f"{RULES};.*,4")
    at_work = begun(left)
    set_properties(left.storage, earlier)
    found = open_table(left.storage, left.clock, "next")
    write(found, rows(KEYS[:9], 9, "z"))
    assert RESIZING in read_properties(left.storage)
    assert INDEX_TYPE not in read_properties(left.storage)
    at_work.roll_back()
    write(found, rows(KEYS[:9], 10, "z"))
    check_complete(left)


def test_share_refuses_earlier_numbers_that_cannot_be_replaced(left: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """To Apache Hudi's writers, they would be the numbers of the table."""
    found = open_table(left.storage, left.clock, "next")
    set_properties(left.storage, with_numbers(read_properties(left.storage), 4, f"{RULES};.*,4"))

    def fails(*_: Any) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(bucket_numbers, "change_properties", fails)
    with pytest.raises(UnsupportedTable, match="being resized"):
        share_table(found, SHARING, open_hudi_lock)
    monkeypatch.undo()
    share_table(found, SHARING, open_hudi_lock)
    check_complete(left)


def test_a_resize_under_way_keeps_the_index_hidden_until_it_ends(left: Table) -> None:
    at_work = begun(left)
    found = open_table(left.storage, left.clock, "next")
    write(found, rows(KEYS[:9], 9, "z"))
    assert roll_back_dead(found) == []
    assert RESIZING in read_properties(left.storage)
    with pytest.raises(UnsupportedTable, match="being resized"):
        share_table(found, SHARING, open_hudi_lock)
    at_work.roll_back()
    write(found, rows(KEYS[:9], 10, "z"))
    check_complete(left)


def test_recovery_rolls_back_a_resize_and_restores_its_properties(table: Table) -> None:
    before = read_properties(table.storage)
    died = begun(table)
    bucket_numbers.hide_index(table.timeline)
    died.abandon()
    table.clock.advance(DEATH_S)  # type: ignore[attr-defined]
    found = open_table(table.storage, table.clock, "next")
    write(found, rows(KEYS[:9], 9, "z"))
    assert RESIZING in read_properties(table.storage), "to this writer, the resize may still commit"
    assert roll_back_dead(found) == [died.instant]
    assert read_properties(table.storage) == before
    check_places(found, BEFORE)


def test_a_resize_that_begins_during_a_completion_is_hidden_again(left: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    change, at_work = bucket_numbers.change_properties, []

    def late(storage: Storage, changed: Change) -> bool:
        if not at_work:
            at_work.append(begun(left))  # it finds the index hidden
        return change(storage, changed)

    monkeypatch.setattr(bucket_numbers, "change_properties", late)
    found = open_table(left.storage, left.clock, "next")
    write(found, rows(KEYS[:9], 9, "z"))
    assert at_work
    assert RESIZING in read_properties(left.storage)
    assert INDEX_TYPE not in read_properties(left.storage)
    at_work[0].roll_back()
    write(found, rows(KEYS[:9], 10, "z"))
    check_complete(left)


def test_a_resize_hides_the_index_again_before_its_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that completes an earlier resize may be slow: its properties arrive while the next one is at work."""
    slow, move, commit, seen = read_properties(table.storage), resize._Resize._move, WriteTransaction.commit, []

    def late(*args: Any) -> Any:
        set_properties(table.storage, slow)
        return move(*args)

    def committed(*args: Any, **more: Any) -> Any:
        seen.append(read_properties(table.storage))
        return commit(*args, **more)

    monkeypatch.setattr(resize._Resize, "_move", late)
    monkeypatch.setattr(WriteTransaction, "commit", committed)
    assert resize_buckets(table, partition_buckets=LARGER) is not None
    assert seen
    assert all(RESIZING in found and INDEX_TYPE not in found for found in seen)
    check_complete(table)


def test_a_completion_that_fails_is_no_obstacle_to_the_write(left: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(bucket_numbers, "change_properties", fails)
    found = open_table(left.storage, left.clock, "next")
    write(found, rows(KEYS[:9], 9, "z"))
    assert sum(r[3] == "z" for r in contents(left)) == 0
    left.refresh()
    assert sum(r[3] == "z" for r in contents(left)) == 27
    monkeypatch.undo()
    write(found, rows(KEYS[:9], 10, "z"))
    check_complete(left)


def test_completions_at_once_agree(left: Table) -> None:
    for name in ("one", "two"):
        found = open_table(left.storage, left.clock, name)
        assert found.identity is not None
        assert bucket_numbers.complete_resize(found.timeline, found.identity)
    check_complete(left)


def dead_resize(table: Table) -> WriteTransaction | None:
    """A whole resize in another process that dies right after its commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "settle", lambda _: None)
        assert resize_buckets(open_table(table.storage, table.clock, "resizer"), partition_buckets=LARGER) is not None
    return None


@pytest.mark.parametrize("other", [begun, dead_resize])
@pytest.mark.parametrize("step", [1, 2])
def test_share_refuses_a_resize_that_begins_beside_it(
    table: Table, monkeypatch: pytest.MonkeyPatch, other: Callable[[Table], WriteTransaction | None], step: int
) -> None:
    """It hides the index after its begin. In a shared table, it could neither commit nor name the index again."""
    append, at_work, steps = table.timeline.append, [], []

    def late(*args: Any, **more: Any) -> Any:
        steps.append(1)
        if len(steps) == step:
            at_work.append(other(table))
        return append(*args, **more)

    monkeypatch.setattr(table.timeline, "append", late)
    with pytest.raises(UnsupportedTable, match="being resized"):
        share_table(table, SHARING, open_hudi_lock)
    monkeypatch.undo()
    bucket_numbers.hide_index(table.timeline)
    found = open_table(table.storage, table.clock, "next")
    assert found.capabilities.log_is_truth
    if at_work[0] is not None:
        at_work[0].roll_back()
    table.clock.advance(DEATH_S)  # type: ignore[attr-defined]
    roll_back_dead(found)
    assert not list(found.state.pending())
    share_table(found, SHARING, open_hudi_lock)
    assert open_table(table.storage, table.clock, "last").sharing is not None
    properties = read_properties(table.storage)
    rules = LARGER if at_work[0] is None else RULES
    assert (properties[INDEX_TYPE], properties[EXPRESSIONS], RESIZING in properties) == ("BUCKET", f"{rules};.*,4", False)


PARTITIONS = "hoodie.table.metadata.partitions"


@pytest.mark.parametrize("hides", [False, True], ids=["completes", "hides"])
@pytest.mark.parametrize(
    ("act", "had", "has"),
    [
        (create_metadata, "", "files"),
        (drop_metadata, "files", ""),
        (lambda table: create_metadata(table, ["column_stats"]), "files", "column_stats,files"),
        (lambda table: drop_metadata(table, ["column_stats"]), "column_stats,files", "files"),
        (lambda table: index._clear(table, "files"), "files", ""),
    ],
    ids=["create", "drop", "add", "remove", "drop that dies"],
)
def test_a_change_of_the_metadata_table_beside_it_stays(
    table: Table, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], object], had: str, has: str, *, hides: bool
) -> None:
    """It comes between the reading of `hoodie.properties` and the put."""
    if had:
        create_metadata(table, had.split(","))
    if not hides:
        dead_resize(table)
    assert read_properties(table.storage).get(PARTITIONS, "") == had
    change, acted = bucket_numbers.change_properties, []

    def late(storage: Storage, changed: Change) -> bool:
        def behind_the_other(found: dict[str, str]) -> Mapping[str, str]:
            if not acted:
                acted.append(open_table(storage, table.clock, "indexer"))
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Table, "complete_resize", lambda _: None)
                    act(acted[0])
                assert read_properties(storage).get(PARTITIONS, "") == has
            return changed(found)

        return change(storage, behind_the_other)

    monkeypatch.setattr(bucket_numbers, "change_properties", late)
    if hides:
        bucket_numbers.hide_index(begun(table).timeline)
    else:
        write(open_table(table.storage, table.clock, "next"), rows(KEYS[:9], 9, "z"))
    assert acted
    assert read_properties(table.storage).get(PARTITIONS, "") == has
    if has:
        assert check_table(open_table(table.storage, table.clock, "checker")) == []
    if not hides:
        check_complete(table)


def test_a_partition_whose_drop_died_is_not_named_again(table: Table) -> None:
    """Part of its folder may be deleted."""
    create_metadata(table)
    set_properties(table.storage, {**read_properties(table.storage), PARTITIONS: ""})
    assert resize_buckets(table, partition_buckets=LARGER) is not None
    assert read_properties(table.storage)[PARTITIONS] == ""
