"""The update strategy carry-over: a clustering adds to its output what writers appended to its input while it ran, and changes
no row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering
from tests.simulation.faults import SimulatedCrash
from tests.unit.table.shared import opened, shared_table
from tests.unit.table.tables import DEATH_S, cluster, compact, contents, listing, new_table, open_table, rows_of, write

import tideline
from tideline_table.action import (
    Outcome,
    Rules,
    TableService,
    check_table,
    create_metadata,
    create_savepoint,
    judge,
    maintain,
    preview_clustering,
    restore_to_savepoint,
    run_clustering,
    write_rows,
)
from tideline_table.action.clustering import carried_file, carry_over
from tideline_table.action.clustering import run as clustering_run
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.write import tagging
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination import Heartbeat
from tideline_table.coordination.committed import Committed
from tideline_table.errors import ClusteringFirst, UnsupportedTable, VerificationFailed, WriteConflict
from tideline_table.log.body import CARRIED_KEY
from tideline_table.log.checkpoint import write_checkpoint
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.storage import LocalStorage
from tideline_table.table import BucketIndex, Table, TableType
from tideline_table.writer import Operation

CARRY = {
    "hoodie.clustering.updates.strategy": "carry-over",
    "tideline.clustering.min.input.files": 1,
    "hoodie.clustering.plan.strategy.sort.columns": "ts",
}
TO_LOG = {"tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 10**8}
_LOG_NAME = re.compile(r"\.log\.\d+_[\d-]+$")
NO_RETRY = {"tideline.write.conflict.retries": 0}


def filled(**more: Any) -> Table:
    """Four files of two rows each in partition p."""
    table, _, _ = new_table(type=more.pop("type", TableType.MOR), **more)
    for n in range(4):
        write(table, [(f"a{n}", "p", n, "x"), (f"b{n}", "p", 10 + n, "x")])
    return table


def clustered(table: Table, during: Callable[[Table], object], **options: Any) -> Committed | None:
    """Run a clustering, with what `during` does in another process between its tasks and its commit."""
    chosen = {**CARRY, **options}
    assert schedule_clustering(table, chosen) is not None

    def run(tasks: Any) -> Any:
        results = [cluster_group(task, table.storage) for task in tasks]
        during(open_table(table.storage, table.clock, "writer"))
        return results

    return run_clustering(table, options=chosen, run=run)


def updates(writer: Table) -> None:
    write(writer, [("a0", "p", 20, "u1"), ("b3", "p", 21, "u1")], **NO_RETRY)
    write(writer, [("a0", "p", 22, "u2"), ("a1", "p", 1, "late")], **NO_RETRY)
    write(writer, [("b1", "p", 0, "")], Operation.DELETE, **NO_RETRY)
    write(writer, [("new", "p", 5, "n")], **NO_RETRY)


def test_writers_commit_at_once_and_the_clustering_keeps_their_rows():
    table, expected = filled(), filled()
    updates(expected)
    done = clustered(table, updates)
    assert done is not None
    assert contents(open_table(table.storage, table.clock)) == contents(expected)
    (made,) = [s for s in table.slices() if s.base_instant == done.instant]
    assert len(made.log_files) == 3, "one for each write that appended to the input"
    writes = sorted({log.instant for log in made.log_files})
    assert all(at > done.instant for at in writes)
    extra = json.loads(table.storage.read(f".hoodie/{done.instant}.replacecommit"))["extraMetadata"]
    assert sorted(json.loads(extra[CARRIED_KEY])) == writes


def test_the_plan_says_so_to_an_executor_with_other_options():
    table, expected = filled(), filled()
    updates(expected)
    assert schedule_clustering(table, CARRY) is not None
    updates(open_table(table.storage, table.clock, "writer"))
    done = cluster(open_table(table.storage, table.clock, "executor"))
    assert done is not None
    assert sum(stat.is_log for stat in done.stats) == 3
    assert contents(open_table(table.storage, table.clock)) == contents(expected)


def test_the_rows_keep_their_meta_fields():
    table = filled()
    clustered(table, updates)
    rows = {r["id"]: r for r in table.read(["id", "_hoodie_commit_time", "_hoodie_file_name"]).to_pylist()}
    (made,) = [s for s in table.slices() if len(s.log_files)]
    assert rows["a0"]["_hoodie_commit_time"] == made.log_files[1].instant
    assert rows["b3"]["_hoodie_commit_time"] == made.log_files[0].instant
    assert rows["b3"]["_hoodie_file_name"].startswith(made.group.file_id)


def test_several_outputs_each_get_their_keys():
    table, expected = filled(), filled()
    updates(expected)
    options = {
        "hoodie.clustering.plan.strategy.target.file.max.bytes": max(s.size_bytes for s in table.slices()) + 1,
    }
    done = clustered(table, updates, **options)
    made = [s for s in table.slices() if s.base_instant == done.instant]
    assert len(made) > 1
    assert sum(bool(s.log_files) for s in made) > 1
    assert contents(table) == contents(expected)


@pytest.mark.parametrize("more", [{}, {"index": BucketIndex(2)}])
def test_inserts_in_log_files_are_carried(more):
    def inserts(writer: Table) -> None:
        write(writer, [("n1", "p", 1, "n"), ("a0", "p", 30, "u")], **NO_RETRY, **TO_LOG)
        write(writer, [("n1", "p", 2, "n2"), ("n2", "p", 2, "n")], **NO_RETRY, **TO_LOG)

    table, expected = filled(**more), filled(**more)
    inserts(expected)
    clustered(table, inserts)
    assert any(s.log_files for s in table.slices())
    assert contents(table) == contents(expected)
    write(table, [("n1", "p", 9, "again"), ("n2", "p", 9, "again")])
    write(expected, [("n1", "p", 9, "again"), ("n2", "p", 9, "again")])
    assert contents(table) == contents(expected), "later writers find the carried keys"


def test_the_output_is_compacted_and_clustered_again():
    table, expected = filled(), filled()
    updates(expected)
    clustered(table, updates)
    write(table, [("b3", "p", 40, "after")])
    write(expected, [("b3", "p", 40, "after")])
    assert contents(table) == contents(expected)
    assert compact(table) is not None
    assert contents(table) == contents(expected)
    schedule_clustering(table, CARRY)
    assert cluster(table) is not None
    assert contents(table) == contents(expected)


def test_queries_as_of_an_instant():
    table = filled()
    seen: list[tuple[str, list[Any]]] = []

    def during(writer: Table) -> None:
        for n in range(3):
            at = write(writer, [("a0", "p", 30 + n, f"u{n}"), (f"b{n}", "p", 30, "u")]).instant
            seen.append((at, contents(writer)))

    clustered(table, during)
    for at, rows in seen:
        assert contents(table, as_of=at) == rows


def test_incremental_queries_read_each_write_once():
    table = filled()
    points: list[int] = []

    def during(writer: Table) -> None:
        points.append(writer.refresh().sequence)
        for n in range(2):
            write(writer, [("a0", "p", 30 + n, f"u{n}"), (f"b{n}", "p", 30, "u")])
            points.append(writer.refresh().sequence)

    clustered(table, during)
    now = table.refresh().sequence

    def changed(since: int, until: int) -> list[Any]:
        rows = table.incremental(since, until).read(["id", "v"]).to_pylist()
        images = {r["after"]["id"]: r["after"]["v"] for r in _changes(table, since, until)}
        assert images == {r["id"]: r["v"] for r in rows}
        return sorted(rows, key=str)

    u0, u1 = [{"id": "a0", "v": "u0"}, {"id": "b0", "v": "u"}], [{"id": "a0", "v": "u1"}, {"id": "b1", "v": "u"}]
    assert changed(points[0], points[1]) == u0
    assert changed(points[1], points[2]) == u1
    assert changed(points[1], now) == u1
    assert changed(points[0], now) == [*u1[:1], u0[1], u1[1]]
    assert changed(points[2], now) == []


def _changes(table: Table, since: int, until: int) -> list[dict[str, Any]]:
    return [row for batch in table.changes(since, until).scan() for row in batch.to_pylist()]


@pytest.mark.parametrize("saved", ["before", "during", "first write of the table"])
def test_restores_take_carried_rows_back(saved):
    table = filled()
    first = min(a.instant for a in table.state.completed_writes())
    if saved == "first write of the table":
        create_savepoint(table, first)
        rows = contents(table, as_of=first)
    states: list[tuple[str, list[Any]]] = []

    def during(writer: Table) -> None:
        if saved == "before":
            at = max(a.instant for a in writer.refresh().completed_writes())
            states.append((at, contents(writer)))
            create_savepoint(writer, at)
        at = write(writer, [("a0", "p", 30, "kept"), ("b1", "p", 30, "kept")]).instant
        if saved == "during":
            create_savepoint(writer, at)
            states.append((at, contents(writer)))
        write(writer, [("a0", "p", 31, "undone"), ("b2", "p", 30, "undone")])

    done = clustered(table, during)
    assert ("a0", "p", 31, "undone") in contents(table)
    at, rows = states[0] if states else (first, rows)
    restore_to_savepoint(table, at)
    assert contents(table) == rows
    assert contents(open_table(table.storage, table.clock)) == rows
    named = {path for s in table.refresh().every_slice() for path in s.paths}
    assert _stored(table) == named, f"no file of {done} is left behind"
    write(table, [("a0", "p", 50, "goes on")])
    assert ("a0", "p", 50, "goes on") in contents(table)


def test_a_restore_to_a_write_that_began_before_the_plan(monkeypatch):
    """The restore undoes the clustering and keeps the write: its log file in the old file group counts, the carried one goes."""
    table = filled()
    writer, real = open_table(table.storage, table.clock, "writer"), WriteTransaction.commit

    def late(*arguments: Any, **named: Any) -> Committed:
        monkeypatch.undo()
        assert schedule_clustering(table, CARRY) is not None
        return real(*arguments, **named)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    at = write(writer, [("a0", "p", 30, "kept"), ("b1", "p", 30, "kept")], **NO_RETRY).instant
    rows = contents(writer)
    create_savepoint(writer, at)
    done = cluster(open_table(table.storage, table.clock, "executor", **CARRY))
    table.refresh()
    assert done.instant > at
    assert contents(table) == rows
    restore_to_savepoint(table, at)
    assert contents(table) == rows
    assert contents(open_table(table.storage, table.clock)) == rows
    assert _stored(table) == {path for s in table.refresh().every_slice() for path in s.paths}


def _stored(table: Table) -> set[str]:
    return {
        path for path in listing(table.storage) if path.startswith("p/") and (path.endswith(".parquet") or _LOG_NAME.search(path))
    }


def test_the_record_index_follows():
    table, storage, clock = new_table(type=TableType.MOR)
    create_metadata(table, (RECORD_INDEX,))
    for n in range(4):
        write(table, [(f"a{n}", "p", n, "x"), (f"b{n}", "p", 10 + n, "x")])

    def during(writer: Table) -> None:
        updates(writer)
        write(writer, [("n1", "p", 1, "n"), ("a0", "p", 90, "u")], **TO_LOG)

    clustered(table, during)
    assert check_table(open_table(storage, clock)) == []


def test_checkpoints_keep_the_write_of_a_carried_file():
    table = filled()
    clustered(table, updates)
    write_checkpoint(table.storage, table.state)
    again = open_table(table.storage, table.clock, "reader")
    assert [s.log_files for s in again.slices()] == [s.log_files for s in table.slices()]


@pytest.mark.parametrize("partial", [True, False])
def test_partial_records_are_not_carried(partial):
    """The clustering gives way to them, and carries the same update with whole rows over."""
    table = filled(ordering="", version=9)

    def during(writer: Table) -> None:
        options = {"hoodie.spark.sql.merge.into.partial.updates": partial, **NO_RETRY}
        tideline.Table(writer).update({"v": "'u'"}, "id = 'a0'", options=options)

    if partial:
        with pytest.raises(WriteConflict):
            clustered(table, during)
    else:
        assert clustered(table, during) is not None
    assert [row for row in contents(table) if row[0] == "a0"] == [("a0", "p", 0, "u")]
    assert not table.refresh().pending_clusterings()


def test_a_rewritten_base_file_is_not_carried():
    table = filled()

    def during(writer: Table) -> None:
        write(writer, [("a0", "p", 30, "u")], Operation.INSERT_OVERWRITE, **NO_RETRY)

    with pytest.raises(WriteConflict):
        clustered(table, during)
    assert ("a0", "p", 30, "u") in contents(table)
    assert not table.refresh().pending_clusterings()


def test_a_late_row_behind_a_dropped_deletion_is_carried():
    """The deletion in the old log left nothing, so the late row is a new one.

    The output has forgotten the deletion and shows the same.
    """
    table = filled(index=BucketIndex(1))
    gone = rows_of([("a0", "p", 100, "")]).append_column("_hoodie_is_deleted", pa.array([True]))
    table.clock.advance(1)
    write_rows(table, gone, Operation.UPSERT, parallelism=1)
    before = contents(table)
    assert not any(row[0] == "a0" for row in before)

    def during(writer: Table) -> None:
        write(writer, [("a0", "p", 50, "too late")], **NO_RETRY)

    clustered(table, during)
    assert contents(table) == sorted([*before, ("a0", "p", 50, "too late")], key=repr)


@pytest.mark.parametrize("places", [["a0", "a0"], ["a0", "a1"]], ids=["one file", "two files"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_key_that_is_there_twice_is_not_carried(places, outputs):
    """In one input file or in two, and where the clustering sorts its rows into one output or into several."""
    table, _, _ = new_table(type=TableType.MOR)
    rows = {"a0": [("a0", "p", 0, "x"), ("b0", "p", 1, "x")], "a1": [("a1", "p", 10, "x"), ("b1", "p", 11, "x")]}
    for place, row in zip(places, [("twice", "p", 2, "x"), ("twice", "p", 12, "x")], strict=True):
        rows[place].append(row)
    for each in rows.values():
        write(table, each, Operation.BULK_INSERT)
    assert [row[0] for row in contents(table)].count("twice") == 2
    found: list[Any] = []

    def during(writer: Table) -> None:
        write(writer, [("twice", "p", 30, "u")], **NO_RETRY)
        found.extend(contents(writer))

    size = max(s.size_bytes for s in table.slices())
    options = {"hoodie.clustering.plan.strategy.target.file.max.bytes": 4 * size if outputs == 1 else size + 1}
    with pytest.raises(WriteConflict):
        clustered(table, during, **options)
    assert contents(table) == found


def test_a_key_with_log_entries_in_two_inputs_is_not_carried(monkeypatch):
    """The output has one row of it, because the other one was deleted. An update in both file groups makes two again.

    Apache Hudi's writers find keys so: in base files, whatever logs delete.
    """
    monkeypatch.setattr(tagging, "without_deleted", lambda _, location, __: location)
    table, _, _ = new_table(type=TableType.MOR)
    for rows in ([("twice", "p", 2, "x"), ("a0", "p", 0, "x")], [("twice", "p", 12, "x"), ("a1", "p", 1, "x")]):
        write(table, rows, Operation.BULK_INSERT)
    gone = rows_of([("twice", "p", 5, "")]).append_column("_hoodie_is_deleted", pa.array([True]))
    table.clock.advance(1)
    write_rows(table, gone, Operation.UPSERT, parallelism=1)
    assert [row for row in contents(table) if row[0] == "twice"] == [("twice", "p", 12, "x")]
    found: list[Any] = []

    def during(writer: Table) -> None:
        write(writer, [("twice", "p", 30, "u")], **NO_RETRY)
        found.extend(contents(writer))
        assert found.count(("twice", "p", 30, "u")) == 2

    with pytest.raises(WriteConflict):
        clustered(table, during)
    assert contents(table) == found


def test_a_carried_file_that_differs_stops_the_clustering(monkeypatch):
    table, expected = filled(), filled()
    updates(expected)
    framed = carried_file._framed
    monkeypatch.setattr(carried_file, "_framed", lambda part, *rest: [] if part.deletes else framed(part, *rest))
    with pytest.raises(VerificationFailed, match="deletions"):
        clustered(table, updates)
    assert contents(table) == contents(expected)


def test_more_writes_during_each_round(monkeypatch):
    """Writers go on during the rounds of the commit; the last rounds hold the lock of commits."""
    table, expected = filled(), filled()
    writer = open_table(table.storage, table.clock, "writer")
    real, left = carry_over.CarryOver.follow, list(range(7))

    def follow(self: Any, state: Any) -> bool:
        found = real(self, state)
        if left:
            n = left.pop()
            write(writer, [("a0", "p", 30 + n, f"u{n}"), (f"b{n % 4}", "p", 40 + n, f"u{n}")])
        return found

    monkeypatch.setattr(carry_over.CarryOver, "follow", follow)
    monkeypatch.setattr(Heartbeat, "hold_writers", lambda _: None)
    assert clustered(table, lambda _: write(writer, [("a1", "p", 30, "first")])) is not None
    write(expected, [("a1", "p", 30, "first")])
    for n in reversed(range(7)):
        write(expected, [("a0", "p", 30 + n, f"u{n}"), (f"b{n % 4}", "p", 40 + n, f"u{n}")])
    assert contents(table) == contents(expected)


def test_writers_that_are_faster_wait_for_the_last_round(monkeypatch):
    table = filled()
    writer = open_table(table.storage, table.clock, "writer")
    real, done, held = carry_over.CarryOver.follow, [("a1", "p", 30, "first")], []

    def follow(self: Any, state: Any) -> bool:
        found = real(self, state)
        row = (f"b{len(done) % 4}", "p", 30 + len(done), "more")
        try:
            write(writer, [row], **NO_RETRY, **{"tideline.write.priority.wait": 0})
            done.append(row)
        except ClusteringFirst:
            held.append(row)
        return found

    monkeypatch.setattr(carry_over.CarryOver, "follow", follow)
    committed = clustered(table, lambda _: write(writer, done))
    assert committed is not None
    assert (len(done), len(held)) == (2, 1), "the second round has as much to do as the first one"
    assert sum(stat.is_log for stat in committed.stats) == 2
    assert set(done) <= set(contents(table))
    write(writer, held, **NO_RETRY)
    assert {*done, *held} <= set(contents(open_table(table.storage, table.clock)))


def test_an_executor_that_died_holds_no_writer_up(monkeypatch):
    table = filled()
    writer = open_table(table.storage, table.clock, "writer")

    def die(self: Heartbeat) -> None:
        real(self)
        self._stopped.set()  # neither renewed nor deleted
        raise SimulatedCrash

    real = Heartbeat.hold_writers
    monkeypatch.setattr(Heartbeat, "hold_writers", die)
    monkeypatch.setattr(carry_over.CarryOver, "follow", lambda *_: write(writer, [("a1", "p", 31, "second")]))
    with pytest.raises(SimulatedCrash):
        clustered(table, lambda _: write(writer, [("a1", "p", 30, "first")]))
    with pytest.raises(ClusteringFirst):
        write(writer, [("a1", "p", 32, "u")], **NO_RETRY, **{"tideline.write.priority.wait": 0})
    table.clock.advance(DEATH_S)
    write(writer, [("a1", "p", 32, "u")], **NO_RETRY, **{"tideline.write.priority.wait": 0})
    assert ("a1", "p", 32, "u") in contents(open_table(table.storage, table.clock))


def test_shared_tables_refuse_it_and_run_pending_plans_without_it():
    table, storage, clock = shared_table(TableType.MOR)
    write(table, [("a0", "p", 1, "x"), ("b0", "p", 1, "x")])
    before = contents(table)
    with pytest.raises(UnsupportedTable, match=r"Apache Hudi writes.*use the update strategy yield"):
        schedule_clustering(table, CARRY)
    with pytest.raises(UnsupportedTable, match=r"Apache Hudi writes.*use the update strategy yield"):
        preview_clustering(Table.open(storage.root, storage=storage, clock=clock), CARRY)
    planned = schedule_clustering(table, {**CARRY, STRATEGY: "yield"})
    done = cluster(opened(storage, clock, "executor", **CARRY))
    assert done is not None
    assert done.instant == planned
    assert contents(table) == before


STRATEGY = "hoodie.clustering.updates.strategy"


@pytest.mark.parametrize("option", [STRATEGY, "tideline.clustering.update.strategy"])
def test_copy_on_write_tables_refuse_it_and_say_what_to_choose(option):
    """A carried base file would be visible to Apache Hudi's readers before the clustering commits."""
    table = filled(type=TableType.COW)
    chosen = {**CARRY, STRATEGY: "", option: "carry-over"}
    with pytest.raises(UnsupportedTable, match=r"table 't1'.*merge-on-read tables only.*yield or reject"):
        schedule_clustering(table, chosen)
    assert not table.refresh().pending_clusterings()
    with pytest.raises(UnsupportedTable, match=r"table 't1'.*merge-on-read tables only.*yield or reject"):
        preview_clustering(table, chosen)
    assert preview_clustering(table, {**CARRY, STRATEGY: "yield"}).groups
    planned = schedule_clustering(table, {**CARRY, STRATEGY: "yield"})
    assert planned is not None
    # A writer with this option commits beside the clustering, as with yield.
    write(open_table(table.storage, table.clock, "writer"), [("a0", "p", 30, "u")], **{option: "carry-over"}, **NO_RETRY)
    with pytest.raises(WriteConflict):
        cluster(table, planned)
    assert ("a0", "p", 30, "u") in contents(table)


def test_an_executor_with_the_option_runs_the_plan_of_a_copy_on_write_table():
    """The launcher gives the options of its settings to the executors of all tables."""
    table = filled(type=TableType.COW)
    before = contents(table)
    planned = schedule_clustering(table, {**CARRY, STRATEGY: "yield"})
    done = cluster(open_table(table.storage, table.clock, "executor", **CARRY))
    assert done is not None
    assert done.instant == planned
    assert contents(table) == before


def test_verdicts_and_maintenance_know_that_copy_on_write_tables_refuse_it(tmp_path):
    table = filled(storage=LocalStorage(tmp_path / "t"), type=TableType.COW)
    rules = Rules(trigger=None, services=frozenset({TableService.CLUSTERING}), options=CARRY)
    assert judge(table, TableService.CLUSTERING, replace(rules, options={**CARRY, STRATEGY: "yield"})).outcome is Outcome.DUE
    verdict = judge(table, TableService.CLUSTERING, rules)
    assert (verdict.outcome, verdict.until) == (Outcome.NOT_DUE, "the update strategy yield or reject")
    assert "merge-on-read tables only" in verdict.reason
    steps = {step.service: step for step in maintain(table, rules)}
    assert (steps[TableService.CLUSTERING].outcome, steps[TableService.CLUSTERING].reason) == ("nothing", verdict.reason)
    planned = schedule_clustering(table, {**CARRY, STRATEGY: "yield"})
    steps = {step.service: step for step in maintain(table, rules)}
    assert (steps[TableService.CLUSTERING].outcome, steps[TableService.CLUSTERING].instants) == ("done", (planned,))


def test_a_copy_on_write_plan_of_an_earlier_release_with_it_runs_as_with_yield(monkeypatch):
    table = filled(type=TableType.COW)
    before = contents(table)
    with monkeypatch.context() as earlier:
        earlier.setattr(clustering_run, "why_not_carried_over", lambda *_: None)
        planned = schedule_clustering(table, CARRY)
    assert planned is not None
    monkeypatch.setattr(clustering_run, "CarryOver", None)
    assert cluster(table, planned) is not None
    assert contents(table) == before
