"""The installed command as a process: exit codes, pipes, tracebacks, signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.conftest import json_line

TIDELINE = Path(sys.executable).with_name("tideline")


def start(*arguments: object, **more) -> subprocess.Popen:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen([TIDELINE, *map(str, arguments)], **streams)


def interruptible() -> None:
    """Undo what a shell does to commands in its background, such as a run of all tests: they ignore SIGINT, and so would theirs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_installed_command_writes_what_a_pipe_brings(filled, done):
    with start("write", filled, "--from", "-", "--json") as writer:
        out, err = writer.communicate(json_line(id="new", city="Oslo"), timeout=240)
    assert (writer.returncode, err) == (0, b"")
    assert json.loads(out)["rows_inserted"] == 1
    assert done("read", filled, "--where", "city = 'Oslo'", "--columns", "id").rows == [{"id": "new"}]


def test_a_closed_pipe_ends_quietly(filled):
    with start("read", filled) as reader:
        reader.stdout.close()  # gone before the first row
        assert (reader.wait(240), reader.stderr.read()) == (0, b"")


def test_the_traceback_comes_when_asked_for(tmp_path):
    found = subprocess.run(
        [TIDELINE, "read", tmp_path], env={**os.environ, "TIDELINE_DEBUG": "1"}, capture_output=True, check=False
    )
    assert found.returncode == 2
    assert b"Traceback" in found.stderr
    assert found.stderr.splitlines()[-1].startswith(b"tideline: error: no table at")


def test_an_interrupted_write_leaves_no_trace(filled, snapshot):
    before = snapshot(filled)
    with start("write", filled, "--from", "-", preexec_fn=interruptible) as writer:
        # More than a pipe holds: that it fits means that the command reads its input, whose end never comes.
        writer.stdin.write(b'{"id": "late", "city": "Paris"}\n' * 10_000)
        writer.stdin.flush()
        writer.send_signal(signal.SIGINT)
        assert writer.wait(240) == 130
        assert writer.stderr.read() == b"tideline: error: interrupted; uncommitted rows stay invisible\n"
    assert snapshot(filled) == before


def test_an_unexpected_failure_is_one_line(cli, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("tideline_cli.inspection.Table.open", fail)
    outcome = cli("show", "x")
    assert outcome.code == 1
    assert (
        outcome.stderr
        == "tideline: error: unexpected ZeroDivisionError: by zero; run the command again with TIDELINE_DEBUG=1 for the traceback\n"
    )


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_answers_without_a_table(cli, flag):
    outcome = cli(flag)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "tideline" in outcome.text
