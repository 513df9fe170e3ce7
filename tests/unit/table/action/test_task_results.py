"""Results of tasks against their plan: whichever process runs them may lose one, hear of one twice, or mix them up (field
notes: #9139)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.tables import DEATH_S, cluster, compact, contents, create, open_table, write

from tideline_table.action import run_clustering, run_compaction
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.write import executor
from tideline_table.action.write.executor import ThisProcess
from tideline_table.clock import ManualClock
from tideline_table.errors import Recovery, VerificationFailed
from tideline_table.hudi.instant import State
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType


def table_of(kind):
    """Two partitions with three rows in two file groups each, which have log files where the kind allows it."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock)
    for part in "pq":
        write(table, [("a", part, 1, "x"), ("b", part, 1, "x")])
        write(table, [("c", part, 1, "x")])
        write(table, [("a", part, 2, "y")])
    return table


def data_files(table):
    found = (o.path for o in table.storage.list_objects(""))
    return {path for path in found if not path.startswith(".hoodie/") and ".hoodie_partition" not in path}


def named_files(table):
    return {path for s in table.refresh().every_slice() for path in s.paths}


def with_stats(result, change):
    return replace(result, stats=change(result.stats))


CLUSTERINGS = {
    "one is lost": (lambda r: r[:1], "no result of task 1"),
    "all are lost": (lambda r: [], "no result of task 0, 1"),
    "one is there twice": (lambda r: [*r, r[0]], "several results of task 0"),
    "one took the place of another": (lambda r: [r[0], r[0]], "no result of task 1; several results of task 0"),
    "one is of no task": (lambda r: [*r, replace(r[0], number=7)], "results of no task: 7"),
    "numbers are mixed up": (lambda r: [replace(r[0], number=1), replace(r[1], number=0)], "the result of task 0 names q/"),
    "a file is lost": (lambda r: [r[0], with_stats(r[1], lambda s: s[:2])], "task 1 wrote 2 rows; expected the 3"),
    "all files are lost": (lambda r: [r[0], with_stats(r[1], lambda s: ())], "task 1 names no file"),
    "files change places": (lambda r: [r[0], with_stats(r[1], lambda s: s[::-1])], "the result of task 1 names q/"),
    "a file of another attempt": (
        lambda r: [r[0], with_stats(r[1], lambda s: (replace(s[0], path=s[0].path.replace("-0-", "-1-")), *s[1:]))],
        "the result of task 1 names q/",
    ),
    "rows are lost": (
        lambda r: [r[0], with_stats(r[1], lambda s: (replace(s[0], num_writes=s[0].num_writes - 1), *s[1:]))],
        "task 1 wrote 2 rows; expected the 3",
    ),
}


@pytest.mark.parametrize("kind", TableType)
@pytest.mark.parametrize("name", CLUSTERINGS)
def test_a_clustering_whose_results_do_not_fit_is_rolled_back(kind, name):
    change, words = CLUSTERINGS[name]
    table = table_of(kind)
    before = contents(table)
    # A file for each of its three rows.
    options = {
        "hoodie.clustering.plan.strategy.class": "commit-time",
        "hoodie.clustering.plan.strategy.target.file.max.bytes": 1024,
    }
    at = schedule_clustering(table, options)
    with pytest.raises(VerificationFailed, match=words) as caught:
        run_clustering(table, at, run=lambda tasks: change([cluster_group(task, table.storage) for task in tasks]))
    assert caught.value.recovery is Recovery.STOP
    assert caught.value.expected
    assert caught.value.remedy
    assert table.refresh().actions[at].state is State.ROLLED_BACK
    assert contents(table) == before
    assert data_files(table) == named_files(table)
    assert schedule_clustering(table)
    assert cluster(table)
    assert contents(table) == before


COMPACTIONS = {
    "one is lost": (lambda r: r[:1], "no result of task 1"),
    "all are lost": (lambda r: [], "no result of task 0, 1"),
    "one is there twice": (lambda r: [*r, r[0]], "several results of task 0"),
    "one took the place of another": (lambda r: [r[1], r[1]], "no result of task 0; several results of task 1"),
    "one is of no task": (lambda r: [*r, replace(r[0], path="p/other.parquet")], "results of no task: p/other.parquet"),
    "one of another attempt": (lambda r: [r[0], replace(r[1], path=r[1].path.replace("-0-", "-1-"))], "no result of task 1"),
    "one of another file group": (lambda r: [r[0], replace(r[1], file_id=r[0].file_id)], "the result of task 1 merged"),
    "one without its log file": (lambda r: [replace(r[0], log_files_compacted=0), r[1]], "the result of task 0 merged"),
    "one of another slice": (lambda r: [replace(r[0], prev_commit="2020"), r[1]], "the result of task 0 merged"),
}


@pytest.mark.parametrize("name", COMPACTIONS)
def test_a_compaction_whose_results_do_not_fit_stays_pending(name):
    change, words = COMPACTIONS[name]
    table = table_of(TableType.MOR)
    before = contents(table)
    at = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    with pytest.raises(VerificationFailed, match=words) as caught:
        run_compaction(table, run=lambda tasks: change([compact_slice(task, table.storage) for task in tasks]))
    assert caught.value.expected
    assert caught.value.remedy
    assert table.refresh().actions[at].state is State.INFLIGHT
    assert contents(table) == before
    table.clock.advance(DEATH_S)
    assert compact(table).instant == at
    assert contents(table) == before
    assert data_files(table) == named_files(table)


@pytest.mark.parametrize("kind", TableType)
def test_results_may_come_in_any_order(kind):
    table = table_of(kind)
    before = contents(table)
    if kind is TableType.MOR:
        at = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
        planned = [operation["fileId"] for operation in table.state.plans[at].plan["operations"]]
        done = run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in reversed(tasks)])
        assert [s.file_id for s in done.stats] == planned
    assert schedule_clustering(table)
    clustered = run_clustering(table, run=lambda tasks: [cluster_group(task, table.storage) for task in reversed(tasks)])
    assert [s.partition_path for s in clustered.stats] == ["p", "q"]
    assert contents(table) == before


@pytest.mark.parametrize("change", [lambda r: r[:1], lambda r: [*r, r[0]], lambda r: r[::-1]], ids=["lost", "twice", "mixed up"])
def test_a_write_whose_results_do_not_fit_is_rolled_back(change, monkeypatch):
    table = table_of(TableType.COW)
    before = contents(table)
    whole = ThisProcess.write
    monkeypatch.setattr(executor.ThisProcess, "write", lambda self, work: change(whole(self, work)))
    with pytest.raises(VerificationFailed, match="not those of the write's tasks"):
        write(table, [("n", "p", 3, "z"), ("n", "q", 3, "z")])
    monkeypatch.undo()
    assert list(table.refresh().pending()) == []
    assert contents(table) == before
    assert data_files(table) == named_files(table)
