"""The partition `column_stats` of a shared table's metadata table: which records a step of Tideline adds, and when it drops the
partition."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest
from tests.plans import schedule_clean
from tests.simulation.metadata_reader import check_readers_miss_nothing, data_for_readers
from tests.unit.table.coordination.shared.test_shared_metadata import COLUMNS, FIRST, KEPT, ONLY_FILES, kept_table, sound
from tests.unit.table.hudi_metadata import make_metadata
from tests.unit.table.shared import opened, put
from tests.unit.table.tables import contents, set_properties

from tideline_table.action import check_table, run_clean, write_rows
from tideline_table.config import COLUMN_STATISTICS, COLUMN_STATISTICS_LIST
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.properties import METADATA_PARTITIONS, METADATA_PARTITIONS_INFLIGHT, read_properties
from tideline_table.log.metadata import COLUMN_STATS
from tideline_table.metadata_table.column_stats import record_key
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.metadata_table.index_definitions import index_definitions
from tideline_table.metadata_table.layout import INDEX_DEFINITIONS_PATH, file_path, folder_of
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.storage import Storage
from tideline_table.writer import Operation

NEW = [("a", "p", 2, "2"), ("d", "r", 2, "2")]


def recorded(storage: Storage, path: str, columns: tuple[str, ...] = (*COLUMNS, "part")) -> set[str]:
    """The columns of which a data file has records."""
    held = data_for_readers(storage, COLUMN_STATS)
    return {name for name in columns if record_key(name, path).encode() in held}


def test_a_write_adds_records_in_the_log_files_of_the_slices_that_are_there() -> None:
    table, storage, _ = kept_table()
    before = StoredPartition.read(storage, WRITTEN, COLUMN_STATS, {})
    assert [len(group.logs) for group in before.groups] == [1, 1]
    done = put(table, NEW)
    after = StoredPartition.read(storage, WRITTEN, COLUMN_STATS, {})
    assert [(group.base, len(group.logs)) for group in after.groups] == [(group.base, 2) for group in before.groups]
    for stat in done.stats:
        assert recorded(storage, stat.path) == {*COLUMNS, "part"}, "all columns that the writer takes statistics of"
    sound(table)


def test_a_writer_that_takes_no_statistics_reads_the_footers_of_its_files() -> None:
    table, storage, _ = kept_table(**{COLUMN_STATISTICS.key: False})
    done = put(table, NEW)
    for stat in done.stats:
        assert recorded(storage, stat.path) == {*COLUMNS}
    sound(table)


def test_a_writer_of_fewer_columns_reads_the_footers_for_the_others() -> None:
    table, storage, _ = kept_table(**{COLUMN_STATISTICS_LIST.key: "ts"})
    done = put(table, NEW)
    assert recorded(storage, done.stats[0].path) == {*COLUMNS}
    sound(table)


def test_a_file_without_statistics_of_one_indexed_column_has_no_record_at_all() -> None:
    table, storage, clock = kept_table()
    storage.put(INDEX_DEFINITIONS_PATH, index_definitions(WRITTEN, (*COLUMNS, "struct.inner")))
    done = put(table, NEW)
    for stat in done.stats:
        assert recorded(storage, stat.path) == set()
    check_readers_miss_nothing(storage)
    assert check_table(opened(storage, clock, **KEPT)) == [], "readers do not leave the files out"


def test_a_clean_deletes_the_records_of_its_files() -> None:
    table, storage, clock = kept_table()
    stats = [stat for ts in (2, 3, 4) for stat in put(table, [("a", "p", ts, str(ts))]).stats]
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    gone = [stat.path for stat in stats if not recorded(storage, stat.path)]
    assert gone
    there = {found.path for found in storage.list_objects("p")}
    assert all((path in there) == (path not in gone) for path in (stat.path for stat in stats))
    sound(table)


def test_a_value_beyond_a_record_is_found_by_the_check() -> None:
    table, storage, clock = kept_table()
    other, elsewhere, _ = kept_table()
    done = put(table, [("a", "p", 9, "9")])
    wrong = {g.file_id: g for g in StoredPartition.read(storage, WRITTEN, COLUMN_STATS, {}).groups}
    put(other, [("a", "p", 2, "2")])
    assert [stat.path for stat in done.stats] == [f.path for f in other.state.latest_slices() if "p/" in f.path]
    for group in StoredPartition.read(elsewhere, WRITTEN, COLUMN_STATS, {}).groups:
        storage.put(file_path(wrong[group.file_id].logs[-1], COLUMN_STATS), elsewhere.read(file_path(group.logs[-1], COLUMN_STATS)))
    findings = check_table(opened(storage, clock))
    assert {f.kind for f in findings} == {FindingKind.WRONG_RECORD}
    assert "column_stats says that ts has values from 1 to 2, its footer from 1 to 9" in {f.found for f in findings}


def test_a_column_that_apache_hudi_indexes_later_has_records() -> None:
    """Its readers would take it for one of nulls only in files that have records of other columns."""
    table, storage, clock = kept_table(columns=COLUMNS[:-1])
    done = put(table, NEW)
    assert recorded(storage, done.stats[0].path) >= {"v"}
    storage.put(INDEX_DEFINITIONS_PATH, index_definitions(WRITTEN, COLUMNS))
    findings = check_table(opened(storage, clock))
    assert {f.path for f in findings}.isdisjoint({stat.path for stat in done.stats})
    assert {f.kind for f in findings} == {FindingKind.WRONG_RECORD}, "files of before, of which Apache Hudi took fewer columns"


@pytest.mark.parametrize("what", ["no definition", "other version", "no columns", "strange file", "no group 0", "lost base file"])
def test_a_partition_that_is_not_understood_is_dropped(what: str, caplog: pytest.LogCaptureFixture) -> None:
    table, storage, _ = kept_table()
    definition = storage.read(INDEX_DEFINITIONS_PATH)
    group = StoredPartition.read(storage, WRITTEN, COLUMN_STATS, {}).groups[0]
    if what == "no definition":
        storage.delete(INDEX_DEFINITIONS_PATH)
    elif what == "other version":
        storage.put(INDEX_DEFINITIONS_PATH, definition.replace(b'"V1"', b'"V2"'))
    elif what == "no columns":
        storage.put(INDEX_DEFINITIONS_PATH, index_definitions(WRITTEN, ()))
    elif what == "strange file":
        storage.put(file_path("x", COLUMN_STATS), b"")
    elif what == "no group 0":
        for name in (group.base_file, *group.logs):
            storage.delete(file_path(name, COLUMN_STATS))
    else:
        newer = f"{group.base[:-1]}1001"
        for name in (group.base_file, *group.logs):
            content = storage.read(file_path(name, COLUMN_STATS))
            storage.delete(file_path(name, COLUMN_STATS))
            if name.startswith("."):
                storage.put(file_path(name.replace(group.base, newer), COLUMN_STATS), content)
    with caplog.at_level(logging.WARNING):
        put(table, NEW)
    assert "dropping column_stats from the metadata table, and Apache Hudi's next writer makes it anew" in caplog.text
    assert not list(storage.list_objects(folder_of(COLUMN_STATS)))
    sound(table, "bloom_filters,files")


def test_a_partition_that_is_being_built_is_dropped() -> None:
    table, storage, _ = kept_table()
    set_properties(storage, {**read_properties(storage), METADATA_PARTITIONS_INFLIGHT: COLUMN_STATS})
    put(table, NEW)
    sound(table, "bloom_filters,files")
    assert not read_properties(storage)[METADATA_PARTITIONS_INFLIGHT]


def test_it_is_not_missed_before_apache_hudi_makes_it() -> None:
    table, storage, clock = kept_table(columns=())
    put(table, NEW)
    sound(table, "files")
    storage.delete_below(".hoodie/metadata")
    make_metadata(opened(storage, clock, **KEPT), COLUMNS)
    put(opened(storage, clock, **KEPT), [("a", "p", 3, "3")])
    sound(table)


def test_it_is_dropped_by_a_writer_with_another_option() -> None:
    _, storage, clock = kept_table()
    put(opened(storage, clock, **ONLY_FILES), NEW)
    assert read_properties(storage)[METADATA_PARTITIONS] == "files"


def test_a_new_column_of_tideline_and_one_that_a_file_lacks() -> None:
    table, storage, clock = kept_table(**{"hoodie.datasource.write.reconcile.schema": True})
    wide = pa.table({"id": ["a", "e"], "part": ["p", "r"], "ts": [5, 5], "v": ["5", "5"], "w": [1.5, float("nan")]})
    clock.advance(1)
    write_rows(table, wide, Operation.UPSERT, parallelism=1)
    storage.put(INDEX_DEFINITIONS_PATH, index_definitions(WRITTEN, (*COLUMNS, "w")))
    put(table, [("b", "p", 6, "6"), ("z", "z", 6, "6")])
    assert check_table(opened(storage, clock)) == []
    assert contents(opened(storage, clock))[:1] != FIRST[:1]
