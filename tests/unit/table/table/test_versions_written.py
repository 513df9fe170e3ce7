"""Exclusive tables of versions 8 and 9: after each action, the timeline alone says what the table log says.

Each table is read twice: with its log, and as Apache Hudi reads it, from a copy that has no log.
"""

import itertools
import json
import random
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.tables import (
    DEATH_S,
    cluster,
    compact,
    new_table,
    open_table,
    set_properties,
    write,
)

from tideline_table.action import (
    archive,
    cancel_plan,
    cluster_here,
    create_savepoint,
    delete_savepoint,
    restore_to_savepoint,
    roll_back_dead,
    run_clean,
    run_clustering,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidOption, TableFrozen
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.version8.history import read_history
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

VERSIONS = pytest.mark.parametrize("version", [8, 9])
TYPES = pytest.mark.parametrize("kind", list(TableType))
TIMELINE = ".hoodie/timeline"
OWN = ".hoodie/.tideline/"


def as_hudi_reads(table):
    copy = MemoryStorage(clock=table.clock)
    for found in table.storage.list_objects(""):
        if not found.path.startswith(OWN):
            copy.put(found.path, table.storage.read(found.path))
    return Table.open(copy.root, clock=table.clock, storage=copy)


def shown(table, as_of=""):
    return sorted(tuple(row.values()) for row in table.read(["id", "ts", "v"], as_of=as_of).to_pylist())


def slices(table):
    return {(s.group, s.base_instant, s.base_file, tuple(log.name for log in s.log_files)) for s in table.slices()}


def check(table):
    """The rows and slices are the same with the log, after reopening, and without the log; return the rows."""
    again, hudi = open_table(table.storage, table.clock), as_hudi_reads(table)
    rows = shown(table)
    assert rows == shown(again) == shown(hudi)
    assert slices(table) == slices(again) == slices(hudi)
    return rows


def names(table):
    return sorted(found.path.rpartition("/")[2] for found in table.storage.list_folder(TIMELINE).objects)


def completions(table):
    return [name.split(".")[0].split("_") for name in names(table) if "_" in name]


@VERSIONS
@TYPES
def test_rows_are_written_and_read(version, kind):
    table, _, _ = new_table(version=version, type=kind)
    write(table, [("1", "a", 1, "x"), ("2", "a", 1, "x"), ("3", "b", 1, "x")])
    write(table, [("2", "a", 2, "y"), ("4", "b", 1, "x")])
    write(table, [("2", "a", 1, "too late")])
    assert check(table) == [("1", 1, "x"), ("2", 2, "y"), ("3", 1, "x"), ("4", 1, "x")]
    write(table, [("1", "a", 0, "")], Operation.DELETE)
    write(table, [("5", "c", 1, "x")], Operation.INSERT)
    assert check(table) == [("2", 2, "y"), ("3", 1, "x"), ("4", 1, "x"), ("5", 1, "x")]
    write(table, [("9", "a", 1, "z")], Operation.INSERT_OVERWRITE)
    assert check(table) == [("3", 1, "x"), ("4", 1, "x"), ("5", 1, "x"), ("9", 1, "z")]


@VERSIONS
@TYPES
def test_properties_and_metadata_have_the_form_of_the_version(version, kind):
    table, storage, _ = new_table(version=version, type=kind)
    properties = read_properties(storage)
    wanted = {
        "hoodie.table.version": str(version),
        "hoodie.table.initial.version": str(version),
        "hoodie.timeline.layout.version": "2",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.table.ordering.fields": "ts",
    }
    assert wanted.items() <= properties.items()
    # 1.0 knows the payload, the strategy and one ordering field only; version 9 may not name them.
    named = {"hoodie.table.precombine.field", "hoodie.compaction.payload.class", "hoodie.record.merge.strategy.id"}
    assert named & properties.keys() == (named if version == 8 else set())
    write(table, [("1", "a", 1, "x")])
    (completed,) = [name for name in names(table) if "_" in name]
    document = decode_document(storage.read(f"{TIMELINE}/{completed}"), completed)
    (stat,) = document["partitionToWriteStats"]["a"]
    assert (document["operationType"], document["version"], stat["numInserts"]) == ("UPSERT", None, 1)
    assert not storage.list_folder(".hoodie").objects[1:], "only the properties are in the folder of layout 1"


@VERSIONS
def test_log_files_are_named_after_their_writes(version):
    table, _, _ = new_table(version=version, type=TableType.MOR)
    first = write(table, [("1", "a", 1, "x")])
    second = write(table, [("1", "a", 2, "y")])
    ((_, base, _, logs),) = slices(table)
    assert base == first.instant
    assert [f"_{second.instant}.log.1_" in log for log in logs] == [True]


@TYPES
def test_completion_times_increase_under_clocks_that_jump(kind):
    table, storage, clock = new_table(version=9, type=kind)
    random.seed(4)
    for n in range(12):
        clock = ManualClock(clock.now() + timedelta(seconds=random.choice([-3600, -1, 0, 5])))
        table = open_table(storage, clock, f"w{n}")
        write(table, [("1", "a", n, f"v{n}")])
        if kind is TableType.MOR and n % 4 == 3:
            compact(table)
        assert check(table) == [("1", n, f"v{n}")]
    times = completions(table)
    assert all(begun < ended for begun, ended in times)
    assert [ended for _, ended in times] == sorted({ended for _, ended in times})
    everything = sorted(itertools.chain.from_iterable(times))
    assert len(set(everything)) == len(everything), "one clock gives both, so none repeats"
    assert completions(open_table(storage, clock)) == times


def test_a_compaction_takes_what_completed_before_its_plan():
    table, _, _ = new_table(version=9, type=TableType.MOR)
    write(table, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    write(table, [("1", "a", 2, "y")])
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    late = write(table, [("2", "a", 2, "late")])
    assert check(table) == [("1", 2, "y"), ("2", 2, "late")]
    assert compact(table) is not None
    assert check(table) == [("1", 2, "y"), ("2", 2, "late")]
    ((_, _, base, logs),) = slices(table)
    assert base
    assert [late.instant in log for log in logs] == [True]


def test_a_cancelled_compaction_gives_its_log_files_back():
    table, _, _ = new_table(version=9, type=TableType.MOR)
    first = write(table, [("1", "a", 1, "x")])
    write(table, [("1", "a", 2, "y")])
    planned = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    write(table, [("1", "a", 3, "z")])
    cancel_plan(table, planned)
    assert check(table) == [("1", 3, "z")]
    ((_, base, _, logs),) = slices(table)
    assert (base, len(logs)) == (first.instant, 2)
    compact(table)
    assert check(table) == [("1", 3, "z")]


@VERSIONS
@TYPES
def test_a_clustering_has_files_of_its_own_until_it_completes(version, kind):
    table, _, _ = new_table(version=version, type=kind)
    write(table, [("1", "a", 1, "x")], Operation.INSERT)
    write(table, [("2", "a", 1, "x")], Operation.INSERT)
    planned = schedule_clustering(table)
    assert f"{planned}.clustering.requested" in names(table)
    check(table)
    assert cluster(table, planned) is not None
    assert f"{planned}.clustering.inflight" in names(table)
    assert [name for name in names(table) if name.startswith(f"{planned}_")] == [
        f"{planned}_{completion}.replacecommit" for begun, completion in completions(table) if begun == planned
    ]
    write(table, [("1", "a", 2, "y")])
    assert check(table) == [("1", 2, "y"), ("2", 1, "x")]


def test_a_clustering_carries_over_what_completes_beside_it(tmp_path):
    clock = ManualClock()
    table, storage, _ = new_table(clock, LocalStorage(str(tmp_path)), version=9, type=TableType.MOR)
    write(table, [("1", "a", 1, "x"), ("2", "a", 1, "x")], Operation.INSERT)
    write(table, [("3", "a", 1, "x")], Operation.INSERT)
    carries = {"hoodie.clustering.updates.strategy": "carry-over"}
    assert schedule_clustering(table, carries)

    def run(tasks):
        made = cluster_here(tasks)
        writer = open_table(storage, clock, "writer")
        write(writer, [("1", "a", 2, "y")])
        write(writer, [("2", "a", 0, "")], Operation.DELETE)
        return made

    assert run_clustering(table, options=carries, run=run) is not None
    assert check(table) == [("1", 2, "y"), ("3", 1, "x")]
    ((_, _, base, logs),) = slices(table)
    assert base
    assert len(logs) == 2


@TYPES
def test_a_clean_deletes_older_slices(kind):
    table, storage, _ = new_table(version=9, type=kind)
    for n in range(5):
        write(table, [("1", "a", n, f"v{n}")])
        if kind is TableType.MOR:
            compact(table)
    before = len(list(storage.list_objects("a")))
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table) is not None
    assert len(list(storage.list_objects("a"))) < before
    assert check(table) == [("1", 4, "v4")]


@TYPES
def test_a_rollback_deletes_the_files_of_a_dead_write(kind):
    table, storage, clock = new_table(version=9, type=kind)
    write(table, [("1", "a", 1, "x")])
    known = {found.path for found in storage.list_objects("a")}
    dead = WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action())
    dead.abandon()
    clock.advance(DEATH_S)
    (rollback,) = roll_back_dead(open_table(storage, clock))
    assert rollback
    table.refresh()
    assert not [name for name in names(table) if name.startswith(dead.instant)]
    assert {found.path for found in storage.list_objects("a")} == known
    write(table, [("1", "a", 2, "y")])
    assert check(table) == [("1", 2, "y")]


@TYPES
def test_a_restore_deletes_every_file_of_what_it_undoes(kind):
    table, _, _ = new_table(version=9, type=kind)
    saved = write(table, [("1", "a", 1, "x")]).instant
    create_savepoint(table, saved)
    times = dict(completions(table))
    ((savepoint, late),) = [(a, b) for a, b in completions(table) if f"{a}_{b}.savepoint" in names(table)]
    assert (savepoint, times[saved] <= late) == (saved, True)
    write(table, [("1", "a", 2, "y")])
    if kind is TableType.MOR:
        compact(table)
        write(table, [("1", "a", 3, "z")])
    undone = write(table, [("2", "b", 1, "x")]).instant
    create_savepoint(table, undone)
    restore_to_savepoint(table, saved)
    assert check(table) == [("1", 1, "x")]
    assert {name.split(".")[0].split("_")[0] for name in names(table) if not name.endswith(("restore", "restore.requested"))} >= {
        saved
    }
    assert not [name for name in names(table) if name.startswith(undone)]
    write(table, [("1", "a", 2, "again")])
    delete_savepoint(table, saved)
    assert not [name for name in names(table) if "savepoint" in name]
    create_savepoint(table, saved)
    assert len([name for name in names(table) if name.endswith(".savepoint")]) == 1
    assert check(table) == [("1", 2, "again")]


ARCHIVAL = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "tideline.archive.min.age": 0,
}


@TYPES
def test_archived_instants_go_into_the_history(kind):
    table, storage, _ = new_table(version=9, type=kind)
    for n in range(30):
        write(table, [("1", "a", n, f"v{n}")])
        if kind is TableType.MOR and n % 5 == 4:
            compact(table)
        schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
        run_clean(table)
        archive(table, ARCHIVAL)
    assert check(table) == [("1", 29, "v29")]
    folder = f"{TIMELINE}/history"
    instants = read_history(storage, folder)
    assert len(instants) > 20
    assert all(i.time < i.completion for i in instants)
    assert {i.time for i in instants}.isdisjoint(begun for begun, _ in completions(table))
    held = {found.path.rpartition("/")[2] for found in storage.list_folder(folder).objects}
    number = storage.read(f"{folder}/_version_").decode()
    assert f"manifest_{number}" in held
    assert len([name for name in held if name.startswith("manifest_")]) == 3
    named = {entry["fileName"] for entry in json.loads(storage.read(f"{folder}/manifest_{number}"))["files"]}
    assert any(name.endswith("_1.parquet") for name in named), "ten files became one of the next layer"
    assert named <= held
    for name in named:
        rows = pq.read_table(storage.open_input(f"{folder}/{name}")).to_pylist()
        if name.endswith("_0.parquet"):
            assert [row["instantTime"] for row in rows] == sorted(row["instantTime"] for row in rows)
        assert all(row["metadata"] and row["version"] == 1 for row in rows)
        assert all((row["plan"] is not None) == (row["action"] == "clean") for row in rows if row["action"] != "commit")


def test_archived_instants_are_older_than_every_instant_that_stays():
    """Apache Hudi takes a write behind the first instant of the timeline, even a rollback, for pending if it is not there."""
    table, storage, _ = new_table(version=9, type=TableType.MOR)
    write(table, [("1", "a", 0, "v0")])
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
    for n in range(1, 12):
        write(table, [("1", "a", n, f"v{n}")])
        if n % 3 == 0:
            compact(table)
            schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
            run_clean(table)
        archive(table, {**ARCHIVAL, "tideline.task.max.lifetime": 0})
        left = {name.split(".")[0].split("_")[0] for name in names(table)} - {""}
        archived = {i.time for i in read_history(storage, f"{TIMELINE}/history")}
        assert not archived or max(archived) < min(left)
        assert check(table) == [("1", n, f"v{n}")]
    assert {i.action for i in read_history(storage, f"{TIMELINE}/history")} == {"deltacommit", "commit", "clean", "rollback"}


def test_a_version_that_is_not_written_is_refused_by_name():
    with pytest.raises(InvalidOption, match="table version 7"):
        new_table(version=7)


def test_version_6_is_the_default():
    _, storage, _ = new_table()
    assert read_properties(storage)["hoodie.table.version"] == str(WRITTEN.version) == "6"
    assert "hoodie.table.initial.version" not in read_properties(storage)


def test_a_table_of_another_version_than_it_was_created_in_is_read_by_its_timeline():
    """Apache Hudi brought a table of version 9 to version 8, which changes its properties only."""
    table, storage, clock = new_table(version=9)
    write(table, [("1", "a", 1, "x")])
    set_properties(storage, {**read_properties(storage), "hoodie.table.version": "8"})
    with pytest.raises(TableFrozen, match="version 8 with timeline layout 2"):
        write(table, [("1", "a", 2, "y")])
    assert shown(open_table(storage, clock)) == [("1", 1, "x")]


def test_an_instant_of_another_writer_stops_writers():
    table, storage, _ = new_table(version=9)
    write(table, [("1", "a", 1, "x")])
    storage.put(f"{TIMELINE}/29990101000000000.commit.requested", b"")
    with pytest.raises(TableFrozen, match="29990101000000000"):
        write(table, [("1", "a", 2, "y")])
