"""Shared tables of versions 8 and 9: completion times decide the order of steps, and ours are above all others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import beside, compact, contents, new_table, set_properties

from tideline_locks import open_hudi_lock
from tideline_table.action import delete_partitions
from tideline_table.clock import ManualClock
from tideline_table.coordination.shared.adoption import missing_steps
from tideline_table.errors import CorruptMetadata, UnsupportedTable, WriteConflict
from tideline_table.hudi import properties as p
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.file_names import FIXED_ID
from tideline_table.hudi.formats import format_to_create
from tideline_table.hudi.instant import Action, Instant, State, instant_from_time, time_from_instant
from tideline_table.hudi.listing import ListedTimeline, list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.index.bucket import BucketIndex as Buckets
from tideline_table.log.state import TableState
from tideline_table.storage import ObjectStat
from tideline_table.table import BucketIndex, Table, TableType, share_table, why_unsharable
from tideline_table.writer import Operation

NINE = format_to_create(9)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def shown(table: Table) -> list[tuple[object, ...]]:
    """Id, ordering value and note of the rows, as of now."""
    table.refresh()
    return [(row[0], *row[2:]) for row in contents(table)]


def clock_of(table: Table) -> ManualClock:
    assert isinstance(table.clock, ManualClock)
    return table.clock


def listed(*names: str) -> ListedTimeline:
    """A listing whose file times are in the reverse order of the names."""
    objects = [ObjectStat(f".hoodie/timeline/{name}", 1, AT - timedelta(seconds=n)) for n, name in enumerate(names)]
    return ListedTimeline.of(objects, NINE)


def test_steps_come_in_the_order_of_completion_times_and_not_of_file_times():
    found = listed(
        "20260101000001000.deltacommit.requested",
        "20260101000001000.deltacommit.inflight",
        "20260101000001000_20260101000003000.deltacommit",
        "20260101000002000.compaction.requested",
        "20260101000002000.compaction.inflight",
        "20260101000002000_20260101000005000.commit",
        "20260101000004000.deltacommit.requested",
    )
    steps = [(s.instant[-5:-3], s.action, s.after, s.completion[-5:-3]) for s in missing_steps(found, TableState())]
    assert steps == [
        ("01", Action.DELTA_COMMIT, State.INFLIGHT, ""),
        ("02", Action.COMPACTION, State.INFLIGHT, ""),
        ("01", Action.DELTA_COMMIT, State.COMPLETED, "03"),
        ("04", Action.DELTA_COMMIT, State.REQUESTED, ""),
        ("02", Action.COMPACTION, State.COMPLETED, "05"),
    ]


@pytest.fixture(params=[(9, TableType.COW), (9, TableType.MOR), (8, TableType.MOR)], ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Table, Table]:
    """One table as a writer of Tideline has it, and as the other side has it."""
    version, kind = request.param
    table, storage, clock = shared_table(kind, version)
    return table, peer_of(storage, clock)


def check_times(table: Table) -> None:
    """The log says the times of the timeline, and no two times are equal."""
    listing = list_timeline(table.storage, table.timeline.format)
    ended = {i.time: listing.named_completion(i.time) for i in listing.instants if i.state is State.COMPLETED}
    known = table.refresh().actions
    assert {at: known[at].completion for at in ended} == ended
    assert all(later > at for at, later in ended.items())
    assert len({*ended, *ended.values()}) == 2 * len(ended)


def test_steps_of_the_other_side_are_adopted_with_their_completion_times(both: tuple[Table, Table]) -> None:
    ours, theirs = both
    put(ours, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    put(theirs, [("1", "a", 2, "theirs"), ("3", "a", 2, "theirs")])
    assert shown(ours) == [("1", 2, "theirs"), ("2", 1, "x"), ("3", 2, "theirs")]
    put(ours, [("1", "a", 3, "ours")])
    put(theirs, [("3", "a", 4, "theirs")], Operation.DELETE)
    assert shown(ours) == shown(theirs) == [("1", 3, "ours"), ("2", 1, "x")]
    check_times(ours)
    check_times(opened(ours.storage, clock_of(ours)))


def test_our_times_are_above_those_of_the_timeline_and_past_when_the_lock_is_released(both: tuple[Table, Table]) -> None:
    ours, theirs = both
    clock = clock_of(ours)
    done = put(theirs, [("1", "a", 1, "x")])
    # The clock of the other side goes 2 s ahead.
    form = ours.timeline.format
    (completed,) = (i for i in list_timeline(ours.storage, form).instants if i.time == done.instant)
    ahead = instant_from_time(clock.now() + timedelta(seconds=2))
    path = list_timeline(ours.storage, form).paths[completed]
    ours.storage.put(form.timeline_path(completed, ahead), ours.storage.read(path))
    ours.storage.delete(path)
    late = put(ours, [("1", "a", 2, "y")])
    times = list_timeline(ours.storage, form).completion
    assert times[late.instant] > late.instant > ahead
    assert clock.now() >= time_from_instant(times[late.instant]) + timedelta(milliseconds=200)


def test_a_write_to_what_the_other_side_wrote_meanwhile_is_a_conflict(
    both: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = both
    put(ours, [("1", "a", 1, "x")])
    beside(monkeypatch, lambda: put(theirs, [("1", "a", 3, "theirs")]))
    with pytest.raises(WriteConflict):
        put(ours, [("1", "a", 2, "ours")], **{"tideline.write.conflict.retries": 0})
    assert shown(ours) == [("1", 3, "theirs")]
    check_times(ours)


def test_log_files_behind_a_compaction_of_the_other_side_between_two_looks() -> None:
    ours, storage, clock = shared_table(TableType.MOR, 9)
    theirs = peer_of(storage, clock)
    put(ours, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    put(theirs, [("1", "a", 2, "merged")])
    assert schedule_compaction(theirs, {"hoodie.compact.inline.max.delta.commits": 1}) is not None
    put(theirs, [("2", "a", 2, "behind the plan")])
    assert compact(theirs) is not None
    expected = [("1", 2, "merged"), ("2", 2, "behind the plan")]
    assert shown(ours) == expected
    put(ours, [("1", "a", 3, "ours")])
    assert shown(opened(storage, clock)) == [("1", 3, "ours"), expected[1]]
    check_times(ours)


def test_an_open_process_stops_when_apache_hudi_upgrades_a_shared_table_of_version_8() -> None:
    ours, storage, clock = shared_table(TableType.COW, 8)
    put(ours, [("1", "a", 1, "x")])
    set_properties(storage, {**read_properties(storage), p.VERSION: "9"})
    with pytest.raises(UnsupportedTable, match="version 9"):
        put(ours, [("1", "a", 2, "y")])
    again = opened(storage, clock)
    assert not again.capabilities.keeps_log
    with pytest.raises(UnsupportedTable, match="version 9"):
        again.check_writable()
    assert shown(again) == [("1", 1, "x")]


@pytest.mark.parametrize("version", [8, 9])
def test_log_files_behind_a_plan_that_an_upgrade_carried_over_are_refused_by_name(version: int) -> None:
    """They are named after the plan, as in version 6: shared, their rows would not come back when the plan is run, as they do for
    Apache Hudi."""
    _, storage, clock = new_table(version=version, type=TableType.MOR)
    ours = opened(storage, clock)
    for ts in (1, 2):
        done = put(ours, [("1", "a", ts, "x")])
    planned = schedule_compaction(ours, {"hoodie.compact.inline.max.delta.commits": 1})
    assert planned is not None
    storage.delete_below(".hoodie/.tideline")
    (stat,) = done.stats
    late = stat.path.replace(done.instant, planned)
    storage.put(late, storage.read(stat.path))
    found = opened(storage, clock)
    assert late in why_unsharable(found)
    with pytest.raises(UnsupportedTable, match=f"behind the plan of compaction {planned}"):
        share_table(found, SHARING, open_hudi_lock)
    storage.delete(late)
    assert why_unsharable(opened(storage, clock)) == ""


@pytest.mark.parametrize("kind", list(TableType))
def test_two_completed_files_of_one_write_are_refused_by_name(kind: TableType) -> None:
    ours, storage, clock = shared_table(kind, 9)
    done = put(ours, [("1", "a", 1, "x")])
    listing_of = list_timeline(storage, NINE)
    (completed,) = (i for i in listing_of.instants if i.time == done.instant)
    again = NINE.timeline_path(completed, instant_from_time(clock.now() + timedelta(seconds=1)))
    storage.put(again, storage.read(listing_of.path(completed)))
    with pytest.raises(CorruptMetadata, match="two completed files of one instant"):
        put(ours, [("1", "a", 2, "y")])
    with pytest.raises(CorruptMetadata, match="two completed files of one instant"):
        opened(storage, clock)
    storage.delete(again)
    put(ours, [("1", "a", 2, "y")])
    assert shown(ours) == [("1", 2, "y")]


def test_a_completed_file_without_a_completion_time_is_refused_by_name() -> None:
    """Its time is that of its file, which a copy changes; by which we would choose the slices of its log files."""
    ours, storage, clock = shared_table(TableType.MOR, 9)
    done = put(ours, [("1", "a", 1, "x")])
    listing_of = list_timeline(storage, NINE)
    (completed,) = (i for i in listing_of.instants if i.time == done.instant)
    path, short = listing_of.path(completed), NINE.timeline_path(completed)
    storage.put(short, storage.read(path))
    storage.delete(path)
    with pytest.raises(UnsupportedTable, match=f"{short} has no completion time in its name"):
        put(ours, [("1", "a", 2, "y")])
    with pytest.raises(UnsupportedTable, match=f"{short} has no completion time in its name"):
        opened(storage, clock)
    storage.put(path, storage.read(short))
    storage.delete(short)
    put(ours, [("1", "a", 2, "y")])
    assert shown(ours) == [("1", 2, "y")]


def test_a_plan_of_a_compaction_names_the_partitions_that_it_leaves_out() -> None:
    """Apache Hudi 1.2 plans for these, and for what was written since: it would compact no others."""
    ours, storage, clock = shared_table(TableType.MOR, 9)
    for ts in (1, 2):
        put(ours, [(key, partition, ts, "x") for key, partition in (("1", "a"), ("2", "b"), ("3", "c"), ("4", "d"))])
    once = {"hoodie.compact.inline.max.delta.commits": 1, "tideline.compaction.max.groups": 1}

    def planned() -> tuple[set[str], list[str]]:
        instant = schedule_compaction(opened(storage, clock), once)
        path = f".hoodie/timeline/{instant}.compaction.requested"
        plan = decode_document(storage.read(path), path)
        return {operation["partitionPath"] for operation in plan["operations"]}, plan["missingSchedulePartitions"]

    taken: set[str] = set()
    for number in range(4):
        partitions, missing = planned()
        assert len(partitions) == 1
        assert missing == sorted({"a", "b", "c", "d"} - partitions)
        taken |= partitions
        put(ours, [(f"new {number}", "e", 1, "x")])
    assert taken == {"a", "b", "c", "d"}


@pytest.mark.parametrize("version", [8, 9])
def test_an_update_names_the_commit_whose_file_it_replaces(version: int) -> None:
    """A clean of Apache Hudi looks for old files only in partitions of which a commit says that it updated a file group."""
    ours, storage, _ = shared_table(TableType.COW, version)
    first = put(ours, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    update = put(ours, [("1", "a", 2, "y")])
    deletion = put(ours, [("2", "a", 2, "x")], Operation.DELETE)
    listing_of = list_timeline(storage, ours.timeline.format)
    named = {}
    for done in (first, update, deletion):
        path = listing_of.path(Instant(done.instant, Action.COMMIT, State.COMPLETED))
        (stat,) = CommitMetadata.from_bytes(storage.read(path), path).stats
        named[done.instant] = stat.prev_commit
    assert named == {first.instant: "null", update.instant: first.instant, deletion.instant: update.instant}


@pytest.mark.parametrize("version", [8, 9])
def test_a_bucket_index_is_shared(version: int) -> None:
    table, storage, clock = new_table(version=version, index=BucketIndex(2))
    assert why_unsharable(table) == ""
    share_table(table, SHARING, open_hudi_lock)
    ours = opened(storage, clock)
    put(ours, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    put(ours, [("1", "a", 2, "y")])
    assert sorted(shown(ours)) == [("1", 2, "y"), ("2", 1, "x")]


@pytest.mark.parametrize("kind", TableType)
def test_new_buckets_get_the_file_ids_of_writers_that_look_for_no_conflicts_until_groups_are_replaced(kind: TableType) -> None:
    table, storage, clock = new_table(version=9, type=kind, index=BucketIndex(2))
    share_table(table, SHARING, open_hudi_lock)
    ours = opened(storage, clock)

    def fixed() -> set[str]:
        return {s.group.partition_path for s in ours.refresh().latest_slices() if s.group.file_id.endswith(FIXED_ID)}

    with pytest.MonkeyPatch.context() as theirs:
        theirs.setattr(Buckets, "new_file_id", lambda _self, _instant, _partition, bucket: f"{bucket:08}{FIXED_ID}")
        put(ours, [("1", "a", 1, "x"), ("2", "b", 1, "x")])
    put(ours, [("3", "c", 1, "x")])
    assert fixed() == {"a", "b", "c"}
    put(ours, [("4", "a", 2, "over")], Operation.INSERT_OVERWRITE)
    delete_partitions(ours, ["b"])
    put(ours, [("5", "b", 2, "again"), ("3", "c", 2, "y")])
    put(ours, [("6", "d", 2, "new")])
    assert sorted(shown(ours)) == [("3", 2, "y"), ("4", 2, "over"), ("5", 2, "again"), ("6", 2, "new")]
    assert fixed() == {"c"}


@pytest.mark.parametrize(("version", "kinds"), [(6, {"APPEND", "MERGE"}), (9, {"CREATE", "MERGE"})])
def test_log_files_have_the_markers_that_rollbacks_of_apache_hudi_take(version: int, kinds: set[str]) -> None:
    ours, storage, _ = shared_table(TableType.MOR, version)
    put(ours, [("1", "a", 1, "x")])
    seen: set[str] = set()
    put_as_usual = storage.put

    def noted(path: str, data: bytes) -> None:
        if ".marker." in path:
            seen.add(path.rpartition(".")[2])
        put_as_usual(path, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "put", noted)
        put(ours, [("1", "a", 2, "y")])
        assert schedule_compaction(ours, {"hoodie.compact.inline.max.delta.commits": 1}) is not None
        assert compact(ours) is not None
    assert seen == kinds
