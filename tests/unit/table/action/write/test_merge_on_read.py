"""Merge-on-read tables end to end: what goes to the log, what to base files, and that reading gives the state of a plain model."""

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, rows_of, write

from tideline_table.action import run_clean, write_rows
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.compaction.run import run_compaction
from tideline_table.action.recovery import roll_back_dead
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import WriteConflict
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.instant import Action
from tideline_table.log_format import BlockType, parquet_block, scan_log
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType, summarise
from tideline_table.writer import Operation, log_file

FORMATS = ("parquet", "avro")
OPTIONS = {"hoodie.parquet.small.file.limit": 100_000_000}


def mor_table(log_format="parquet", **options):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    return open_table(storage, clock, **OPTIONS, **{"hoodie.logfile.data.block.format": log_format}, **options), storage, clock


def compact(table, instant=""):
    return run_compaction(table, instant, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def names(table):
    return [path.rsplit("/", 1)[-1] for s in table.slices() for path in s.paths]


@pytest.mark.parametrize("log_format", FORMATS)
def test_updates_go_to_the_log_and_inserts_to_base_files(log_format):
    table, storage, _ = mor_table(log_format)
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x")])
    (first,) = table.slices()
    assert not first.log_files
    committed = write(table, [("a", "p", 2, "new")])
    (second,) = table.slices()
    assert (second.base_file, len(second.log_files)) == (first.base_file, 1)
    assert (committed.rows_updated, committed.rows_inserted) == (1, 0)
    (block,) = scan_log(storage, second.log_paths[0]).blocks
    assert block.type is (BlockType.AVRO if log_format == "avro" else BlockType.PARQUET)
    assert block.instant == committed.instant
    assert contents(table) == [("a", "p", 2, "new"), ("b", "p", 1, "x")]
    stat = committed.stats[0].to_json()
    assert (stat["logVersion"], stat["baseFile"], stat["logFiles"]) == (1, first.base_file, [second.log_files[0].name])
    assert storage.read(f".hoodie/{committed.instant}.deltacommit")


@pytest.mark.parametrize("log_format", FORMATS)
def test_deletes(log_format):
    table, storage, _ = mor_table(log_format)
    write(table, [(k, "p", 5, "x") for k in "abcd"])
    write(table, [("a", "p", 0, "x")], Operation.DELETE)
    assert [r[0] for r in contents(table)] == ["b", "c", "d"]
    (file_slice,) = table.slices()
    assert [b.type for b in scan_log(storage, file_slice.log_paths[0]).blocks] == [BlockType.DELETE]
    write(table, [("a", "p", 6, "back")])
    assert contents(table)[0] == ("a", "p", 6, "back"), "a deletion without an ordering value ends with the next version"


def test_marked_deletions_compare_ordering_values():
    table, _, _ = mor_table()
    write(table, [(k, "p", 5, "x") for k in "ab"])
    marked = pa.table({"id": ["a", "b"], "part": ["p", "p"], "ts": [4, 6], "v": ["x", "x"], "_hoodie_is_deleted": [True, True]})
    write_rows(table, marked, Operation.UPSERT, parallelism=1)
    assert [r[0] for r in contents(table)] == ["a"], "the older deletion loses against the row"


def test_older_versions_lose_by_event_time():
    table, _, _ = mor_table()
    write(table, [("a", "p", 5, "x")])
    write(table, [("a", "p", 3, "late")])
    assert contents(table) == [("a", "p", 5, "x")]


def test_every_append_is_a_file_with_a_version_of_its_own():
    table, _, _ = mor_table()
    write(table, [("a", "p", 1, "x")])
    for ts in (2, 3, 4):
        write(table, [("a", "p", ts, "x")])
    (file_slice,) = table.slices()
    parsed = [parse_log_file_name(log.name) for log in file_slice.log_files]
    assert [p.version for p in parsed] == [1, 2, 3]
    assert {p.instant for p in parsed} == {file_slice.base_instant}
    assert len({p.write_token for p in parsed}) == 3


def test_inserts_fill_small_groups_only_without_log_files():
    table, _, _ = mor_table()
    write(table, [("a", "p", 1, "x")])
    write(table, [("b", "p", 1, "x")])
    assert len(table.slices()) == 1, "a small group without a log takes the insert"
    write(table, [("a", "p", 2, "x")])
    write(table, [("c", "p", 1, "x"), ("b", "p", 2, "y")])
    assert len(table.slices()) == 2
    assert contents(table) == [("a", "p", 2, "x"), ("b", "p", 2, "y"), ("c", "p", 1, "x")]


def test_large_appends_are_split_into_blocks():
    table, storage, _ = mor_table(**{"hoodie.logfile.data.block.max.size": "2048"})
    write(table, [(f"k{n:03d}", "p", 1, "x" * 50) for n in range(100)])
    write(table, [(f"k{n:03d}", "p", 2, "y" * 50) for n in range(100)])
    (file_slice,) = table.slices()
    assert len(scan_log(storage, file_slice.log_paths[0]).blocks) > 3
    assert {r[2] for r in contents(table)} == {2}


def test_of_two_appends_to_one_group_the_later_moves_behind_without_writing_rows_again(monkeypatch):
    table, storage, _ = mor_table()
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x")])
    other = open_table(storage, table.clock, "other")
    appended = []
    monkeypatch.setattr(log_file, "parquet_block", lambda *a, **named: appended.append(a[2]) or parquet_block(*a, **named))
    conflicts = []
    stage = WriteTransaction.commit

    def late(self, *arguments, **named):
        if not conflicts:
            conflicts.append("under way")
            write(other, [("b", "p", 2, "other")])
            write(other, [("b", "p", 3, "other")])
        return stage(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTransaction, "commit", late)
        committed = write(table, [("a", "p", 2, "mine")])
    assert committed.attempts == 1
    assert appended.count(committed.instant) == 1
    expected = [("a", "p", 2, "mine"), ("b", "p", 3, "other")]
    assert contents(table) == expected
    assert contents(open_table(storage, table.clock, "fresh")) == expected
    (file_slice,) = table.slices()
    assert [log.version for log in file_slice.log_files] == [1, 2, 3]
    assert file_slice.log_files[-1].instant == committed.instant
    on_storage = {o.path for o in storage.list_objects("p") if ".log." in o.path}
    assert on_storage == set(file_slice.log_paths), "the log file that moved is gone from its old place"


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_two_appends_of_one_row_the_later_is_done_again(order, deletes):
    """Whichever of the log files that were appended meanwhile holds the row."""
    table, storage, _ = mor_table()
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "p", 1, "x")])
    other = open_table(storage, table.clock, "other")
    stage, conflicts, begun = WriteTransaction.commit, [], []

    def late(self, *arguments, **named):
        if not begun:
            begun.append(self.instant)
            for key in order:
                write(other, [(key, "p", 2, "other")], Operation.DELETE if deletes else Operation.UPSERT)
        return stage(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTransaction, "commit", late)
        incoming = rows_of([("a", "p", 3, "mine"), ("c", "p", 3, "mine")])
        committed = write_rows(table, incoming, Operation.UPSERT, on_conflict=lambda error, _: conflicts.append(str(error)))
    assert committed.attempts == 2
    assert "other writers changed rows" in conflicts[0]
    of_other = [] if deletes else [("b", "p", 2, "other")]
    assert contents(table) == [("a", "p", 3, "mine"), *of_other, ("c", "p", 3, "mine")]
    on_storage = {o.path for o in storage.list_objects("p") if ".log." in o.path}
    assert on_storage == {path for s in table.slices() for path in s.log_paths}


def test_rollback_removes_log_files():
    table, storage, clock = mor_table()
    write(table, [("a", "p", 1, "x")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTransaction, "commit", lambda *_, **named: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(WriteTransaction, "roll_back", lambda self: self.abandon())
        with pytest.raises(KeyboardInterrupt):
            write(table, [("a", "p", 2, "dead")])
    assert any(".log." in o.path for o in storage.list_objects("p"))
    assert contents(table) == [("a", "p", 1, "x")]
    clock.advance(DEATH_S)
    assert len(roll_back_dead(table)) == 1
    assert not any(".log." in o.path for o in storage.list_objects("p"))


def compactable(log_format="parquet"):
    table, storage, clock = mor_table(log_format, **{"hoodie.compact.inline.max.delta.commits": "2"})
    write(table, [(k, "p", 1, "x") for k in "abc"])
    write(table, [("a", "p", 2, "y")])
    write(table, [("b", "p", 0, "")], Operation.DELETE)
    return table, storage, clock


@pytest.mark.parametrize("log_format", FORMATS)
def test_compaction_keeps_the_rows(log_format):
    table, storage, _ = compactable(log_format)
    before = table.read().sort_by("id").drop_columns(["_hoodie_file_name"])
    instant = schedule_compaction(table)
    assert table.read().sort_by("id").drop_columns(["_hoodie_file_name"]).equals(before), "planned, not run"
    committed = compact(table)
    assert committed.instant == instant
    (file_slice,) = table.slices()
    assert (file_slice.log_files, file_slice.base_instant, file_slice.rows) == ((), instant, 2)
    assert table.read().sort_by("id").drop_columns(["_hoodie_file_name"]).equals(before), "commit times stay those of the writes"
    assert storage.read(f".hoodie/{instant}.commit")
    assert schedule_compaction(table) is None


def test_writers_go_on_while_a_compaction_is_pending():
    table, _storage, _ = compactable()
    instant = schedule_compaction(table)
    write(table, [("c", "p", 2, "later")])
    (file_slice,) = table.slices()
    assert parse_log_file_name(file_slice.log_files[-1].name).instant == instant
    assert parse_log_file_name(file_slice.log_files[-1].name).version == 1
    expected = [("a", "p", 2, "y"), ("c", "p", 2, "later")]
    assert contents(table) == expected
    write(table, [("d", "p", 1, "new")])
    assert len(table.slices()) == 2, "a group under compaction takes no inserts"
    compact(table)
    assert contents(table) == [*expected, ("d", "p", 1, "new")]
    assert [len(s.log_files) for s in table.slices() if s.base_instant == instant] == [1]


def test_an_append_from_before_the_plan_is_done_again():
    table, storage, _ = compactable()
    other = open_table(storage, table.clock, "other", **table.options.given())
    stage, planned = WriteTransaction.commit, []

    def late(self, *arguments, **named):
        if not planned:
            planned.append(schedule_compaction(other))
        return stage(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTransaction, "commit", late)
        assert write(table, [("c", "p", 2, "late")]).attempts == 2
    compact(table)
    assert contents(table) == [("a", "p", 2, "y"), ("c", "p", 2, "late")]


@pytest.mark.parametrize("deletes", [False, True])
def test_a_compaction_and_as_many_appends_as_it_merged_do_not_make_an_old_slice_look_unchanged(deletes):
    """Found by the simulator: as many log files before as after, and the append of the same row in between was lost."""
    table, storage, _ = compactable()
    other = open_table(storage, table.clock, "other", **table.options.given())
    instant = schedule_compaction(table)
    commit, between = WriteTransaction.commit, []

    def late(self, *arguments, **named):
        if not between:
            between.append(instant)
            compact(other)
            write(other, [("c", "p", 2, "between")])
            write(other, [("c", "p", 3, "between")])
        return commit(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTransaction, "commit", late)
        rows, operation = [("c", "p", 4, "late")], Operation.DELETE if deletes else Operation.UPSERT
        assert write(table, rows, operation).attempts == 2
    (file_slice,) = table.slices()
    assert [log.version for log in file_slice.log_files] == [1, 2, 3]
    assert contents(table) == [("a", "p", 2, "y"), *([] if deletes else rows)]


def test_a_failed_compaction_stays_pending_and_is_run_again():
    table, _, clock = compactable()
    instant = schedule_compaction(table)

    def fail(tasks):
        raise WriteConflict("the cluster is gone", with_instant="")

    with pytest.raises(WriteConflict):
        run_compaction(table, run=fail)
    assert roll_back_dead(table) == []
    clock.advance(DEATH_S)
    assert roll_back_dead(table) == [], "a compaction is never rolled back"
    assert compact(table).instant == instant
    assert contents(table) == [("a", "p", 2, "y"), ("c", "p", 1, "x")]


def test_a_compaction_of_deleted_rows_writes_an_empty_base_file():
    table, _, _ = mor_table(**{"hoodie.compact.inline.max.delta.commits": "1"})
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 0, "")], Operation.DELETE)
    schedule_compaction(table)
    compact(table)
    assert [s.rows for s in table.slices()] == [0]
    assert contents(table) == []


def test_clustering_merges_logs():
    table, _, _ = mor_table()
    table.options = table.options.merged({"hoodie.parquet.small.file.limit": 0})
    write(table, [("a", "p", 1, "x")])
    write(table, [("b", "p", 1, "x")])
    write(table, [("a", "p", 2, "y")])
    before = contents(table)
    schedule_clustering(table)
    cluster(table)
    (file_slice,) = table.slices()
    assert not file_slice.log_files
    assert contents(table) == before


def test_cleaning_takes_log_files_with_their_slice():
    table, storage, _ = compactable()
    schedule_compaction(table)
    compact(table)
    for ts in range(3, 6):
        write(table, [("a", "p", ts, "z")])
    options = {"hoodie.cleaner.commits.retained": "1"}
    assert schedule_clean(table, options)
    assert run_clean(table) == 3, "a base file and two log files"
    assert contents(table)[0] == ("a", "p", 5, "z")
    assert sorted(names(table)) == sorted(
        o.path.rsplit("/", 1)[-1] for o in storage.list_objects("p") if not o.path.endswith("metadata")
    )


def test_the_action_of_a_write_is_a_delta_commit():
    table, _, _ = mor_table()
    instant = write(table, [("a", "p", 1, "x")], Operation.BULK_INSERT).instant
    assert table.state.actions[instant].action is Action.DELTA_COMMIT


def test_the_summary_counts_log_files_with_the_newest_slices():
    table = mor_table()[0]
    for version in (1, 2):
        write(table, [("a", "p", version, "y")])
    summary = summarise(table)
    assert summary.files == summary.latest_files == sum(len(s.paths) for s in table.slices()) > summary.file_groups
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    compact(table)
    assert summarise(table).files > summarise(table).latest_files
