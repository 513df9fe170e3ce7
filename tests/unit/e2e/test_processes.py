"""Processes are found and stopped by their records, on real processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import Processes, Record, parse_stat

ENVIRONMENT = {"PATH": os.environ["PATH"]}
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "run", tmp_path / "logs")


def test_the_name_of_a_program_may_hold_brackets_and_spaces() -> None:
    fields = " ".join(str(number) for number in range(4, 60))
    assert parse_stat(f"17 (a) b (c)) S {fields}\n") == ("S", 22)


def test_a_record_survives_its_file() -> None:
    own = Record.of(os.getpid())
    assert own is not None
    assert Record.parse(own.line()) == own
    assert own.is_running()


@pytest.mark.parametrize("text", ["", "12", "12 x boot", "12 13 boot more"])
def test_a_broken_record_is_none(text: str) -> None:
    assert Record.parse(text) is None


def test_a_started_process_runs_until_it_is_stopped(processes: Processes) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exec sleep 600"]
    assert processes.start("one", command, ENVIRONMENT)
    record = processes.record("one")
    assert record is not None
    assert os.getsid(record.pid) == record.pid
    assert not processes.start("one", command, ENVIRONMENT)
    assert processes.record("one") == record
    assert processes.names() == ["one"]
    processes.stop("one")
    assert not record.is_running()
    assert processes.names() == []
    processes.stop("one")


def test_output_is_kept_for_the_error(processes: Processes) -> None:
    processes.start("fails", ["sh", "-c", "echo no such flag >&2; sleep 600"], ENVIRONMENT)
    record = processes.record("fails")
    assert record is not None
    os.kill(record.pid, 9)
    os.waitpid(record.pid, 0)
    with pytest.raises(ClusterError, match="fails has ended"):
        processes.require("fails")


def test_a_process_that_ignores_the_request_is_killed(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.cluster.processes.ORDERLY", ((signal.SIGTERM, 0.2), (signal.SIGKILL, 10)))
    processes.start("stubborn", [sys.executable, "-c", STUBBORN], ENVIRONMENT)
    record = processes.record("stubborn")
    assert record is not None
    while "ready" not in processes.last_lines("stubborn"):
        assert record.is_running()
    processes.stop("stubborn")
    assert not record.is_running()


@pytest.mark.parametrize("change", [{"started_ticks": 1}, {"boot": "another"}])
def test_a_reused_process_id_is_never_stopped(processes: Processes, tmp_path: Path, change: dict[str, object]) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        record = Record.of(other.pid)
        assert record is not None
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "old.pid").write_text(replace(record, **change).line())
        assert not processes.is_running("old")
        processes.stop("old")
        assert processes.names() == []
        assert other.poll() is None
        other.kill()


def test_a_program_that_is_not_there_is_an_error(processes: Processes) -> None:
    with pytest.raises(ClusterError, match="no program no-such-program"):
        processes.start("absent", ["no-such-program"], ENVIRONMENT)
