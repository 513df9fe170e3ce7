"""Log compaction: what it writes, that no row changes for any reader, and what it gives way to."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import DEATH_S, cluster, compact, contents, create, open_table, rows_of, write

from tideline_locks import open_hudi_lock
from tideline_table.action import (
    NotDue,
    Rules,
    TableService,
    cancel_plan,
    create_savepoint,
    judge,
    maintain,
    request_log_compaction,
    restore_to_savepoint,
    roll_back_dead,
    run_clean,
    run_inline,
    run_log_compaction,
    write_rows,
)
from tideline_table.action.log_compaction import run as run_module
from tideline_table.action.log_compaction import task as task_module
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.action.maintenance.verdict import Outcome
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import TransactionRolledBack, UnsupportedTable, VerificationFailed, WriteConflict
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import parse_log_file_name, token_behind
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.log_format import BlockType, scan_log
from tideline_table.log_format.block import HeaderKey
from tideline_table.reader import log_blocks
from tideline_table.reader.log_index import LogIndexes
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import BucketIndex, TableType, share_table
from tideline_table.writer import Operation

NOW = {"hoodie.log.compaction.blocks.threshold": 2}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
ROWS = [(k, p, 1, "x") for p in "pq" for k in "abcd"]


def mor_table(ordering="ts", **options):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR, ordering=ordering)
    table = open_table(storage, clock, **NOW, **options)
    write(table, ROWS)
    return table, storage, clock


def run(table, instant=""):
    return run_log_compaction(table, instant, run=lambda tasks: [merge_log(task, table.storage) for task in tasks])


def log_compact(table):
    assert schedule_log_compaction(table) is not None
    return run(table)


def grown(ordering="ts", **options):
    """A slice with four log files: updates, a deletion, and a row after its deletion. That of the other partition has one."""
    table, storage, clock = mor_table(ordering, **options)
    write(table, [("a", "p", 2, "y"), ("b", "p", 2, "y"), ("a", "q", 2, "y")])
    write(table, [("b", "p", 0, ""), ("c", "p", 0, "")], Operation.DELETE)
    write(table, [("b", "p", 1, "again")])
    write(table, [("a", "p", 3, "z")])
    return table, storage, clock


def slice_of(table, partition="p"):
    (found,) = [s for s in table.slices() if s.group.partition_path == partition]
    return found


def of_hudi(storage, clock):
    """What a reader finds that knows the timeline and the listing only."""
    other = MemoryStorage(clock=clock)
    other._objects.update({path: held for path, held in storage._objects.items() if not path.startswith(".hoodie/.tideline")})
    return contents(open_table(other, clock, "hudi"))


# --- what it writes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_format", ["avro", "parquet"])
@pytest.mark.parametrize("ordering", ["ts", ""])
def test_one_log_file_stands_for_many_and_no_row_changes(ordering, log_format):
    table, storage, clock = grown(ordering, **{"hoodie.logfile.data.block.format": log_format})
    before, old = contents(table), slice_of(table)
    writes = [log.instant for log in old.log_files]
    done = log_compact(table)
    new = slice_of(table)
    assert [s.path for s in done.stats] == [new.log_paths[-1]], "the slice with one log file is left out"
    assert (new.base_file, new.log_files[:-1]) == (old.base_file, old.log_files)
    assert [log.name for log in new.applied.log_files] == [new.log_files[-1].name]
    assert contents(table) == contents(open_table(storage, clock)) == of_hudi(storage, clock) == before
    blocks = scan_log(storage, new.log_paths[-1]).blocks
    assert blocks[0].type is BlockType.DELETE
    assert {b.instant for b in blocks} == {done.instant}
    assert {b.header[HeaderKey.COMPACTED_BLOCK_TIMES] for b in blocks} == {",".join(writes)}
    assert storage.read(f".hoodie/{done.instant}.deltacommit")
    names = {path.rsplit("/", 1)[-1] for path in storage._objects if path.startswith(f".hoodie/{done.instant}")}
    assert names == {f"{done.instant}.{name}" for name in ("deltacommit", "logcompaction.requested", "logcompaction.inflight")}


def test_rows_keep_the_instants_of_their_writes():
    table, _, _ = grown()
    columns = ["_hoodie_record_key", "_hoodie_commit_time", "_hoodie_commit_seqno"]
    before = table.read(columns).sort_by("_hoodie_record_key")
    since = max(log.instant for log in slice_of(table).log_files[:-1])
    log_compact(table)
    assert table.read(columns).sort_by("_hoodie_record_key").equals(before)
    assert table.incremental("0").read().num_rows == before.num_rows
    (row,) = table.incremental(since).read().to_pylist()
    assert (row["id"], row["ts"]) == ("a", 3)
    (change,) = [row for batch in table.changes(since).scan() for row in batch.to_pylist()]
    assert (change["op"], change["before"]["ts"], change["after"]["ts"]) == ("u", 2, 3)
    done = table.newest_point()
    assert not [batch for batch in table.changes(table.state.completed_writes()[-2].instant).scan() if batch.num_rows]
    write(table, [("d", "p", 7, "next")])
    (change,) = [row for batch in table.changes(done).scan() for row in batch.to_pylist()]
    assert (change["op"], change["after"]["id"]) == ("u", "d")


def test_a_second_one_merges_the_first():
    table, storage, clock = grown()
    first = log_compact(table).instant
    assert isinstance(request_log_compaction(table), NotDue), "a reader opens one log file"
    write(table, [("d", "p", 5, "late"), ("c", "p", 5, "back")])
    before, merged = contents(table), [log.instant for log in slice_of(table).log_files]
    done = log_compact(table)
    (applied,) = slice_of(table).applied.log_files
    assert applied.instant == done.instant
    named = scan_log(storage, slice_of(table).log_paths[-1]).blocks[0].header[HeaderKey.COMPACTED_BLOCK_TIMES]
    assert named == ",".join(sorted(merged))
    assert first in named
    assert contents(table) == contents(open_table(storage, clock)) == of_hudi(storage, clock) == before


def test_queries_of_the_past_read_the_log_files_of_their_time():
    table, storage, clock = grown()
    history = [(log.instant, contents_at(table, log.instant)) for log in slice_of(table).log_files]
    done = log_compact(table)
    write(table, [("a", "p", 9, "new")])
    for instant, rows in history:
        assert contents_at(open_table(storage, clock), instant) == rows
    assert contents_at(table, done.instant) == history[-1][1]


def contents_at(table, instant):
    return sorted(tuple(row.values()) for row in table.read(["id", "part", "ts", "v"], as_of=instant).to_pylist())


def test_state_and_checkpoint_hold_what_is_merged():
    table, storage, clock = grown(**{"tideline.log.checkpoint.interval": 2})
    log_compact(table)
    write(table, [("d", "p", 5, "late")])
    again = open_table(storage, clock)
    assert again.state == table.state
    found = slice_of(again)
    assert [log.merges_earlier for log in found.log_files] == [False] * 4 + [True, False]
    assert FileSlice.from_list(found.group, found.to_list()) == found
    assert found.log_files[4].deletes_keys


@pytest.mark.parametrize("token", ["", "0-5-0", "8-5-1", "9-5-1", "99-5-1", "41-2147483646-7"])
def test_its_name_sorts_behind_the_last_file_that_it_merges(token):
    behind = token_behind(token, 7, "20260101000000123")
    assert behind > token
    name = parse_log_file_name(WRITTEN.log_file_name("f", "20260101000000001", "20260101000000002", 3, behind))
    assert name.version == 3
    assert all(int(part) < 2**31 for part in behind.split("-"))


def test_slices_without_a_base_file():
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    options = {**NOW, "tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 10**8}
    table = open_table(storage, clock, **options)
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x")])
    write(table, [("c", "p", 1, "x"), ("a", "p", 2, "y")])
    write(table, [("b", "p", 0, "")], Operation.DELETE)
    before = contents(table)
    log_compact(table)
    (merged,) = slice_of(table).applied.log_files
    assert not slice_of(table).base_file
    assert merged.adds_keys
    assert contents(table) == contents(open_table(storage, clock)) == of_hudi(storage, clock) == before
    done = write(table, [("c", "p", 3, "new"), ("b", "p", 3, "back")])
    assert done.rows_updated + done.rows_inserted == 2
    assert slice_of(table).group.file_id == done.stats[0].file_id, "the look-up finds the keys in the merged file"
    assert contents(table) == of_hudi(storage, clock) == [("a", "p", 2, "y"), ("b", "p", 3, "back"), ("c", "p", 3, "new")]


# --- beside writers ------------------------------------------------------------------------------------------------------------


def test_writers_append_between_its_plan_and_its_end():
    table, storage, clock = grown(ordering="")
    instant = schedule_log_compaction(table)
    write(table, [("a", "p", 4, "newer"), ("b", "p", 4, "newer")])
    write(table, [("d", "p", 0, "")], Operation.DELETE)
    before = contents(table)
    assert run(table).instant == instant
    found = slice_of(table)
    assert [log.merges_earlier for log in found.log_files] == [False] * 4 + [True] + [False] * 2, "in front of the later ones"
    assert contents(table) == of_hudi(storage, clock) == before


def test_a_write_that_began_before_it_commits_behind_it(monkeypatch):
    table, storage, clock = grown()
    real, slow = WriteTransaction.commit, []

    def late(transaction, *arguments, **named):
        if not slow:
            slow.append(log_compact(open_table(storage, clock, "service", **NOW)))
        return real(transaction, *arguments, **named)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    done = write(table, [("a", "p", 7, "slow")], **{"tideline.write.conflict.retries": 1})
    assert done.attempts == 1, "a log compaction is no conflict"
    assert [log.instant for log in slice_of(table).log_files][-2:] == [slow[0].instant, done.instant]
    assert ("a", "p", 7, "slow") in contents(table)


def test_it_gives_way_to_a_compaction_and_to_a_clustering():
    for act in (lambda t: schedule_compaction(t, AT_ONCE), compact, _cluster):
        table, storage, clock = grown()
        instant = schedule_log_compaction(table)
        act(open_table(storage, clock, "other"))
        before = contents(table)
        with pytest.raises(WriteConflict):
            run(table)
        assert table.state.actions[instant].state is State.ROLLED_BACK
        assert contents(open_table(storage, clock)) == before
        assert not [path for path in storage._objects if ".log." in path and instant_in(path, instant)]
        assert not [path for path in storage._objects if path.startswith(f".hoodie/{instant}.logcompaction")]


def test_it_gives_way_to_a_plan_before_it_writes():
    table, storage, clock = grown()
    schedule_log_compaction(table)
    schedule_compaction(open_table(storage, clock, "other"), AT_ONCE)
    ran = []
    with pytest.raises(WriteConflict, match="under compaction"):
        run_log_compaction(table, run=ran.append)
    assert ran == [], "no task ran"


@pytest.mark.parametrize("buckets", [0, 2])
def test_plans_leave_out_the_groups_of_one_that_runs(buckets):
    """A plan over them would make what it has written so far worthless."""
    table, storage, clock = grown() if not buckets else _in_buckets(buckets)
    merging = set(table.state.planned_groups(schedule_log_compaction(table)))
    other = open_table(storage, clock, "other")
    sorting = {"tideline.clustering.min.input.files": 1, "hoodie.clustering.plan.strategy.sort.columns": "id"}

    def plan_beside(tasks):
        other.refresh()
        for instant in (schedule_clustering(other, sorting), schedule_compaction(other, AT_ONCE)):
            assert instant is None or not merging & set(other.state.planned_groups(instant))
        return [merge_log(task, table.storage) for task in tasks]

    assert run_log_compaction(table, run=plan_beside) is not None
    write(other, [("b", "q", 2, "y")])
    behind = schedule_compaction(other, AT_ONCE)
    assert behind is not None
    assert merging <= set(other.state.planned_groups(behind)), "they are free again"


def _in_buckets(buckets):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR, index=BucketIndex(buckets) if buckets else None)
    table = open_table(storage, clock, **NOW)
    write(table, [("a", "p", 1, "x")])
    for number in range(4):
        write(table, [("a", "p", 2 + number, "y")])
    return table, storage, clock


def _cluster(table):
    assert schedule_clustering(table, {"tideline.clustering.min.input.files": 1}) is not None
    return cluster(table)


def instant_in(path, instant):
    return f"-{int(instant) % 2_147_483_647}-" in path


def test_it_gives_way_to_an_overwrite():
    table, storage, clock = grown()
    schedule_log_compaction(table)
    write(open_table(storage, clock, "other"), [("o", "p", 1, "only")], Operation.INSERT_OVERWRITE)
    with pytest.raises(WriteConflict, match="was replaced"):
        run(table)


def test_it_gives_way_to_a_change_of_the_schema():
    table, storage, clock = grown()
    instant = schedule_log_compaction(table)
    clock.advance(1)
    wider = rows_of([("a", "p", 8, "wider")]).append_column("extra", pa.array([1], pa.int64()))
    evolve = {"tideline.write.schema.evolution": "evolve"}
    write_rows(open_table(storage, clock, "other"), wider, Operation.UPSERT, options=evolve, parallelism=1)
    with pytest.raises(WriteConflict, match="schema of the table was changed"):
        run(table)
    assert table.state.actions[instant].state is State.ROLLED_BACK
    before = table.read().sort_by("_hoodie_record_key")
    log_compact(table)
    assert table.read().sort_by("_hoodie_record_key").equals(before)


def test_a_compaction_behind_it_reads_one_log_file(monkeypatch):
    table, storage, clock = grown()
    log_compact(table)
    before, names = contents(table), [log.name for log in slice_of(table).log_files]
    schedule_compaction(table, AT_ONCE)
    plan = table.state.plans[next(iter(table.state.plans))].plan
    assert plan["operations"][0]["deltaFilePaths"] == names, "for executors that do not know what is merged"
    opened = []
    real = storage.open_input
    monkeypatch.setattr(storage, "open_input", lambda path, *a, **k: opened.append(path) or real(path, *a, **k))
    compact(table)
    assert contents(table) == of_hudi(storage, clock) == before
    assert not slice_of(table).log_files


def test_groups_in_pending_plans_are_left_out():
    table, _, _ = grown()
    schedule_compaction(table, AT_ONCE)
    assert isinstance(request_log_compaction(table), NotDue)
    table, _, _ = grown()
    assert schedule_log_compaction(table) is not None
    assert isinstance(request_log_compaction(table), NotDue), "one plan at a time for a slice"


def test_thresholds():
    table, _, _ = grown()
    answer = request_log_compaction(table, {"hoodie.log.compaction.blocks.threshold": 5})
    assert isinstance(answer, NotDue)
    assert "at most 4 log file(s)" in answer.reason
    answer = request_log_compaction(table, {"tideline.log.compaction.max.bytes": 10})
    assert isinstance(answer, NotDue)
    assert "more log bytes" in answer.reason


@pytest.mark.parametrize("ordering", ["ts", ""])
def test_readers_that_apply_merged_blocks_too_find_the_same_rows(monkeypatch, ordering):
    """As Apache Hudi 0.15 does: all blocks count, in the order of the files' names."""
    table, storage, clock = grown(ordering)
    schedule_log_compaction(table)
    write(table, [("a", "p", 4, "newer"), ("b", "p", 4, "newer")])
    write(table, [("d", "p", 0, "")], Operation.DELETE)
    run(table)
    write(table, [("c", "p", 5, "back")])
    monkeypatch.setattr(log_blocks, "_with_compacted", lambda blocks: blocks)
    assert of_hudi(storage, clock) == contents(table)
    # Behind the files that were appended meanwhile, as Apache Hudi names its own, it would bring older rows back.
    merged = next(log for log in slice_of(table).log_files if log.merges_earlier)
    path = next(p for p in storage._objects if p.endswith(merged.name))
    storage.put(path.replace(f".log.{merged.version}_", ".log.99_"), storage.read(path))
    assert of_hudi(storage, clock) != contents(table)


# --- deaths and undoing ----------------------------------------------------------------------------------------------------------


def test_a_dead_one_is_rolled_back_and_a_plan_stays():
    table, storage, clock = grown()
    instant = schedule_log_compaction(table)
    clock.advance(DEATH_S)
    assert roll_back_dead(table) == []
    assert table.state.is_pending(instant)

    def die(tasks):
        [merge_log(task, table.storage) for task in tasks]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_log_compaction(table, run=die)
    before = contents(table)
    clock.advance(DEATH_S)
    other = open_table(storage, clock, "recovery")
    assert roll_back_dead(other) == [instant]
    assert not [path for path in storage._objects if instant_in(path, instant)]
    assert contents(other) == before
    assert log_compact(open_table(storage, clock, **NOW)) is not None


def test_the_slower_of_two_runs_loses_and_leaves_nothing_behind():
    table, storage, clock = grown()
    schedule_log_compaction(table)

    def slow(tasks):
        found = [merge_log(task, table.storage) for task in tasks]
        clock.advance(DEATH_S)
        assert run(open_table(storage, clock, "faster", **NOW)) is not None
        return found

    with pytest.raises(TransactionRolledBack):
        run_log_compaction(table, run=slow)
    known = {path for s in open_table(storage, clock).state.every_slice() for path in s.paths}
    assert {path for path in storage._objects if ".log." in path and not path.startswith(".hoodie")} <= known


def test_a_result_that_lost_a_row_or_a_deletion_is_not_committed(monkeypatch):
    for lost in ("rows", "deleted"):
        table, storage, clock = grown()
        instant, before = schedule_log_compaction(table), contents(table)
        real = task_module.write_merged_log

        def lossy(storage, path, log, *more, lost=lost, real=real):
            cut = {"rows": log.rows.slice(1)} if lost == "rows" else {"deleted": log.deleted.slice(1), "purged": log.purged[1:]}
            return real(storage, path, replace(log, **cut), *more)

        with monkeypatch.context() as patched:
            patched.setattr(task_module, "write_merged_log", lossy)
            with pytest.raises(VerificationFailed):
                run(table)
        assert table.state.actions[instant].state is State.ROLLED_BACK
        assert contents(open_table(storage, clock)) == of_hudi(storage, clock) == before


def test_a_restore_undoes_it_and_reads_the_merged_files_again():
    table, storage, clock = grown()
    saved = slice_of(table).log_files[-1].instant
    create_savepoint(table, saved)
    before = contents(table)
    instant = log_compact(table).instant
    write(table, [("a", "p", 9, "new")])
    clock.advance(1)
    restore_to_savepoint(table, saved)
    assert contents(table) == of_hudi(storage, clock) == before
    assert not [log for log in slice_of(table).log_files if log.instant == instant]
    assert log_compact(table) is not None


def test_a_restore_ends_a_plan_that_is_newer_than_the_savepoint():
    table, storage, clock = grown()
    create_savepoint(table, slice_of(table).log_files[-1].instant)
    before, instant = contents(table), schedule_log_compaction(table)
    restore_to_savepoint(table, min(table.state.savepoints))
    assert table.state.actions[instant].state is State.ROLLED_BACK
    assert contents(table) == of_hudi(storage, clock) == before
    assert log_compact(table) is not None


def test_a_savepoint_of_it_keeps_all_its_files():
    table, storage, clock = grown()
    instant = log_compact(table).instant
    create_savepoint(table, instant)
    before = contents(table)
    compact(table)
    for number in range(3):
        write(table, [("a", "p", 10 + number, "new")])
    if schedule_clean(table, {"hoodie.cleaner.commits.retained": 1}):
        run_clean(table)
    restore_to_savepoint(table, instant)
    assert contents(table) == of_hudi(storage, clock) == before


def test_a_clean_deletes_the_merged_files_with_their_slice():
    table, storage, _ = grown()
    log_compact(table)
    old = slice_of(table)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    assert all(path in storage._objects for path in old.paths), "the slice is the newest one"
    compact(table)
    for number in range(2):
        write(table, [("a", "p", 10 + number, "new")])
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1}) is not None
    run_clean(table)
    assert not [path for path in old.paths if path in storage._objects]


@pytest.mark.parametrize("replace", ["overwrite", "compaction"])
def test_a_clean_leaves_no_file_of_a_plan_behind_that_can_only_give_way(replace):
    """The plan names the later files of a slice without a base file only, and the log knows a cleaned slice no longer."""
    table, storage, _ = grown(**{"tideline.insert.to.log": True})
    assert not slice_of(table).base_file
    log_compact(table)
    write(table, [("a", "p", 4, "z")])
    instant, old = schedule_log_compaction(table), slice_of(table)
    if replace == "overwrite":
        write(table, [("o", "p", 1, "only")], Operation.INSERT_OVERWRITE)
    else:
        compact(table)
    for number in range(3):
        write(table, [("a", "q", 10 + number, "new")])

    def clean():
        if schedule_clean(table, {"hoodie.cleaner.commits.retained": 1}):
            run_clean(table)

    clean()
    cancel_plan(table, instant)
    clean()
    assert not [path for path in old.paths if path in storage._objects]


def test_it_can_be_cancelled():
    table, _, _ = grown()
    instant = schedule_log_compaction(table)
    assert cancel_plan(table, instant).service is TableService.LOG_COMPACTION
    assert log_compact(table).instant > instant


# --- where it is offered
# -----------------------------------------------------------------------------------------------------------


def test_refused_for_tables_without_logs():
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock)
    table = open_table(storage, clock, **NOW)
    with pytest.raises(UnsupportedTable, match="copy-on-write"):
        schedule_log_compaction(table)
    assert judge(table, TableService.LOG_COMPACTION, Rules()).outcome is Outcome.NOT_APPLICABLE


def on_disk(tmp_path):
    """A table that services can open by its path."""
    clock = ManualClock()
    storage = LocalStorage(tmp_path / "t")
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **NOW)
    write(table, ROWS)
    for number in range(3):
        write(table, [("a", "p", 2 + number, "y")])
    return table


def test_maintenance_includes_it_where_it_is_switched_on(tmp_path):
    table = on_disk(tmp_path)
    assert judge(table, TableService.LOG_COMPACTION, Rules()).outcome is Outcome.OFF
    off = {"hoodie.compact.inline.max.delta.commits": 100}
    assert {s.outcome for s in maintain(table, Rules(options=off)) if s.service is TableService.LOG_COMPACTION} == {"nothing"}
    options = {"hoodie.log.compaction.enable": True, **off}
    assert judge(table, TableService.LOG_COMPACTION, Rules(options=options)).outcome is Outcome.DUE
    (step,) = [s for s in maintain(table, Rules(options=options)) if s.service is TableService.LOG_COMPACTION]
    assert (step.outcome, step.files, step.rows) == ("done", 1, 1)
    assert len(slice_of(table).applied.log_files) == 1


def test_inline_behind_a_commit(tmp_path):
    table = on_disk(tmp_path)
    assert run_inline(table) == ()
    (done,) = run_inline(table, {"hoodie.log.compaction.inline": True})
    assert (done.service, done.is_run, done.error) == (TableService.LOG_COMPACTION, True, "")


def test_look_ups_open_the_merged_file_only(monkeypatch):
    table, _, _ = grown()
    log_compact(table)
    found = slice_of(table)
    asked = []
    real = LogIndexes.scan
    monkeypatch.setattr(LogIndexes, "scan", lambda self, s, wanted: asked.append(s.log_paths) or real(self, s, wanted))
    write(table, [("b", "p", 9, "new"), ("c", "p", 9, "new")])
    rows = contents(table)
    assert ("b", "p", 9, "new") in rows
    assert ("c", "p", 9, "new") in rows
    assert all(set(paths) <= {found.log_paths[-1], *slice_of(table).log_paths[len(found.log_files) :]} for paths in asked)


def test_its_timeline_action_completes_as_a_delta_commit():
    table, _, _ = grown()
    done = log_compact(table)
    record = table.state.actions[done.instant]
    assert (record.action, record.operation, record.state) == (Action.LOG_COMPACTION, "LOG_COMPACT", State.COMPLETED)
    assert FileGroupId("p", done.stats[0].file_id) == slice_of(table).group
    assert run_module.why_not_log_compacted(table) is None


def test_a_table_with_a_log_compaction_is_not_shared_until_it_is_compacted():
    table, _, _ = grown()
    instant = schedule_log_compaction(table)
    with pytest.raises(UnsupportedTable, match=f"log compaction {instant} of table 't1' is pending"):
        share_table(table, SHARING, open_hudi_lock)
    run(table)
    with pytest.raises(UnsupportedTable, match="has a log file that a log compaction wrote"):
        share_table(table, SHARING, open_hudi_lock)
    compact(table)
    shared = share_table(table, SHARING, open_hudi_lock)
    with pytest.raises(UnsupportedTable, match="shared table"):
        schedule_log_compaction(shared)


@pytest.mark.parametrize("log_format", ["avro", "parquet"])
def test_a_deleted_key_that_only_merged_files_held_is_compared_with_its_deletion(log_format):
    """A row behind the deletion is a new row, in the file group that deleted the key: it is there once."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **NOW, **{"tideline.insert.to.log": True, "hoodie.logfile.data.block.format": log_format})
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x")])
    clock.advance(1)
    ordered = rows_of([("a", "p", 5, "")]).append_column("_hoodie_is_deleted", pa.array([True]))
    write_rows(table, ordered, Operation.UPSERT, options={}, parallelism=1)
    log_compact(table)
    write(table, [("a", "p", 3, "behind")])
    assert contents(open_table(storage, clock)) == [("a", "p", 3, "behind"), ("b", "p", 1, "x")]
    write(table, [("a", "p", 6, "newer")])
    assert contents(table) == [("a", "p", 6, "newer"), ("b", "p", 1, "x")]
