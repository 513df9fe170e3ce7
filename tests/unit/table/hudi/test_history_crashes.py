"""Archivals into the history of layout 2 that die at each call of the storage: a repeat completes each of them, wherever it died.

The tenth archival merges files, the later ones delete what no kept manifest names.
"""

import json
from functools import cache

import pyarrow.parquet as pq
import pytest
from tests.simulation.faults import MUTATING, SAMPLE_STEP, FaultyStorage, SimulatedCrash, copy_of, crash_at, sampled
from tests.unit.table.tables import new_table, open_table, write

from tideline_table.action import archive
from tideline_table.clock import ManualClock
from tideline_table.errors import ObjectNotFound, StorageError
from tideline_table.hudi.formats import format_to_create
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.version8.history import manifest_files, read_history
from tideline_table.hudi.version8.history_writer import KEPT_MANIFESTS
from tideline_table.storage import MemoryStorage

FORMAT = format_to_create(9)
HISTORY = FORMAT.history_folder
ARCHIVALS = 14
"""One of them merges files, and behind it are enough to delete what it merged."""


def instants(archival):
    return [f"202601010000{archival:02}{n:03}" for n in range(0, 20, 10)]


def timeline(archival):
    files = []
    for time in instants(archival):
        for state in (State.REQUESTED, State.INFLIGHT, State.COMPLETED):
            instant = Instant(time, Action.COMMIT, state)
            files.append((instant, FORMAT.timeline_path(instant, f"{time[:-1]}5")))
    return files


def begin(storage, archival):
    for instant, path in timeline(archival):
        storage.put(path, str(instant).encode())


def run(storage, archival):
    """As `run_archival`: the timeline files are deleted when the history names their instants."""
    files = timeline(archival)
    FORMAT.archive(storage, archival, files, 10)
    for _, path in files:
        storage.delete(path)


def names(storage, folder=HISTORY):
    return {found.path.rpartition("/")[2] for found in storage.list_folder(folder).objects}


def newest(storage):
    numbers = [int(name.partition("_")[2]) for name in names(storage) if name.startswith("manifest_")]
    assert storage.read(f"{HISTORY}/_version_") == str(max(numbers)).encode(), "readers do not see the newest manifest"
    return max(numbers), sorted(numbers)


def check(storage, archival):
    """Every instant is in the history once, the newest manifest counts, and only files that kept manifests name are there."""
    number, kept = newest(storage)
    named = {n: manifest_files(storage.read(f"{HISTORY}/manifest_{n}"), "") for n in kept}
    wanted = [time for one in range(1, archival + 1) for time in instants(one)]
    assert [i.time for i in read_history(storage, HISTORY)] == wanted
    rows = [time for name in named[number] for time in held(storage, name)]
    assert sorted(rows) == wanted, "an instant is in two files"
    assert kept == list(range(max(1, number - KEPT_MANIFESTS + 1), number + 1))
    assert {name for name in names(storage) if name.endswith(".parquet")} == set().union(*named.values())
    sizes = {e["fileName"]: e["fileLen"] for e in json.loads(storage.read(f"{HISTORY}/manifest_{number}"))["files"]}
    assert sizes == {name: storage.stat(f"{HISTORY}/{name}").size_bytes for name in named[number]}


def held(storage, name):
    with storage.open_input(f"{HISTORY}/{name}") as source:
        return pq.read_table(source).column("instantTime").to_pylist()


def with_archivals(count):
    storage = MemoryStorage()
    for archival in range(1, count + 1):
        begin(storage, archival)
        run(storage, archival)
    return storage


@cache
def nine_archivals():
    """Made once; each test works on a copy."""
    return with_archivals(9)


def mutating_calls(storage, archival):
    faulty = FaultyStorage(copy_of(storage, ManualClock()))
    run(faulty, archival)
    return [call for call, _ in faulty.calls if call in MUTATING]


def test_a_repeat_completes_an_archival_that_died_at_any_call():
    """After the merge the manifest names no file of the tenth archival: its repeat looked for timeline files that were gone."""
    storage = MemoryStorage()
    points = 0
    for archival in range(1, ARCHIVALS + 1):
        begin(storage, archival)
        for number in range(archival % SAMPLE_STEP, len(mutating_calls(storage, archival)), SAMPLE_STEP):
            disk = copy_of(storage, ManualClock())
            faulty = FaultyStorage(disk)
            crash_at(faulty, number, "after")
            with pytest.raises(SimulatedCrash):
                run(faulty, archival)
            run(disk, archival)
            check(disk, archival)
            points += 1
        run(storage, archival)
        check(storage, archival)
    assert points > 10 * ARCHIVALS / SAMPLE_STEP


@pytest.mark.parametrize("place", sampled(range(-14, 14)))
def test_archivals_that_all_die_at_the_same_place_are_completed(place):
    storage = MemoryStorage()
    for archival in range(1, ARCHIVALS + 1):
        begin(storage, archival)
        calls = mutating_calls(storage, archival)
        if -len(calls) <= place < len(calls):
            faulty = FaultyStorage(storage)
            crash_at(faulty, place % len(calls), "after")
            with pytest.raises(SimulatedCrash):
                run(faulty, archival)
        run(storage, archival)
        check(storage, archival)


@pytest.mark.parametrize("ahead", [0, 1, 5, 14])
@pytest.mark.parametrize("call", ["put", "put_if_absent", "open_output", "delete"])
def test_a_slow_archival_changes_nothing_when_another_process_is_ahead(call, ahead):
    """It wakes up in the middle of the tenth archival, that somebody else completed; so did `ahead` others since."""
    storage = copy_of(nine_archivals(), ManualClock())
    begin(storage, 10)
    slow, stopped = FaultyStorage(storage), []

    def overtake(_, made, path):
        if made == call and not stopped:
            stopped.append(path)
            for archival in range(10, 11 + ahead):
                begin(storage, archival)
                run(storage, archival)

    slow.before = overtake
    run(slow, 10)
    assert stopped
    begin(storage, 11 + ahead)
    run(storage, 11 + ahead)
    check(storage, 11 + ahead)


def overtaken(storage, do, number):
    """Run `do` on a storage in which others end five archivals in front of a call of this number; return whether it came."""
    slow = FaultyStorage(storage)

    def overtake(at, _, __):
        if at == number:
            for archival in range(10, 15):
                begin(storage, archival)
                run(storage, archival)

    slow.before = overtake
    do(slow)
    return len(slow.calls) > number


def test_manifests_that_others_publish_during_any_call_are_followed():
    """One that was listed may be deleted when it is read: the archival ended as if a timeline file were missing."""
    before = copy_of(nine_archivals(), ManualClock())
    begin(before, 10)
    number = 0
    while overtaken(disk := copy_of(before, ManualClock()), lambda slow: run(slow, 10), number):
        begin(disk, 15)
        run(disk, 15)
        check(disk, 15)
        number += SAMPLE_STEP
    assert number > 20


def test_readers_follow_manifests_that_are_published_during_any_call():
    before = copy_of(nine_archivals(), ManualClock())
    earlier = read_history(before, HISTORY)
    number = 0
    found = []
    while overtaken(copy_of(before, ManualClock()), lambda slow: found.append(read_history(slow, HISTORY)), number):
        assert found[-1][: len(earlier)] == earlier
        number += 1
    assert number > 5


def test_an_archival_reads_the_present_manifest_only_as_often_as_it_may_have_changed():
    """Each layer was looked for in a manifest of its own."""
    storage = with_archivals(3)
    begin(storage, 4)
    counted = FaultyStorage(storage)
    run(counted, 4)
    assert sum(call == "list_folder" for call, _ in counted.calls) < 8


FEW = {
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.cleaner.commits.retained": 1,
    "tideline.archive.min.age": 0,
}


def test_archivals_of_a_table_that_die_while_they_delete_timeline_files_are_completed():
    table, storage, clock = new_table(version=9)
    merged = 0
    for n in range(26):
        write(table, [("1", "a", n, f"v{n}")])
        disk = FaultyStorage(storage)

        def die(_, call, path):
            if call == "delete" and path.startswith(".hoodie/timeline/") and not path.startswith(HISTORY):
                raise SimulatedCrash

        disk.after = die
        writer = open_table(disk, clock, f"dies-{n}")
        try:
            archive(writer, FEW)
        except SimulatedCrash:
            merged += any(name.endswith("_1.parquet") for name in names(storage))
        table = open_table(storage, clock, "w")
        archive(table, FEW)
        assert not list(table.state.pending())
    assert merged > 1
    assert [row["v"] for row in table.read().to_pylist()] == ["v25"]
    every = {i.time for i in read_history(storage, HISTORY)} | {a.instant for a in table.state.completed_writes()}
    assert len(every) >= 26


def test_a_missing_file_of_the_history_is_not_taken_for_a_timeline_file():
    table, storage, clock = new_table(version=9)
    for n in range(5):
        write(table, [("1", "a", n, f"v{n}")])
    disk = FaultyStorage(storage)

    def lose(_, call, path):
        if call == "list_folder" and path == HISTORY:
            raise ObjectNotFound(f"{HISTORY}/manifest_1")

    disk.before = lose
    with pytest.raises(StorageError, match="manifest_1"):
        archive(open_table(disk, clock, "w"), FEW)
    disk.before = lambda *_: None
    archive(open_table(disk, clock, "w"), FEW)
    assert read_history(storage, HISTORY)
