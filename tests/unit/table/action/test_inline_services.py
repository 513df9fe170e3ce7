"""Compaction and clustering that a writer plans, or runs, behind its commit."""

import pytest
from tests.unit.table.tables import SCHEMA, contents, rows_of

import tideline
from tideline_table.action import TableService
from tideline_table.errors import WriteConflict

COMPACT = {"hoodie.compact.inline": True, "hoodie.compact.inline.max.delta.commits": 3}
CLUSTER = {"hoodie.clustering.inline": True, "hoodie.clustering.inline.max.commits": 3, "hoodie.parquet.small.file.limit": 0}


def table_of(path, kind, options):
    return tideline.create(path / "t", schema=SCHEMA, key="id", partition="part", ordering="ts", type=kind, options=options)


def test_a_writer_compacts_after_n_delta_commits(tmp_path):
    table = table_of(tmp_path, "mor", COMPACT)
    done = [table.upsert(rows_of([("a", "p", n, f"v{n}")])).inline for n in range(7)]
    # The first write makes the base file; a plan after three delta commits takes the log files since.
    assert [bool(found) for found in done] == [False, False, True, False, False, True, False]
    (first,) = done[2]
    assert (first.service, first.is_run, first.error) == (TableService.COMPACTION, True, "")
    assert contents(table._table) == [("a", "p", 6, "v6")]
    assert not list(table._table.state.pending())


def test_a_writer_may_leave_the_run_to_the_launcher(tmp_path):
    table = table_of(tmp_path, "mor", {"hoodie.compact.schedule.inline": True, "hoodie.compact.inline.max.delta.commits": 2})
    table.upsert(rows_of([("a", "p", 1, "x")]))
    (planned,) = table.upsert(rows_of([("a", "p", 2, "y")])).inline
    assert not planned.is_run
    assert [a.instant for a in table._table.state.pending_compactions()] == [planned.instant]
    assert table.maintenance.compact().instant == planned.instant


def test_a_writer_clusters_after_n_commits(tmp_path):
    table = table_of(tmp_path, "cow", CLUSTER)
    done = [table.insert(rows_of([(f"k{n}", "p", 1, "x")])).inline for n in range(7)]
    assert [bool(found) for found in done] == [False, False, True, False, False, True, False]
    assert all(found.is_run for one in done for found in one)
    assert len(table._table.slices()) < 7
    assert len(contents(table._table)) == 7


def test_in_a_table_with_buckets_a_writer_sorts_them_or_says_why_not(tmp_path, caplog):
    options = {**CLUSTER, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 2}
    table = table_of(tmp_path, "cow", options)
    rows = rows_of([(f"k{n}", "p", 9 - n, "x") for n in range(9)])
    assert not any(table.upsert(rows).inline for _ in range(3))
    assert "hoodie.clustering.plan.strategy.sort.columns names no columns to sort by" in caplog.text
    (run,) = table.upsert(rows, options={"hoodie.clustering.plan.strategy.sort.columns": "ts"}).inline
    assert run.is_run
    assert sorted(table.read().column("ts").to_pylist()) == list(range(1, 10))


def test_the_options_of_a_call_count_and_without_any_nothing_runs(tmp_path):
    table = table_of(tmp_path, "mor", {})
    assert [table.upsert(rows_of([("a", "p", n, "x")])).inline for n in range(6)] == [()] * 6
    (run,) = table.upsert(rows_of([("a", "p", 9, "x")]), options=COMPACT).inline
    assert run.is_run


@pytest.mark.parametrize("options", [COMPACT, CLUSTER])
def test_the_commit_stands_if_the_service_fails(tmp_path, options, monkeypatch, caplog):
    table = table_of(tmp_path, "mor", {**options, "hoodie.parquet.small.file.limit": 0})

    def lose(*_, **__):
        raise WriteConflict("another one runs it", with_instant="1")

    monkeypatch.setattr("tideline_table.action.compaction.service.run_compaction", lose)
    monkeypatch.setattr("tideline_table.action.clustering.service.run_clustering", lose)
    found = [table.upsert(rows_of([(f"k{n}", "p", n, "x"), ("a", "p", n, "x")])).inline for n in range(4)]
    failed = [one for done in found for one in done]
    assert failed
    assert all("another one runs it" in one.error for one in failed)
    assert "the commit before it stands" in caplog.text
    assert len(contents(table._table)) == 5
