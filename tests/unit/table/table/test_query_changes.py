"""Incremental queries and changes with images, on both table types, against what the writes did."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.shared import put, shared_table
from tests.unit.table.tables import cluster, contents, create, new_table, open_table, rows_of, write

from tideline_table.action import run_clean, run_compaction, write_rows
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.errors import HistoryUnavailable, InstantNotFound, InvalidOption
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.log.state import TableState
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType, take_lease
from tideline_table.table.changes import PointKind, range_of
from tideline_table.writer import Operation

TYPES = list(TableType)


class HookedStorage(MemoryStorage):
    """Calls `hook` once, when the next base or log file begins."""

    hook = None

    def open_output(self, path):
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return super().open_output(path)


@pytest.fixture(params=TYPES)
def table(request):
    clock = ManualClock()
    storage = HookedStorage(clock=clock)
    create(storage, clock, type=request.param)
    return open_table(storage, clock)


def compact(table):
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    return run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def rows_since(table, since="", until=""):
    found = table.incremental(since, until).read(["id", "ts", "v"]).to_pylist()
    return sorted((r["id"], r["ts"], r["v"]) for r in found)


def images(table, since="", until="", where=None, columns=("id", "v")):
    result = []
    for batch in table.changes(since, until).scan(list(columns), where):
        for row in batch.to_pylist():
            before, after = row["before"], row["after"]
            key = (after or before)["id"]
            result.append((row["op"], key, before and before["v"], after and after["v"]))
    return sorted(result)


def test_each_write_is_seen_once(table):
    one = write(table, [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")])
    two = write(table, [("b", "p", 2, "2"), ("d", "q", 2, "2")])
    three = write(table, [("b", "p", 3, "3")])
    assert rows_since(table) == [("a", 1, "1"), ("b", 3, "3"), ("c", 1, "1"), ("d", 2, "2")]
    assert rows_since(table, one.sequence) == [("b", 3, "3"), ("d", 2, "2")]
    assert rows_since(table, one.sequence, two.sequence) == [("b", 2, "2"), ("d", 2, "2")]
    assert rows_since(table, one.instant, two.instant) == [("b", 2, "2"), ("d", 2, "2")]
    assert rows_since(table, two.sequence, three.sequence) == [("b", 3, "3")]
    assert rows_since(table, three.sequence) == []
    assert rows_since(table, 0, one.sequence) == [("a", 1, "1"), ("b", 1, "1"), ("c", 1, "1")]


def test_filters_and_columns_apply_on_top(table):
    one = write(table, [("a", "p", 1, "1"), ("b", "p", 1, "1")])
    write(table, [("a", "p", 2, "2"), ("b", "p", 3, "3")])
    found = table.incremental(one.sequence)
    assert found.read(["v"], pc.field("ts") > 2).to_pylist() == [{"v": "3"}]


def test_compaction_and_clustering_repeat_nothing(table):
    write(table, [("a", "p", 1, "1"), ("b", "p", 1, "1")])
    kept = write(table, [("a", "p", 2, "2")]).sequence
    write(table, [("c", "p", 2, "2")])
    if table.definition.has_logs:
        assert compact(table) is not None
    schedule_clustering(table)
    assert cluster(table) is not None
    table.refresh()
    assert rows_since(table, kept) == [("c", 2, "2")]
    after = table.state.sequence
    assert rows_since(table, after) == []
    assert images(table, kept) == [("i", "c", None, "2")]
    write(table, [("a", "p", 3, "3")])
    assert rows_since(table, after) == [("a", 3, "3")]
    assert images(table, kept) == [("i", "c", None, "2"), ("u", "a", "2", "3")]


def test_a_write_that_began_early_and_finished_late_is_not_missed(table):
    other = open_table(table.storage, table.clock, "other")
    seen = []

    def overtake():
        write(other, [("fast", "q", 1, "1")])
        seen.append(other.state.sequence)

    table.storage.hook = overtake
    slow = write(table, [("slow", "p", 1, "1")])
    table.refresh()
    fast = next(a for a in table.state.completed_writes() if a.instant != slow.instant)
    assert slow.instant < fast.instant
    assert slow.sequence > seen[0] == fast.sequence
    assert rows_since(table, 0, seen[0]) == [("fast", 1, "1")]
    assert rows_since(table, seen[0]) == [("slow", 1, "1")]
    assert images(table, seen[0]) == [("i", "slow", None, "1")]
    assert rows_since(table, fast.instant) == [("slow", 1, "1")], "an instant stands for the completion of its write"


def test_images_of_inserts_updates_and_deletes(table):
    start = write(table, [(k, "p", 1, "1") for k in "abcd"] + [("x", "q", 1, "1")]).sequence
    middle = write(table, [("a", "p", 2, "2"), ("e", "p", 2, "2")]).sequence
    write(table, [("b", "p", 0, "")], Operation.DELETE)
    write(table, [("a", "p", 3, "3"), ("f", "q", 1, "1")])
    end = write(table, [("f", "q", 0, ""), ("c", "p", 0, "")], Operation.DELETE).sequence
    expected = [("d", "b", "1", None), ("d", "c", "1", None), ("i", "e", None, "2"), ("u", "a", "1", "3")]
    assert images(table, start) == expected
    assert images(table, start, middle) == [("i", "e", None, "2"), ("u", "a", "1", "2")]
    assert images(table, start, where=pc.field("ts") == 3) == [("u", "a", "1", "3")]
    assert images(table, start, where=pc.field("v") == "1") == [("d", "b", "1", None), ("d", "c", "1", None), ("u", "a", "1", "3")]
    assert images(table, "", start) == [("i", k, None, "1") for k in "abcdx"]
    assert images(table, end) == []


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_late_row_that_fills_a_cell_changes_its_row(kind, version, is_compacted):
    """The row keeps the commit time of the write on top."""
    table, _, _ = new_table(type=kind, merge="partial_update", version=version)
    write(table, [("a", "p", 5, None), ("b", "p", 5, "b"), ("c", "p", 5, "c")])
    filled = write(table, [("a", "p", 1, "late"), ("d", "p", 1, "d")]).sequence
    if is_compacted and kind is TableType.MOR:
        assert compact(table) is not None
    found = [image for image in images(table, filled - 2) if image[2] != image[3]]
    assert found == [("i", "d", None, "d"), ("u", "a", None, "late")]
    write(table, [("b", "p", 6, "new")])
    assert [image for image in images(table, filled) if image[2] != image[3]] == [("u", "b", "b", "new")]


def test_replaced_groups(table):
    start = write(table, [("a", "p", 1, "1"), ("b", "p", 1, "1")]).sequence
    write(table, [("c", "p", 1, "1")])
    schedule_clustering(table)
    cluster(table)
    write(table, [("b", "p", 2, "2")])
    write(table, [("a", "p", 0, "")], Operation.DELETE)
    assert images(table, start) == [("d", "a", "1", None), ("i", "c", None, "1"), ("u", "b", "1", "2")]


def test_cleaned_history_is_refused(table):
    for n in range(1, 5):
        write(table, [("a", "p", n, str(n)), ("b", "p", n, str(n))])
        if table.definition.has_logs:
            compact(table)
    assert images(table, 2)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    table.refresh()
    with pytest.raises(HistoryUnavailable):
        table.changes(2)
    with pytest.raises(HistoryUnavailable):
        table.incremental(0, 4)
    assert len(rows_since(table, 2)) == 2, "the rows of now need no old files"


def test_a_file_that_was_cleaned_while_it_was_read_is_said(table):
    write(table, [("a", "p", 1, "1")])
    found = table.incremental(0)
    table.storage.delete(found.slices[0].path)
    with pytest.raises(HistoryUnavailable, match="is gone"):
        found.read()


@pytest.mark.parametrize(
    ("since", "until", "error"),
    [
        ("99", "", InstantNotFound),
        ("yesterday", "", InvalidOption),
        ("-1", "", InvalidOption),
        ("4", "2", InvalidOption),
        ("", "123456789012345", InvalidOption),
    ],
)
def test_points_that_are_none(table, since, until, error):
    write(table, [("a", "p", 1, "1")])
    write(table, [("a", "p", 2, "1")])
    with pytest.raises(error):
        table.incremental(since, until)


def test_a_moment_at_which_nothing_began(table):
    write(table, [("a", "p", 1, "1")])
    table.clock.advance(60)
    moment = table.clock.now().strftime("%Y%m%d%H%M%S")
    write(table, [("b", "p", 1, "1")])
    assert rows_since(table, moment) == [("b", 1, "1")]


@pytest.mark.parametrize(
    ("action", "writer", "expected"),
    [
        (Action.DELTA_COMMIT, "", ["1234", "34", "34", "", "1", "12"]),  # of its listings
        (Action.LOG_COMPACTION, HUDI_WRITER, ["1234", "34", "34", "", "1", "12"]),  # of a shared table, by its plan
        (Action.LOG_COMPACTION, "tideline", ["13", "3", "3", "", "1", "1"]),
    ],
)
def test_rows_of_a_log_compaction_of_apache_hudi_count_for_the_writes_that_it_merged(action, writer, expected):
    """It stamps them with its own instant and commits none: not again behind the last of them."""
    state = TableState()
    for time, operation in (("1", "UPSERT"), ("2", "LOG_COMPACT"), ("3", "BULK_INSERT"), ("4", "LOG_COMPACT")):
        at = f"2026010100000000{time}"
        made = (action, writer) if operation == "LOG_COMPACT" else (Action.DELTA_COMMIT, "")
        state.actions[at] = ActionRecord(at, made[0], State.COMPLETED, operation, 0, 0, made[1])
    written = {
        (since, until): "".join(
            sorted(i[-1] for i in range_of(state, PointKind.INSTANT, since and f"2026010100000000{since}", until).written)
        )
        for since, until in (("", ""), ("1", ""), ("2", ""), ("3", ""), ("", "20260101000000001"), ("", "20260101000000002"))
    }
    assert [*written.values()] == expected


def test_the_feed_of_a_shared_table_shows_a_row_that_a_late_row_brought_back():
    """By Apache Hudi's rule, the late row loses to the row that was deleted before it. The feed showed nothing."""
    table, _, _ = shared_table(TableType.MOR)
    put(table, [("a", "p", 5, "first"), ("b", "p", 1, "other")])
    put(table, [("a", "p", 0, "")], Operation.DELETE)
    before = table.refresh().sequence
    put(table, [("a", "p", 1, "late")])
    assert contents(table) == [("a", "p", 5, "first"), ("b", "p", 1, "other")]
    changes = [row for batch in table.changes(before).scan(["id", "v"]) for row in batch.to_pylist()]
    assert changes == [{"op": "i", "before": None, "after": {"id": "a", "v": "first"}}]


def test_the_file_groups_of_a_write_have_the_changes_of_its_partitions(table):
    one = write(table, [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")])
    two = write(table, [("b", "p", 2, "2"), ("d", "p", 2, "2"), ("c", "q", 2, "2")])
    three = write(table, [("e", "p", 3, "3")], Operation.INSERT_OVERWRITE)
    for since, until in ((0, one.sequence), (one.sequence, two.sequence), (two.sequence, three.sequence)):
        found = table.changes(since, until)
        parts = [row for part in found.by_group() for batch in part.scan(["id", "v"]) for row in batch.to_pylist()]
        whole = [row for batch in found.scan(["id", "v"]) for row in batch.to_pylist()]
        assert sorted(map(str, parts)) == sorted(map(str, whole)) != []
        assert [part.after.slices for part in found.by_group()] == [
            part.after.slices for part in table.changes(since, until).by_group()
        ]


def test_the_state_at_a_sequence_has_the_writes_that_were_complete_then(table):
    write(table, [("a", "p", 1, "a1")])
    other = open_table(table.storage, table.clock, "other")
    between = []
    table.storage.hook = lambda: between.append(write(other, [("b", "p", 2, "b2")]))
    late = write(table, [("c", "q", 3, "c3")])
    (early,) = between
    assert late.instant < early.instant
    assert late.sequence > early.sequence
    then = [("a", "p", 1, "a1"), ("b", "p", 2, "b2")]
    all_rows = [*then, ("c", "q", 3, "c3")]
    for reader in (table, open_table(table.storage, table.clock, "reader")):
        assert contents(reader, early.sequence) == contents(reader, str(early.sequence)) == then
        assert contents(reader, early.instant) == contents(reader, late.sequence) == all_rows
        assert contents(reader, 0) == []
    write(table, [("a", "p", 4, "a4")])
    if table.definition.has_logs:
        compact(table)
    schedule_clustering(table)
    cluster(table)
    assert contents(table, early.sequence) == then
    assert contents(table, late.sequence) == all_rows
    assert {s.group.partition_path for s in table.slices(early.sequence)} == {"p"}
    assert take_lease(table, early.sequence).instant <= late.instant, "what the late write changed stays readable"
    with pytest.raises(InstantNotFound, match="sequence 99"):
        table.read(as_of=99)


def test_the_schema_at_a_sequence_is_that_of_the_writes_that_were_complete_then(table):
    before = write(table, [("a", "p", 1, "a1")])
    options = {"tideline.write.schema.evolution": "evolve"}
    rows = rows_of([("b", "p", 2, "b2")]).append_column("more", pa.array([7]))
    write_rows(table, rows, Operation.UPSERT, options=options, parallelism=1)
    assert "more" in table.schema.names
    assert "more" not in table.read(as_of=before.sequence).column_names
    assert set(table.read(["more"], as_of=table.state.sequence)["more"].to_pylist()) == {None, 7}


def test_changes_of_some_operations(table):
    start = write(table, [("a", "p", 1, "a1"), ("b", "p", 1, "b1")]).sequence
    write(table, [("a", "p", 2, "a2"), ("c", "p", 2, "c2")])
    write(table, [("b", "p", 3, "b3")], Operation.DELETE)

    def found(op, since=start, where=None):
        rows = [row for batch in table.changes(since, op=op).scan(["id"], where) for row in batch.to_pylist()]
        return sorted((row["op"], (row["before"] or row["after"])["id"]) for row in rows)

    assert found("") == [("d", "b"), ("i", "c"), ("u", "a")]
    assert found("deleted") == found(["d"]) == [("d", "b")]
    assert found("i, Updated") == found(["inserted", "u"]) == [("i", "c"), ("u", "a")]
    assert found("u", where=pc.field("v") == "c2") == []
    assert found("i", since="") == [("i", "a"), ("i", "c")]
    assert found("u", since="") == []
    with pytest.raises(InvalidOption, match="operation 'upsert'"):
        found("upsert")
