"""`tideline job list`, `cancel`, `retry`, and adopting a copy with pending plans."""

from __future__ import annotations

import shutil

import pytest
from tests.unit.cli.conftest import json_line, rows_table

import tideline
from tideline_table.action import write_rows
from tideline_table.hudi import Action, State
from tideline_table.log.body import Bare
from tideline_table.log.table_log import Draft
from tideline_table.table import GivenUp, Table, keep_given_up
from tideline_table.writer import Operation

EAGER = "--option=hoodie.compact.inline.max.delta.commits=1"
FEW = "--option=tideline.clustering.min.input.files=2"


def planned(done, service, path, option):
    return done("plan", service, path, option, "--json").document["instant"]


def test_a_listed_plan_is_cancelled(cli, done, refused, merging, filled, tmp_path):
    rows = done("read", merging).plain_rows()
    compaction, clustering = planned(done, "compaction", merging, EAGER), planned(done, "clustering", filled, FEW)
    listed = done("job", "list", f"{tmp_path}/*", "--json").document
    assert [(j["table"], j["instant"], j["service"], j["state"]) for j in listed["jobs"]] == [
        ("weather", compaction, "compaction", "requested"),
        ("trips", clustering, "clustering", "requested"),
    ]
    assert compaction in done("job", "list", merging).text
    write_rows(Table.open(str(merging)), rows_table(id=["a"], n=[100]), Operation.UPSERT)
    rows = [{**row, "n": 100} if row["id"] == "a" else row for row in rows]
    assert "1 log files written since went back" in done("job", "cancel", merging, compaction).text
    assert done("read", merging).plain_rows() == rows
    assert "is rolled" in refused("job", "cancel", merging, compaction)
    assert tideline.open(str(filled)).maintenance.cancel_plan(clustering).service == "clustering"
    assert done("job", "list", f"{tmp_path}/*", "--json").document == {"jobs": [], "errors": {}}
    planned(done, "compaction", merging, EAGER)
    done("run", "compaction", merging)
    assert done("read", merging).plain_rows() == rows


def test_a_log_compaction_is_planned_previewed_run_and_listed(done, merging, tmp_path):
    for number in range(2):
        write_rows(Table.open(str(merging)), rows_table(id=["a"], n=[100 + number]), Operation.UPSERT)
    rows, few = done("read", merging).plain_rows(), "--option=hoodie.log.compaction.blocks.threshold=2"
    preview = done("plan", "logcompaction", merging, few, "--dry-run", "--json").document
    (found,) = [s for s in Table.open(str(merging)).slices() if len(s.log_files) > 1]
    assert (preview["due"], preview["files"]) == (True, len(found.log_files)), "base files are not read"
    assert "is switched off" in done("why", merging, "logcompaction").text
    instant = planned(done, "logcompaction", merging, few)
    assert "is planned" in done("why", merging, "logcompaction").text
    assert [j["service"] for j in done("job", "list", merging, "--json").document["jobs"]] == ["logcompaction"]
    ran = done("run", "logcompaction", merging, "--json").document
    assert (ran["instant"], ran["log_files_merged"]) == (instant, len(found.log_files))
    assert "no logcompaction" in done("run", "logcompaction", merging).text
    assert done("read", merging).plain_rows() == rows


def test_what_is_no_plan_is_refused(refused, filled):
    opened = Table.open(str(filled))
    write = opened.state.completed_writes()[-1].instant
    assert "is no plan of a table service" in refused("job", "cancel", filled, write)
    assert "expected a pending plan of this table: it has none" in refused("job", "cancel", filled, "20200101000000000")
    assert "this table has none" in refused("job", "retry", filled, "20200101000000000")


def test_a_plan_of_a_shared_table(done, refused, merging):
    done("share", merging)
    instant = planned(done, "compaction", merging, EAGER)
    message = refused("job", "cancel", merging, instant)
    assert "shared with Apache Hudi's writers" in message
    assert f"tideline run compaction PATH --instant {instant}" in message
    done("run", "compaction", merging)


def test_a_plan_that_was_given_up_is_found_and_retried(done, merging):
    instant = planned(done, "compaction", merging, EAGER)
    opened = Table.open(str(merging))
    keep_given_up(opened.storage, GivenUp(instant, "compaction", 3, "3 attempts failed", "2026-01-01T00:00:00+00:00"))
    (table,) = done("status", merging, "--json").document["tables"]
    assert [(f["kind"], instant in f["text"]) for f in table["findings"]] == [("given_up", True)]
    (job,) = done("job", "list", merging, "--json").document["jobs"]
    assert job["given_up"] == "3 attempts failed, attempt 3"
    done("job", "retry", merging, instant)
    (table,) = done("status", merging, "--json").document["tables"]
    assert table["findings"] == []


@pytest.mark.parametrize("service", ["compaction", "clustering", "clean"])
def test_a_copy_with_a_pending_plan_is_adopted(cli, done, merging, tmp_path, service):
    option = {"compaction": EAGER, "clustering": FEW, "clean": "--option=hoodie.cleaner.commits.retained=1"}[service]
    if service == "clean":
        planned(done, "compaction", merging, EAGER)
        done("run", "compaction", merging)
        done("write", merging, "--from", "-", stdin=json_line(id="a", n=7))
    if service == "clustering":
        done("write", merging, "--from", "-", "--operation", "bulk_insert", stdin=json_line(id="c", n=7))
    instant = planned(done, service, merging, option)
    rows = done("read", merging).plain_rows()
    trial = tmp_path / "trial"
    shutil.copytree(merging, trial)
    cancelled = done("adopt", trial, "--json").document["cancelled"]
    assert cancelled == [{"service": service, "instant": instant}]
    assert Table.open(str(trial)).state.actions[instant].state is State.ROLLED_BACK
    again = planned(done, service, trial, option)
    assert again != instant
    done("run", service, trial)
    assert done("read", trial).plain_rows() == rows
    assert list(Table.open(str(trial)).state.pending()) == []
    done("run", service, merging)
    assert done("read", merging).plain_rows() == rows


def test_a_copy_with_a_clean_that_had_begun_completes_it(done, merging, tmp_path):
    planned(done, "compaction", merging, EAGER)
    done("run", "compaction", merging)
    done("write", merging, "--from", "-", stdin=json_line(id="a", n=7))
    instant = planned(done, "clean", merging, "--option=hoodie.cleaner.commits.retained=1")
    opened = Table.open(str(merging))
    begin_clean(opened, instant)
    trial = tmp_path / "trial"
    shutil.copytree(merging, trial)
    assert done("adopt", trial, "--json").document["cancelled"] == []
    rows, before = done("read", merging).plain_rows(), sorted(p.name for p in merging.rglob("*.parquet"))
    assert done("run", "clean", trial, "--json").document["files_deleted"] > 0
    assert done("read", trial).plain_rows() == rows
    assert sorted(p.name for p in merging.rglob("*.parquet")) == before, "nothing of the original"


def begin_clean(table, instant):
    table.timeline.append(lambda _: Draft(instant, Action.CLEAN, State.REQUESTED, State.INFLIGHT, "CLEAN", Bare()))
