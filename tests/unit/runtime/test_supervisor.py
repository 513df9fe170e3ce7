import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.runtime.processes import DEADLINE_S, TINY, Program, started

from tideline_runtime.supervisor import MAX_LOG_BYTES, Child, Supervisor

pytestmark = pytest.mark.timeout(60)

SUPERVISING = Path(__file__).with_name("supervising.py")
TINY_COMMAND = [sys.executable, "-W", "error", str(TINY)]
QUICK = {"backoff_initial_s": 0.01, "backoff_max_s": 0.02, "max_crashes": 3}


def python(code):
    return [sys.executable, "-c", code]


def supervised(state_folder, children, **plan):
    command = [
        sys.executable,
        "-X",
        "dev",
        "-W",
        "error",
        str(SUPERVISING),
        str(state_folder),
        json.dumps({"children": children, **plan}),
    ]
    return Program(started(command, TIDELINE_STATE_FOLDER=str(state_folder)))


def await_text(path, text):
    until = time.monotonic() + DEADLINE_S
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < until, path.read_text() if path.exists() else f"no {path}"
        time.sleep(0.02)  # a file of another process: nothing to wait on
    return path.read_text()


def await_gone(pid):
    until = time.monotonic() + DEADLINE_S
    while is_alive(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.02)  # not our child: nothing to wait on


def is_alive(pid):
    try:
        # A zombie whose parent does not reap it has ended all the same.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


IGNORES_TERM = (
    "import signal, sys, threading\n"
    "signal.signal(signal.SIGTERM, lambda *_: None)\n"
    "import os; print('pid', os.getpid(), 'up', flush=True)\n"
    "threading.Event().wait()"
)
WITH_GRANDCHILD = (
    "import subprocess, sys, threading\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
    "print('grandchild', child.pid, 'up', flush=True)\n"
    "threading.Event().wait()"
)


def test_children_run_and_stop_in_reverse_order(tmp_path):
    with supervised(
        tmp_path, {"tiny": TINY_COMMAND, "second": python(IGNORES_TERM.replace("lambda *_: None", "lambda *_: sys.exit(0)"))}
    ) as program:
        await_text(tmp_path / "logs/tiny.log", '"ticked"')
        await_text(tmp_path / "logs/second.log", "up")
        program.terminate()
        assert program.await_end() == 0
        stopped = [(line["child"], line["exit_code"]) for line in program.logged() if line["event"] == "child stopped"]
    assert stopped == [("second", 0), ("tiny", 0)]
    # Nothing stands before the child's own lines.
    assert all(json.loads(line)["service"] == "tiny" for line in (tmp_path / "logs/tiny.log").read_text().splitlines())
    assert not (tmp_path / "tiny.json").exists()


def test_sigint_stops_all(tmp_path):
    with supervised(tmp_path, {"tiny": TINY_COMMAND}) as program:
        await_text(tmp_path / "logs/tiny.log", '"ticked"')
        program.terminate(signal.SIGINT)
        assert program.await_end() == 0


def test_a_killed_child_comes_back(tmp_path):
    with supervised(tmp_path, {"tiny": TINY_COMMAND}, restart=QUICK) as program:
        first = program.await_event("child started")["child_pid"]
        await_text(tmp_path / "logs/tiny.log", '"ticked"')
        os.kill(first, signal.SIGKILL)
        assert program.await_event("child crashed, restarting it")["exit_code"] == -signal.SIGKILL
        again = program.await_event("child started")
        assert (again["starts"], again["child_pid"] != first) == (2, True)
        program.terminate()
        assert program.await_end() == 0
        assert not is_alive(again["child_pid"])


def test_a_child_that_crashes_too_often_ends_everything(tmp_path):
    with supervised(tmp_path, {"tiny": TINY_COMMAND, "bad": python("raise SystemExit(7)")}, restart=QUICK) as program:
        assert program.await_end() == 1
        lines = program.logged()
    assert len([x for x in lines if x["event"] == "child started" and x["child"] == "bad"]) == 4
    gave_up = next(x for x in lines if x["event"] == "child crashed too often, giving up")
    assert (gave_up["exit_code"], gave_up["crashes"]) == (7, 4)
    assert not is_alive(next(x["child_pid"] for x in lines if x["event"] == "child started"))


def test_a_child_that_ran_long_enough_counts_anew(tmp_path):
    marker = tmp_path / "count"
    code = (
        f"p = {str(marker)!r}; n = len(open(p, 'a+').read()); f = open(p, 'a'); f.write('x'); f.close()\nimport "
        "os\nos._exit(0 if os.path.getsize(p) >= 8 else 1)"
    )
    with supervised(tmp_path, {"flaky": python(code)}, restart=QUICK | {"stable_after_s": 0.0}) as program:
        assert program.await_end() == 0
    assert marker.stat().st_size == 8


def test_wrong_settings_are_not_tried_again(tmp_path):
    with supervised(tmp_path, {"bad": python("raise SystemExit(2)")}, restart=QUICK) as program:
        assert program.await_end() == 2
        assert len([x for x in program.logged() if x["event"] == "child started"]) == 1


def test_done_children_are_not_started_again(tmp_path):
    with supervised(tmp_path, {"a": python("print('a')"), "b": python("print('b')")}) as program:
        assert program.await_end() == 0
        assert [x["event"] for x in program.logged()].count("child finished") == 2
    assert (tmp_path / "logs/a.log").read_text() == "a\n"


def test_a_command_that_is_none(tmp_path):
    with supervised(tmp_path, {"none": ["/no/such/program"]}, restart=QUICK) as program:
        assert program.await_end() == 1
    assert "/no/such/program: No such file or directory" in (tmp_path / "logs/none.log").read_text()


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    with supervised(tmp_path, {"deaf": python(IGNORES_TERM)}, grace_s=0.3) as program:
        pid = program.await_event("child started")["child_pid"]
        await_text(tmp_path / "logs/deaf.log", "up")
        program.terminate()
        assert program.await_end() == 0
        assert any(x["event"] == "child did not stop, killing it" for x in program.logged())
        assert not is_alive(pid)


def test_grandchildren_go_with_the_child(tmp_path):
    with supervised(tmp_path, {"parent": python(WITH_GRANDCHILD)}) as program:
        grandchild = int(await_text(tmp_path / "logs/parent.log", "up").split()[1])
        assert is_alive(grandchild)
        program.terminate()
        assert program.await_end() == 0
        await_gone(grandchild)


def test_a_crashed_childs_leftovers_are_gone_before_it_comes_back(tmp_path):
    with supervised(tmp_path, {"parent": python(WITH_GRANDCHILD)}, restart=QUICK) as program:
        child = program.await_event("child started")["child_pid"]
        grandchild = int(await_text(tmp_path / "logs/parent.log", "up").split()[1])
        os.kill(child, signal.SIGKILL)
        program.await_event("child started")
        await_gone(grandchild)
        program.terminate()
        assert program.await_end() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
def test_children_die_with_a_killed_supervisor(tmp_path):
    with supervised(tmp_path, {"deaf": python(IGNORES_TERM), "tiny": TINY_COMMAND}) as program:
        pids = [program.await_event("child started")["child_pid"] for _ in range(2)]
        await_text(tmp_path / "logs/deaf.log", "up")
        await_text(tmp_path / "logs/tiny.log", '"ticked"')
        program.process.kill()
        program.await_end()
        for pid in pids:
            await_gone(pid)


def test_log_files_are_appended_to_and_put_aside_when_large(tmp_path):
    log = tmp_path / "logs/a.log"
    log.parent.mkdir()
    log.write_text("before\n")
    for expected in ("before\na\n", "a\n"):
        with supervised(tmp_path, {"a": python("print('a')")}) as program:
            assert program.await_end() == 0
        assert log.read_text() == expected
        with log.open("ab") as file:
            file.truncate(MAX_LOG_BYTES + 1)
    assert (tmp_path / "logs/a.log.1").stat().st_size == MAX_LOG_BYTES + 1


def test_stop_in_process(tmp_path):
    supervisor = Supervisor(
        [Child("a", tuple(python("import threading; threading.Event().wait()")), {"X": "1"})], tmp_path, grace_s=10
    )
    supervisor.stop()
    with capture_logs() as lines:
        assert supervisor.run() == 0
    ends = [(line["event"], line["child"], line.get("exit_code")) for line in lines]
    assert ends == [("child started", "a", None), ("child stopped", "a", -signal.SIGTERM)]


def test_names_differ(tmp_path):
    with pytest.raises(AssertionError, match="different names"):
        Supervisor([Child("a", ("x",)), Child("a", ("y",))], tmp_path)
