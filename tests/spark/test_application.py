"""The clustering application as its own process: exit codes, result, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.plans import schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.spark.tables import Tables, content, rows

from tideline_locks.storage_lease import LOCKS_PREFIX
from tideline_locks.table_lock import BESIDE_TABLE, LOCKS_VARIABLE
from tideline_spark.application import main, run_tasks
from tideline_spark.invocation import ExitCode
from tideline_spark.plan_run import Termination, exit_code
from tideline_table.action import merge_log, run_clustering, run_log_compaction, write_rows
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.coordination import roll_back
from tideline_table.errors import ObjectNotFound, VerificationFailed, WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation


def planned(tables: Tables) -> tuple[Table, str]:
    table = tables.create("t", options={"hoodie.parquet.small.file.limit": 0})
    for start in range(0, 60, 20):
        write_rows(table, rows(start, start + 40, start), Operation.UPSERT)
    instant = schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "amount"})
    assert instant is not None
    return table, instant


def command(table: Table, instant: str, *more: str, service: str = "clustering") -> list[str]:
    program = [sys.executable, "-m", "tideline_spark.application", service]
    return [*program, "--table", table.storage.root, "--instant", instant, "--local-cores", "2", *more]


def log_lines(stderr: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]


def children_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def test_a_plan_is_run_once_and_a_second_run_is_no_error(tables: Tables, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table, instant = planned(tables)
    before = content(table.read())
    files = len(table.slices())
    result = tmp_path / "result.json"
    ended = subprocess.run(
        command(table, instant, "--result", str(result)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, LOCKS_VARIABLE: BESIDE_TABLE},
    )
    assert ended.returncode == ExitCode.SUCCEEDED, ended.stderr
    assert list(table.storage.list_objects(LOCKS_PREFIX)), "it committed under the lock of the services"
    table.refresh()
    assert content(table.read()) == before
    assert len(table.slices()) == 3 < files
    written = json.loads(result.read_text())
    assert written["state"] == "completed"
    assert written["rows"] == len(before)
    assert log_lines(ended.stderr)[-1]["instant"] == instant
    # In this process: a completed plan needs no Spark.
    result.unlink()
    assert main(["clustering", "--table", table.storage.root, "--instant", instant, "--result", str(result)]) == ExitCode.SUCCEEDED
    assert json.loads(result.read_text())["state"] == "completed before"


def test_a_compaction_plan_is_run(tables: Tables, tmp_path: Path) -> None:
    table = tables.create("t", type=TableType.MOR, options={"hoodie.compact.inline.max.delta.commits": 1})
    for ts in (1, 2):
        write_rows(table, rows(0, 40, ts), Operation.UPSERT)
    instant = schedule_compaction(table)
    assert instant is not None
    write_rows(table, rows(0, 5, 3), Operation.UPSERT)
    before = content(table.read())
    ended = subprocess.run(command(table, instant, service="compaction"), capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == ExitCode.SUCCEEDED, ended.stderr
    assert table.refresh().actions[instant].state is State.COMPLETED
    assert content(table.read()) == before
    assert all(s.base_instant == instant for s in table.slices())
    assert main(["compaction", "--table", table.storage.root, "--instant", instant]) == ExitCode.SUCCEEDED
    assert main(["clustering", "--table", table.storage.root, "--instant", instant]) == ExitCode.FAILED


def test_a_log_compaction_plan_is_run(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", type=TableType.MOR, options={"hoodie.log.compaction.blocks.threshold": 2})
    for ts in (1, 2, 3):
        write_rows(table, rows(0, 40, ts), Operation.UPSERT)
    instant = schedule_log_compaction(table)
    assert instant is not None
    before = content(table.read())
    assert run_log_compaction(table, instant, run=lambda tasks: run_tasks(spark, tasks, Termination(), merge_log)) is not None
    assert table.refresh().actions[instant].state is State.COMPLETED
    assert content(table.read()) == before
    assert all(len(s.applied.log_files) == 1 for s in table.slices())


def test_writers_win_and_the_plan_yields(spark: SparkSession, tables: Tables) -> None:
    table, instant = planned(tables)
    write_rows(table, rows(0, 5, 99), Operation.UPSERT)
    before = content(table.read())
    with pytest.raises(WriteConflict) as caught:
        run_clustering(table, instant, run=lambda tasks: run_tasks(spark, tasks, Termination(), cluster_group))
    assert exit_code(caught.value) == ExitCode.YIELDED
    table.refresh()
    assert table.state.actions[instant].state is State.ROLLED_BACK
    assert content(table.read()) == before


def test_an_error_of_a_task_keeps_its_type(spark: SparkSession, tables: Tables) -> None:
    table, instant = planned(tables)
    gone = table.slices()[0].path
    table.storage.delete(gone)
    with pytest.raises(ObjectNotFound) as caught:
        run_clustering(table, instant, run=lambda tasks: run_tasks(spark, tasks, Termination(), cluster_group))
    assert caught.value.path == gone
    assert exit_code(caught.value) == ExitCode.FAILED
    assert table.refresh().actions[instant].state is State.ROLLED_BACK


def test_a_lost_task_is_noticed_before_the_commit(spark: SparkSession, tables: Tables) -> None:
    table, instant = planned(tables)
    before = content(table.read())
    with pytest.raises(VerificationFailed, match="no result of task 0") as caught:
        run_clustering(table, instant, run=lambda tasks: run_tasks(spark, tasks[1:], Termination(), cluster_group))
    assert exit_code(caught.value) == ExitCode.FAILED
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    assert content(table.read()) == before


def test_what_needs_no_spark_ends_at_once(
    tables: Tables, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, instant = planned(tables)
    base = ["clustering", "--table", table.storage.root, "--instant"]
    assert main([*base, instant, "--options", "no.such.option=1"]) == ExitCode.FAILED
    assert main([*base, instant, "--options", "nonsense"]) == ExitCode.FAILED
    line = log_lines(capfd.readouterr().err)[-1]
    assert (line["error"], line["level"], line["logger"]) == ("InvalidOption", "error", "tideline_spark.application")
    assert {"timestamp", "event", "recovery", "found", "expected", "remedy", "exit_code"} <= line.keys()
    monkeypatch.setenv(LOCKS_VARIABLE, BESIDE_TABLE)
    assert main([*base, instant, "--options", "tideline.lock.unreachable=fail"]) == ExitCode.FAILED
    assert "tideline.lock.unreachable" in str(log_lines(capfd.readouterr().err)[-1]["found"])
    roll_back(table.timeline, instant, force=True)
    assert main([*base, instant]) == ExitCode.SUPERSEDED


def test_sigterm_rolls_back_and_leaves_no_process(tables: Tables) -> None:
    table, instant = planned(tables)
    before = content(table.read())
    running = subprocess.Popen(command(table, instant), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 200
        while table.refresh().actions[instant].state is not State.INFLIGHT:
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        children = children_of(running.pid)
        assert children
        # The JVM stands still until the signal is out: the job cannot end before it.
        for child in children:
            os.kill(child, signal.SIGSTOP)
        running.send_signal(signal.SIGTERM)
        for child in children:
            os.kill(child, signal.SIGCONT)
        _, stderr = running.communicate(timeout=240)
    finally:
        running.kill()
        running.wait()
    table.refresh()
    assert running.returncode == ExitCode.TERMINATED, stderr
    assert table.state.actions[instant].state is State.ROLLED_BACK
    assert content(table.read()) == before
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
