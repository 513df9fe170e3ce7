"""Packed file slices are what a dictionary of them is, and a checkpoint of a large table is read in proportion to what is asked."""

import dataclasses
import random
from collections import Counter

import pytest
from tests.plans import schedule_clean
from tests.unit.table.counting import NotingStorage, publish
from tests.unit.table.tables import base_stat, instant, new_table, open_table

from tideline_table.action import run_clean
from tideline_table.errors import CorruptMetadata, StorageError
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.instant import Action
from tideline_table.log import checkpoint, checkpoint_parts, packed, state
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, read_opening, write_checkpoint
from tideline_table.log.checkpoint_parts import KEPT_FOR
from tideline_table.log.packed import PackedSlices
from tideline_table.log.state import TableState
from tideline_table.log.table_log import LogReader
from tideline_table.storage import MemoryStorage


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(packed, "PART_GROUPS", 4)
    monkeypatch.setattr(packed, "_DECODED", 2)
    monkeypatch.setattr(state, "LEAST_PACKED", 8)


def group(number):
    return FileGroupId(f"p{number // 3:03d}", f"f{number:03d}-0")


def held(number, *instants):
    of = group(number)
    return {at: FileSlice(of, at, f"{of.file_id}_0-0-0_{at}.parquet", number, 10) for at in instants}


def some(*numbers):
    return {group(n): held(n, instant(1)) for n in numbers}


def parts_in(storage):
    return [o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path.endswith(".parts")]


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_leave_what_a_dictionary_holds(seed):
    draw = random.Random(seed)
    expected = some(*draw.sample(range(60), 20))
    found = PackedSlices.of(expected)
    for step in range(80):
        number = draw.randrange(60)
        match draw.randrange(6):
            case 0 | 1:
                expected[group(number)] = found[group(number)] = held(number, instant(step), instant(step + 1))
            case 2:
                assert found.pop(group(number), None) == expected.pop(group(number), None)
            case 3:
                found.settle(beyond=draw.randrange(4))
            case 4:
                assert found.get(group(number)) == expected.get(group(number))
            case 5:
                names = {f"p{draw.randrange(22):03d}" for _ in range(2)}
                assert found.of_partitions(names) == {g: s for g, s in expected.items() if g.partition_path in names}
        assert len(found) == len(expected)
    assert dict(found.items()) == expected
    assert list(found) == sorted(expected)
    assert list(found.values()) == [expected[g] for g in sorted(expected)]
    assert found == expected
    copy = found.copy()
    copy[group(70)] = held(70, instant(1))
    copy.settle()
    assert group(70) not in found
    assert len(copy) == len(found) + 1


def test_partitions_whose_names_begin_alike_are_told_apart():
    ids = [FileGroupId(name, f"{n}-0") for name in ("a", "a/b", "a\0", "ab", "") for n in range(6)]
    slices = {of: {"1": FileSlice(of, "1", "x", 1, 1)} for of in ids}
    found = PackedSlices.of(slices)
    for name in ("a", "a/b", "ab", "", "b"):
        assert found.of_partitions([name]) == {g: s for g, s in slices.items() if g.partition_path == name}


def large_table(groups=40):
    storage = NotingStorage()
    table, _, clock = new_table(storage=storage)
    publish(table, lambda at: [stat(n, at) for n in range(groups)], Action.COMMIT)
    write_checkpoint(storage, table.state)
    assert isinstance(table.state.slices, PackedSlices)
    return table, storage, clock


def stat(number, at):
    return base_stat(f"f{number:03d}-0", at, partition=f"p{number // 3:03d}")


def test_a_checkpoint_in_parts_is_read_as_it_was_written():
    table, storage, clock = large_table()
    publish(table, lambda at: [stat(n, at) for n in (3, 4, 50)], Action.COMMIT)
    plain = TableState(**{f.name: getattr(table.state, f.name) for f in dataclasses.fields(TableState) if f.init})
    plain.slices = dict(table.state.slices.items())
    write_checkpoint(storage, table.state)
    opened = read_opening(storage).state
    assert isinstance(opened.slices, PackedSlices)
    assert opened == plain
    assert opened.excess == {group(3), group(4)}
    assert open_table(storage, clock).state == plain


def test_opening_and_one_partition_read_few_bytes_however_large_the_table_is():
    costs = []
    for groups in (400, 1600):
        _, storage, _ = large_table(groups)
        storage.requests.clear()
        opened = read_opening(storage).state
        _, opening = storage.cost
        storage.requests.clear()
        assert [s.group for s in opened.latest_slices(partitions=["p007"])] == [group(n) for n in (21, 22, 23)]
        assert sum(kind == "read" for kind, *_ in storage.requests) <= 2
        costs.append((opening, storage.cost[1]))
    assert costs[1][1] < 1.2 * costs[0][1]
    assert costs[1][1] < costs[1][0] / 20


def test_a_checkpoint_writes_only_the_parts_that_changed():
    table, storage, _ = large_table(400)
    before = {path: len(storage.read(path)) for path in parts_in(storage)}
    publish(table, lambda at: [stat(200, at)], Action.COMMIT)
    write_checkpoint(storage, table.state)
    (added,) = set(parts_in(storage)) - set(before)
    assert len(storage.read(added)) < sum(before.values()) / 50
    assert read_opening(storage).state == table.state


def test_garbage_makes_one_file_of_all_parts_and_the_others_go_after_a_day(monkeypatch):
    monkeypatch.setattr(checkpoint_parts, "_LEAST_BYTES", 1)
    table, storage, clock = large_table()
    first = parts_in(storage)

    def rounds():
        for _ in range(4):
            publish(table, lambda at: [stat(n, at) for n in range(40)], Action.COMMIT)
            clean(table)
            write_checkpoint(storage, table.state)

    rounds()
    assert set(first) < set(parts_in(storage))
    assert sum(path.endswith(".whole.parts") for path in parts_in(storage)) > 1
    storage._clock.advance(KEPT_FOR.total_seconds() + 1)
    clock.advance(KEPT_FOR.total_seconds() + 1)
    rounds()
    assert not set(first) & set(parts_in(storage))
    for path in sorted(o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path.endswith(".json")):
        folded = checkpoint._read(storage, int(path.rpartition("/")[2].removesuffix(".json")))
        assert len(dict(folded.slices.items())) == 40


def clean(table):
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1, "tideline.clean.max.deleted.share": 0})
    run_clean(table)


def test_storage_that_fails_during_an_entry_leaves_the_state_as_it_was(monkeypatch):
    table, storage, _ = large_table()
    opened = read_opening(storage).state
    publish(table, lambda at: [stat(3, at), stat(30, at)], Action.COMMIT)
    begun, done = list(LogReader(storage).after(opened.sequence))
    opened.apply(begun)
    real, calls = storage.read_range, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise StorageError("no answer")
        return real(*arguments)

    monkeypatch.setattr(storage, "read_range", failing)
    with pytest.raises(StorageError):
        opened.apply(done)
    opened.apply(done)
    assert opened == table.state


def test_a_lost_file_of_parts_is_said_and_never_taken_for_an_empty_table():
    _, storage, _ = large_table()
    opened = read_opening(storage).state
    for path in parts_in(storage):
        storage.delete(path)
    with pytest.raises(CorruptMetadata, match="is missing"):
        opened.latest_slices()
    with pytest.raises(CorruptMetadata, match="is missing"):
        write_checkpoint(storage, opened)


def test_damaged_parts_are_said():
    _, storage, _ = large_table()
    (path,) = parts_in(storage)
    storage.put(path, storage.read(path)[::-1])
    with pytest.raises(CorruptMetadata, match="is damaged"):
        read_opening(storage).state.every_slice()


def test_who_read_all_parts_writes_lost_ones_again():
    table, storage, _ = large_table()
    for path in parts_in(storage):
        storage.delete(path)
    publish(table, lambda at: [stat(3, at)], Action.COMMIT)
    write_checkpoint(storage, table.state)
    assert read_opening(storage).state == table.state


def test_who_has_a_table_open_for_long_reads_all_parts_before_they_go():
    table, storage, clock = large_table()
    stays, sleeps = open_table(storage, clock, "a"), open_table(storage, clock, "b")
    clock.advance(KEPT_FOR.total_seconds() / 2 + 1)
    stays.refresh()
    write_checkpoint(MemoryStorage(), table.state)  # its parts lie elsewhere from then on
    for path in parts_in(storage):
        storage.delete(path)
    assert len(stays.state.every_slice()) == 40
    with pytest.raises(CorruptMetadata, match="open the table again"):
        sleeps.state.every_slice()
    publish(table, lambda at: [stat(3, at)], Action.COMMIT)
    write_checkpoint(storage, table.state)
    sleeps.refresh()
    assert len(sleeps.state.every_slice()) == 41


def brute_totals(state, limit):
    latest, every = state.latest_slices(), state.every_slice()
    found = {
        "groups": len(latest),
        "partitions": len({s.group.partition_path for s in latest}),
        "rows": -1 if any(s.rows < 0 or s.log_files for s in latest) else sum(s.rows for s in latest),
        "base_bytes": sum(s.size_bytes for s in latest),
        "log_files": sum(len(s.log_files) for s in latest),
        "log_bytes": sum(log.size_bytes for s in latest for log in s.log_files),
        "most_log_files": max((len(s.log_files) for s in latest), default=0),
        "oldest_log": min((log.instant for s in latest for log in s.log_files), default=""),
        "files": sum(len(s.paths) for s in latest),
        "total_bytes": sum(s.total_bytes for s in latest),
        "all_files": sum(len(s.paths) for s in every),
        "all_bytes": sum(s.total_bytes for s in every),
        "most": max(Counter(s.group.partition_path for s in latest).values(), default=0),
    }
    return found, sum(s.total_bytes < limit for s in latest)


@pytest.mark.parametrize("seed", range(30))
def test_totals_and_chosen_parts_are_what_a_look_at_every_slice_tells(seed):
    draw = random.Random(seed)
    of = TableState()
    slices = {}
    for number in draw.sample(range(90), 60):
        logs = tuple(LogFile(f"l{n}", draw.randrange(300), instant(5 + n), n + 1) for n in range(max(0, draw.randrange(-6, 4))))
        one = held(number, *[instant(n) for n in range(1, draw.randrange(2, 4))])
        newest = max(one)
        one[newest] = dataclasses.replace(one[newest], size_bytes=draw.randrange(1000), log_files=logs)
        slices[group(number)] = one
    of.slices = PackedSlices.of(dict(list(slices.items())[:45]))
    for changed in list(slices)[40:]:  # those from 45 on were not there when the others were packed
        of.slices[changed] = slices[changed]
    of.replaced = {changed: instant(9) for changed in draw.sample(list(slices), 5)}
    limit = draw.choice([0, 1, 64, 100, 500, 2000])
    sums, small = of.totals(limit)
    expected, expected_small = brute_totals(of, limit)
    assert {name: getattr(sums, name) for name in expected} == expected
    assert small == expected_small
    latest, least = of.latest_slices(), draw.randrange(1, 5)
    assert [s for s in of.each_latest(lambda part, _: part.log_files > 0) if s.log_files] == [s for s in latest if s.log_files]
    sizes = Counter(s.group.partition_path for s in latest)
    crowded = [s for s in latest if sizes[s.group.partition_path] >= least]
    found = list(of.each_latest(lambda _, crowd: crowd >= least))
    assert [s for s in found if sizes[s.group.partition_path] >= least] == crowded
    assert list(of.each_latest()) == latest


def test_partition_paths_are_those_of_visible_slices_and_a_sample_is_of_new_groups():
    table, storage, clock = large_table()
    paths = sorted({s.group.partition_path for s in table.state.latest_slices()})
    assert table.state.partition_paths() == paths
    gone = table.state.latest_slices(partitions=paths[:1])
    opened = open_table(storage, clock)
    opened.state.replaced |= {s.group: instant(9) for s in gone}
    assert opened.state.partition_paths() == paths[1:]
    before = len(storage.requests)
    sample = open_table(storage, clock).state.sample(3)
    assert 0 < len(sample) <= 3
    assert set(sample) <= set(table.state.latest_slices())
    assert len([path for _, path, _ in storage.requests[before:] if path.endswith(".parts")]) == 1


def test_totals_of_an_opened_table_read_no_part_and_a_damaged_summary_is_refused():
    table, storage, _ = large_table(400)
    storage.requests.clear()
    opened = read_opening(storage).state
    opening = len(storage.requests)
    assert opened.totals()[0] == table.state.totals()[0]
    assert opened.totals()[0].groups == 400
    assert list(opened.each_latest(lambda part, _: part.log_files > 0)) == []
    assert len(storage.requests) == opening
    document = checkpoint_parts.parts_json(table.state.slices)
    document["summaries"][0][2] = "7"
    with pytest.raises(TypeError, match="a summary of file slices"):
        checkpoint_parts.parts_from(document, storage)


def test_parts_of_an_earlier_release_are_summed_from_their_slices():
    table, storage, _ = large_table(40)
    document = checkpoint_parts.parts_json(table.state.slices)
    del document["summaries"]
    opened = table.state.copy()
    opened.slices = checkpoint_parts.parts_from(document, storage)
    assert opened.totals(5) == table.state.totals(5)
    assert list(opened.each_latest(lambda *_: False)) == table.state.latest_slices()
