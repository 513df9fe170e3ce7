"""The metadata table of a table that Apache Hudi's writers share: kept up with each step, or turned off."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.metadata_reader import check_readers_miss_nothing, is_used
from tests.unit.table.hudi_metadata import dying, make_metadata
from tests.unit.table.shared import SHARING, opened, put, shared_table
from tests.unit.table.tables import DEATH_S, cluster, contents

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, delete_partitions, repair_metadata, roll_back_dead, run_clean
from tideline_table.clock import ManualClock
from tideline_table.config import SHARED_METADATA, WRITE_RETRIES
from tideline_table.coordination.shared import metadata
from tideline_table.coordination.shared import timeline as shared_timeline
from tideline_table.errors import CorruptMetadata, InvalidOption, TransactionRolledBack, UnsupportedTable
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.metadata_table import StoredMetadata
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.metadata_table.instant_files import begin_instant, complete_instant
from tideline_table.metadata_table.layout import file_path
from tideline_table.storage import Storage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

FIRST = [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")]
ONLY_FILES = {SHARED_METADATA.key: "files"}
KEPT = {SHARED_METADATA.key: "files,column_stats,bloom_filters"}
COLUMNS = ("_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key", "id", "ts", "v")
WHOLE = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9}


def kept_table(
    kind: TableType = TableType.COW,
    columns: Sequence[str] = COLUMNS,
    kept: Mapping[str, str] = KEPT,
    *,
    with_keys: bool = False,
    **options: Any,
) -> tuple[Table, Storage, ManualClock]:
    """A shared table with three rows, and a metadata table that Tideline's writers keep, with statistics of `columns`."""
    shared, storage, clock = shared_table(kind)
    put(shared, FIRST)
    table = opened(storage, clock, **kept, **options)
    make_metadata(table, columns, with_keys=with_keys)
    return table, storage, clock


def sound(table: Table, partitions: str = "bloom_filters,column_stats,files") -> None:
    """Readers use the metadata table, miss nothing in it, and find nothing else in it."""
    assert read_properties(table.storage)[METADATA_PARTITIONS] == partitions
    check_readers_miss_nothing(table.storage)
    assert check_table(table) == []


def test_each_action_is_followed() -> None:
    table, storage, clock = kept_table()
    steps = 3
    for rows, operation in (
        ([("a", "p", 2, "2"), ("d", "r", 2, "2")], Operation.UPSERT),
        ([("e", "p", 2, "2")], Operation.BULK_INSERT),
        ([("b", "p", 3, "3")], Operation.DELETE),
        ([("c", "q", 4, "4")], Operation.INSERT_OVERWRITE),
    ):
        put(table, rows, operation)
        steps += 1
        sound(table)
    clock.advance(1)
    assert schedule_clustering(table, WHOLE)
    assert cluster(table)
    steps += 1
    sound(table)
    for ts in (6, 7, 8):
        put(table, [("a", "p", ts, str(ts))])
        steps += 1
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    steps += 1
    sound(table)
    assert StoredMetadata.read(storage, WRITTEN).deltas == steps
    assert contents(table) == [("a", "p", 8, "8"), ("c", "q", 4, "4"), ("d", "r", 2, "2"), ("e", "p", 2, "2")]


def test_a_clean_ends_a_partition_without_files() -> None:
    table, storage, clock = kept_table()
    clock.advance(1)
    delete_partitions(table, ["q"])
    put(table, [("a", "p", 2, "2")])
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    sound(table)
    found = StoredMetadata.read(storage, WRITTEN).read_files(storage, frozenset())
    assert (found.partitions, set(found.files)) == ({"p": 0}, {"p"})


def test_it_is_turned_off_without_the_option() -> None:
    _, storage, clock = kept_table()
    put(opened(storage, clock), [("a", "p", 2, "2")])
    assert not is_used(storage)
    assert not list(storage.list_objects(".hoodie/metadata"))


def test_that_of_a_merge_on_read_table_is_turned_off() -> None:
    """Apache Hudi's writers make it wrong themselves: see `coordination.shared.metadata`."""
    table, storage, _ = kept_table(TableType.MOR)
    assert is_used(storage)
    put(table, [("a", "p", 2, "2")])
    assert not is_used(storage)
    assert table.hudi_options()["hoodie.metadata.enable"] == "false"


def test_other_partitions_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    table, storage, _ = kept_table(kept=ONLY_FILES)
    with caplog.at_level(logging.WARNING):
        put(table, [("a", "p", 2, "2")])
    assert "the options that 'tideline share PATH --metadata files' prints" in caplog.text
    assert not list(storage.list_objects(".hoodie/metadata/column_stats"))
    sound(table, "files")


def test_a_step_that_is_not_followed_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, _ = kept_table()
    monkeypatch.setattr(shared_timeline, "follow_step", lambda *_: False)
    put(table, [("a", "p", 2, "2")])
    findings = check_table(table)
    assert {found.kind for found in findings} == {FindingKind.NOT_LISTED}
    assert len({found.path for found in findings}) == 1
    assert "no record in column_stats" in {found.found for found in findings}
    with pytest.raises(AssertionError, match="is not listed"):
        check_readers_miss_nothing(storage)
    with pytest.raises(UnsupportedTable, match="Apache Hudi also writes"):
        repair_metadata(table)


def test_what_a_check_finds_in_files() -> None:
    table, storage, _ = kept_table()
    done = put(table, [("a", "p", 2, "2"), ("d", "r", 2, "2")])
    wrong, gone = sorted(stat.path for stat in done.stats)
    storage.put(wrong, b"?")
    storage.delete(gone)
    assert {(found.kind, found.path) for found in check_table(table)} == {
        (FindingKind.DAMAGED_DATA, wrong),
        (FindingKind.GONE, gone),
    }
    (group,) = StoredMetadata.read(storage, WRITTEN).files.groups
    log = group.logs[-1]
    storage.delete(file_path(group.base_file))
    assert FindingKind.DAMAGED_FILE in {found.kind for found in check_table(table)}
    assert log.startswith(".files-0000-0_")


@pytest.mark.parametrize("at", range(5))
def test_a_writer_that_dies_in_its_delta_commit_costs_the_metadata_table_at_most(at: int) -> None:
    table, storage, clock = kept_table()
    with dying(at):
        put(table, [("a", "p", 2, "2"), ("d", "r", 2, "2")])
    sound(table)
    clock.advance(DEATH_S)
    later = opened(storage, clock, "later", **KEPT)
    assert roll_back_dead(later)
    if at == 0:
        sound(later)
    else:
        assert not is_used(storage)
    put(later, [("a", "p", 3, "3")])
    assert contents(later) == [("a", "p", 3, "3"), *FIRST[1:]]


@pytest.mark.parametrize("at", range(1, 5))
def test_an_attempt_at_a_clean_that_died_turns_it_off_when_the_clean_is_run_again(at: int) -> None:
    table, storage, clock = kept_table()
    for ts in (2, 3, 4):
        put(table, [("a", "p", ts, str(ts))])
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    with dying(at):
        run_clean(table)
    clock.advance(DEATH_S)
    later = opened(storage, clock, "later", **KEPT)
    assert run_clean(later)
    assert not is_used(storage)
    assert contents(later) == [("a", "p", 4, "4"), *FIRST[1:]]


def test_a_late_delta_commit_of_a_write_that_was_rolled_back_turns_it_off(caplog: pytest.LogCaptureFixture) -> None:
    table, storage, clock = kept_table()
    with dying(0):
        put(table, [("a", "p", 2, "2")])
    clock.advance(DEATH_S)
    later = opened(storage, clock, "later", **KEPT)
    (undone,) = roll_back_dead(later)
    sound(later)
    begin_instant(storage, WRITTEN, undone, Action.DELTA_COMMIT)
    complete_instant(storage, WRITTEN, undone, Action.DELTA_COMMIT, CommitMetadata("UPSERT_PREPPED", ()))
    put(later, [("a", "p", 3, "3")])
    assert f"the writer of {undone}, which was rolled back, made its delta commit late" in caplog.text
    assert not is_used(storage)


@pytest.mark.parametrize("is_undone", [False, True])
def test_a_delta_commit_during_which_the_lock_was_lost_turns_it_off(is_undone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = kept_table()
    follow, taken = shared_timeline.follow_step, []

    def slowly(*arguments: Any) -> bool:
        followed = follow(*arguments)
        if followed and not taken:
            taken.append(arguments[3].instant)
            (lock,) = (o.path for o in storage.list_objects(".hoodie/.locks"))
            storage.delete(lock)
            clock.advance(60 * SHARING.expire_min)
            if is_undone:
                # As Apache Hudi, which sees no delta commit yet.
                for state in ("inflight", "commit.requested"):
                    storage.delete(f".hoodie/{taken[0]}.{state}")
        return followed

    monkeypatch.setattr(shared_timeline, "follow_step", slowly)
    if is_undone:
        with pytest.raises(TransactionRolledBack):
            put(table, [("a", "p", 2, "2")], **{WRITE_RETRIES.key: 0})
        assert contents(table) == FIRST
    else:
        put(table, [("a", "p", 2, "2")])
        assert contents(table) == [("a", "p", 2, "2"), *FIRST[1:]]
    assert not is_used(storage)


def test_it_is_turned_off_when_no_hudi_writer_compacts_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table, storage, _ = kept_table()
    monkeypatch.setattr(metadata, "_MOST_DELTAS", 5)
    for ts in (2, 3):
        put(table, [("a", "p", ts, str(ts))])
        sound(table)
    put(table, [("a", "p", 4, "4")])
    assert "5 delta commits were made since Apache Hudi compacted it" in caplog.text
    assert not is_used(storage)


@pytest.mark.parametrize(
    "name", [".files-0000-0_20260101000000000.log.1", "files-0000-0_0-0-0_20260101000000000010001001.hfile", "x"]
)
def test_files_that_are_not_understood_turn_it_off(name: str) -> None:
    table, storage, _ = kept_table()
    storage.put(file_path(name), b"")
    if name.startswith("."):
        sound(table)  # an older slice
        return
    with pytest.raises(CorruptMetadata, match="in the metadata table"):
        StoredMetadata.read(storage, WRITTEN)
    put(table, [("a", "p", 2, "2")])
    assert not is_used(storage)


def test_hudi_writers_are_given_the_options_that_fit() -> None:
    _, storage, clock = shared_table()
    assert opened(storage, clock).hudi_options()["hoodie.metadata.enable"] == "false"
    kept = opened(storage, clock, **KEPT).hudi_options()
    assert (kept["hoodie.metadata.enable"], kept["hoodie.metadata.index.column.stats.enable"]) == ("true", "true")
    assert opened(storage, clock, **ONLY_FILES).hudi_options()["hoodie.metadata.index.column.stats.enable"] == "false"
    assert kept.items() >= {k: v for k, v in SHARING.hudi_options(WRITTEN).items() if k != "hoodie.metadata.enable"}.items()
    for wrong in ("all", "off,files", "files,secondary_index", ""):
        with pytest.raises(InvalidOption, match="off or files or column_stats"):
            Table.open(storage.root, options={SHARED_METADATA.key: wrong}, clock=clock, storage=storage, hudi_lock=open_hudi_lock)
