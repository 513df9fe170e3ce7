"""Tables that others wrote, read from their timeline files and a listing."""

import io
import re

import fastavro
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import cluster, contents, new_table, open_table, rows_of, write

from tideline_table.action import run_clean, write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import CorruptMetadata, HistoryUnavailable, InstantNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.formats import WRITTEN, format_of
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.plans import CLEAN_METADATA, encode_document
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.hudi_written import hudi_written_state
from tideline_table.log.cleaned import CleanedFile, cleaned_files, first_whole
from tideline_table.storage import MemoryStorage
from tideline_table.writer import Operation


@pytest.fixture
def place():
    """A table as if another process had written it: without the folder that is ours."""
    table, storage, clock = new_table()
    commits = [write(table, [("a", "p", n, f"v{n}"), (f"k{n}", "q", n, "x")]) for n in range(3)]
    schedule_clustering(table)
    cluster(table)
    write(table, [("a", "p", 9, "last")], Operation.UPSERT)
    return table, storage, clock, commits


def hudi_written(storage):
    """A copy without our folder."""
    copy = MemoryStorage()
    for found in storage.list_objects(""):
        if ".hoodie/.tideline" not in found.path:
            copy.put(found.path, storage.read(found.path))
    return copy


def test_reads_as_the_log_says(place):
    table, storage, clock, commits = place
    other = open_table(hudi_written(storage), clock)
    assert not other.capabilities.log_is_truth
    assert contents(other) == contents(table)
    for commit in commits:
        assert contents(other, commit.instant) == contents(table, commit.instant)
    assert other.state.schema_json == table.state.schema_json
    with pytest.raises(UnsupportedTable, match="only Apache Hudi writes"):
        write_rows(other, rows_of([("a", "p", 1, "x")]), Operation.UPSERT)


def test_uncommitted_and_checksum_files_are_ignored(place):
    table, storage, clock, _ = place
    copy = hudi_written(storage)
    before = contents(table)
    (visible, *_) = table.slices()
    later = "20270101000000000"
    copy.put(f".hoodie/{later}.commit.requested", b"")
    copy.put(f".hoodie/{later}.inflight", b"")
    copy.put(f"p/{visible.group.file_id}_9-0-9_{later}.parquet", b"half")
    copy.put(f"p/.{visible.base_file}.crc", b"crc")
    copy.put("p/notes.txt", b"hello")
    copy.put("not-a-partition/x.txt", b"hello")
    assert contents(open_table(copy, clock)) == before


def test_archived_commits_count_although_their_timeline_files_are_gone(place):
    """Older than the active timeline is committed; a clean or a pending write that is older does not move its start."""
    table, storage, clock, _ = place
    copy = hudi_written(storage)
    before = contents(table)
    writes = table.state.completed_writes()
    for name in (o.path for o in list(copy.list_folder(".hoodie").objects)):
        if name.startswith(f".hoodie/{writes[0].instant}"):
            copy.delete(name)
    clean = {
        "startCleanTime": "20250101000000000",
        "timeTakenInMillis": 1,
        "totalFilesDeleted": 0,
        "earliestCommitToRetain": "",
        "partitionMetadata": {},
    }
    copy.put(".hoodie/20250101000000000.clean", encode_document(CLEAN_METADATA, clean))
    copy.put(".hoodie/20250102000000000.rollback", b"")
    assert contents(open_table(copy, clock)) == before


def test_an_old_write_that_is_still_pending_is_not_taken_for_archived(place):
    table, storage, clock, _ = place
    copy = hudi_written(storage)
    before = contents(table)
    old = "20250101000000000"
    copy.put(f".hoodie/{old}.commit.requested", b"")
    copy.put(f".hoodie/{old}.inflight", b"")
    copy.put(f"p/never-0_0-0-0_{old}.parquet", b"half")
    assert contents(open_table(copy, clock)) == before


def test_a_savepointed_commit_outlives_archival(place):
    table, storage, clock, _ = place
    copy = hudi_written(storage)
    before = contents(table)
    first, second = (a.instant for a in table.state.completed_writes()[:2])
    copy.put(f".hoodie/{first}.savepoint", b"")
    copy.put(f".hoodie/{first}.savepoint.inflight", b"")
    for name in (o.path for o in list(copy.list_folder(".hoodie").objects)):
        if name.startswith(f".hoodie/{second}"):
            copy.delete(name)
    assert contents(open_table(copy, clock)) == before


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("states", [("savepoint.inflight",), ("savepoint.inflight", "savepoint")])
def test_a_savepoint_does_not_hide_its_commit(place, which, states):
    table, storage, clock, _ = place
    copy = hudi_written(storage)
    at = table.state.completed_writes()[which].instant
    for state in states:
        copy.put(f".hoodie/{at}.{state}", b"")
    assert contents(open_table(copy, clock)) == contents(table)


def test_time_travel_before_what_was_cleaned_is_refused(place):
    table, storage, clock, commits = place
    for n in range(10, 13):
        write(table, [("a", "p", n, "x")])
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    other = open_table(hudi_written(storage), clock)
    assert contents(other) == contents(table)
    with pytest.raises(InstantNotFound, match="cleaned"):
        contents(other, commits[0].instant)


def test_cleaning_by_file_versions_tells_by_its_files_what_is_gone(place):
    """Such a clean retains no instant by name."""
    table, storage, clock, commits = place
    first = next(s for s in table.state.latest_slices(commits[0].instant) if s.group.partition_path == "p")
    successor = min(i for g, slices in table.state.slices.items() if g == first.group for i in slices if i > first.base_instant)
    copy = hudi_written(storage)
    copy.delete(first.path)
    part = {"partitionPath": "p", "policy": "KEEP_LATEST_FILE_VERSIONS", "deletePathPatterns": [], "failedDeleteFiles": []}
    clean = {
        "startCleanTime": "20270101000000000",
        "timeTakenInMillis": 1,
        "totalFilesDeleted": 1,
        "earliestCommitToRetain": "",
        "lastCompletedCommitTimestamp": table.state.completed_writes()[-1].instant,
        "partitionMetadata": {"p": {**part, "successDeleteFiles": [first.base_file]}},
    }
    copy.put(".hoodie/20270101000000000.clean", encode_document(CLEAN_METADATA, clean))
    other = open_table(copy, clock)
    with pytest.raises(InstantNotFound, match="cleaned"):
        contents(other, commits[0].instant)
    assert other.state.last_clean_retained == successor
    assert contents(other, successor) == contents(table, successor)
    # Unlike that of a clean by commits, the state just before is not whole either: its rows would count as never having been there.
    before = max(a.instant for a in other.state.completed_writes() if a.instant < successor)
    with pytest.raises(HistoryUnavailable, match="cleaning removed"):
        other.changes(before)
    assert sum(batch.num_rows for batch in other.changes(successor).scan()) > 0
    assert sum(batch.num_rows for batch in table.changes(before).scan()) > 0


def test_a_cleaned_file_was_needed_until_its_group_had_a_newer_slice_or_went():
    left, replaced, forgotten = (FileGroupId("p", name) for name in ("left", "replaced", "forgotten"))
    slices, gone = {left: {"1", "4", "6"}}, {replaced: "5"}
    assert first_whole([], slices, gone) == ""
    assert first_whole([CleanedFile(left, "2", "9")], slices, gone) == "4"
    assert first_whole([CleanedFile(replaced, "2", "9")], slices, gone) == "5"
    assert first_whole([CleanedFile(forgotten, "2", "9")], slices, gone) == "9"
    names = ["g-0_0-1-2_20260101000000001.parquet", "/t/p/.h-0_20260101000000002.log.1_0-1-2", "notes.txt"]
    found = [(file.group.file_id, file.instant) for file in cleaned_files([("p", name) for name in names], "9")]
    assert found == [("g-0", "20260101000000001"), ("h-0", "20260101000000002")]


def test_instants_at_their_highest_state():
    storage = MemoryStorage()
    for name in (
        "20260101000000001.commit.requested",
        "20260101000000001.inflight",
        "20260101000000001.commit",
        "20260101000000002.compaction.requested",
        "20260101000000002.compaction.inflight",
        "20260101000000002.commit",
        "20260101000000003.compaction.requested",
        "20260101000000004.logcompaction.inflight",
        "20260101000000004.deltacommit",
        "20260101000000001.savepoint",
        "hoodie.properties",
        ".20260101000000001.commit.crc",
    ):
        storage.put(f".hoodie/{name}", b"")
    found = [(i.time[-1], i.action, i.state) for i in list_timeline(storage, WRITTEN).instants]
    assert found == [
        ("1", Action.COMMIT, State.COMPLETED),
        ("1", Action.SAVEPOINT, State.COMPLETED),
        ("2", Action.COMMIT, State.COMPLETED),
        ("3", Action.COMPACTION, State.REQUESTED),
        ("4", Action.DELTA_COMMIT, State.COMPLETED),
    ]


def test_log_files_are_not_silently_left_out(place):
    """Apache Hudi reads no log files of a copy-on-write table; that there are some says that something is wrong."""
    _, storage, clock, _ = place
    copy = hudi_written(storage)
    copy.put("p/.f-0_20270101000000001.log.1_0-0-0", b"#HUDI#")
    open_table(copy, clock)
    copy.put("p/.f-0_20260101000000001.log.1_0-0-0", b"#HUDI#")
    with pytest.raises(UnsupportedTable, match=r"log file p/\.f-0_.* in a COPY_ON_WRITE table"):
        open_table(copy, clock)


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize(
    "named",
    [
        "p/part-00000-5a1c.c000.snappy.parquet",
        "p/part-00000-5a1c.c000.snappy.parquet_20270101000000001_hudiext",
        "p/00000-1-ab.parquet",
    ],
)
def test_a_commit_that_names_files_of_another_system_is_refused(named, version):
    """A translator of another format commits its files in place: no listing finds them, so their rows would be missing."""
    table, storage, clock = new_table(version=version)
    write(table, [("a", "p", 1, "x")])
    copy = hudi_written(storage)
    form = format_of(table.definition.properties)
    stat = WriteStat("part-00000-5a1c", "p", named, "null", 1, 4)
    metadata = CommitMetadata("INSERT", (stat,), {})
    done = Instant("20270101000000001", Action.COMMIT, State.COMPLETED)
    name = form.timeline_file_name(done, "20270101000000002" if version == 9 else "")
    copy.put(f"{form.timeline_folder}/{name}", form.commit_content(metadata))
    copy.put("p/part-00000-5a1c.c000.snappy.parquet", b"PAR1")
    with pytest.raises(UnsupportedTable, match=f"names the data file {re.escape(named)}"):
        open_table(copy, clock)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".commit", b"{"),
        (".commit", b'{"partitionToReplaceFileIds": 5}'),
        (".replacecommit", b"\xff"),
        (".clean", b"Obj"),
    ],
)
def test_broken_timeline_files_are_named(place, suffix, content):
    table, storage, clock, _ = place
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    copy = hudi_written(storage)
    path = next(
        (o.path for o in copy.list_folder(".hoodie").objects if o.path.endswith(suffix)), f".hoodie/20270101000000000{suffix}"
    )
    copy.put(path, content)
    with pytest.raises(CorruptMetadata, match=path):
        open_table(copy, clock)


def test_pending_replace_plans():
    storage, clock = MemoryStorage(), ManualClock()
    assert hudi_written_state(storage).latest_slices() == []
    schema = {"type": "record", "name": "r", "fields": [{"name": "operationType", "type": "string"}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [{"operationType": "CLUSTER"}])
    storage.put(".hoodie/20260101000000001.replacecommit.requested", sink.getvalue())
    with pytest.raises(CorruptMetadata, match="a replacecommit plan that names file groups"):
        hudi_written_state(storage)
    storage.put(".hoodie/20260101000000001.replacecommit.requested", b"")
    (record,) = hudi_written_state(storage).pending()
    assert not record.is_clustering
    assert clock
