import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.runtime.processes import tiny

from tideline_runtime.running import read_running
from tideline_runtime.state_folder import open_log_file

pytestmark = pytest.mark.timeout(60)


def samples(text):
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_life_from_start_to_sigterm(tmp_path):
    with tiny(tmp_path, forked=False) as program:
        program.await_event("ticked")
        running = read_running(tmp_path / "tiny.json")
        assert (running.service, running.pid, running.host) == ("tiny", program.process.pid, "127.0.0.1")
        with httpx.Client(base_url=running.url) as client:
            assert client.get("/healthz").json() == {"service": "tiny", "ok": True, "reasons": []}
            assert client.get("/readyz").status_code == 200
            assert client.get("/version").json()["service"] == "tiny"
            found = samples(client.get("/metrics").text)
            assert client.get("/nothing").status_code == 404
            program.terminate()
            assert program.await_end() == 0
        assert found[("tideline_runtime_ticks_total", (("outcome", "done"),))] == 1
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", running.port)).close()
        lines = program.logged()
        assert all({"timestamp", "level", "event", "service"} <= line.keys() and line["service"] == "tiny" for line in lines)
        ticked = next(line for line in lines if line["event"] == "ticked")
        assert (ticked["table"], ticked["instant"], ticked["ticks"]) == ("file:/data/trips", "20260101000000000", 1)
        assert ticked["timestamp"].endswith("Z")
        assert [line["event"] for line in lines][-3:] == ["stopping", "stop called", "stopped"]
        assert program.process.stdout.read() == ""


def test_sigint_stops_it_too(tmp_path):
    with tiny(tmp_path) as program:
        program.await_event("ticked")
        program.terminate(signal.SIGINT)
        assert program.await_end() == 0


def test_wake_brings_the_next_tick_now(tmp_path):
    with tiny(tmp_path, behaviour="route", TIDELINE_POLL_INTERVAL_S="3600") as program:
        program.await_event("ticked")
        url = read_running(tmp_path / "tiny.json").url
        assert httpx.post(f"{url}/wake").text == "woken"
        assert program.await_event("ticked")["ticks"] == 2
        program.terminate()
        assert program.await_end() == 0


def test_retryable_failures_go_on_and_show_in_readiness(tmp_path):
    with tiny(tmp_path, behaviour="retry", TIDELINE_RETRY_BACKOFF_MAX_S="0.01", TIDELINE_MAX_CONSECUTIVE_FAILURES="2") as program:
        warning = program.await_event("tick failed, trying again", count=6)
        assert (warning["error"], warning["recovery"], warning["found"], warning["remedy"]) == (
            "StorageError",
            "retry",
            "storage did not answer",
            "wait",
        )
        url = read_running(tmp_path / "tiny.json").url
        answer = httpx.get(f"{url}/readyz")
        assert answer.status_code == 503
        own, probed = answer.json()["reasons"]
        assert own.startswith("tick: failed")
        assert "storage is not reachable" in probed
        assert "hunter22" not in probed
        assert httpx.get(f"{url}/healthz").status_code == 200
        program.terminate()
        assert program.await_end() == 0


def test_incurable_failures_end_the_process_at_the_bound(tmp_path):
    variables = {
        "TIDELINE_RETRY_BACKOFF_MAX_S": "0.01",
        "TIDELINE_MAX_CONSECUTIVE_FAILURES": "3",
        "TIDELINE_TINY__PASSWORD": "hunter22",
    }
    with tiny(tmp_path, behaviour="broken", **variables) as program:
        assert program.await_end() == 1
        lines = program.logged()
        failed = [line for line in lines if line["event"] == "tick failed"]
        assert len(failed) == 3
        assert "Traceback" in failed[0]["exception"]
        assert "a defect near **********" in failed[0]["exception"]
        assert "hunter22" not in "\n".join(program.lines)
        assert [line["event"] for line in lines][-3:] == ["giving up", "stop called", "stopped"]
        assert list(tmp_path.iterdir()) == []


def test_a_refused_input_ends_the_process_without_a_traceback(tmp_path):
    with tiny(tmp_path, behaviour="bad-input") as program:
        assert program.await_end() == 1
        lines = program.logged()
        failed = [line for line in lines if line.get("error") == "InputRefused"]
        assert [line["event"] for line in failed] == ["tick failed", "giving up"]
        assert (failed[0]["found"], failed[0]["remedy"]) == ("record 5 of t/0 cannot be ingested", "correct it")
        assert not any("exception" in line for line in lines)


def test_readiness_goes_at_the_first_incurable_failure(tmp_path):
    with tiny(tmp_path, behaviour="broken-once") as program:
        program.await_event("tick failed")
        url = read_running(tmp_path / "tiny.json").url
        assert httpx.get(f"{url}/readyz").status_code == 503
        assert samples(httpx.get(f"{url}/metrics").text)[("tideline_runtime_ticks_total", (("outcome", "failed"),))] == 1
        program.terminate()
        assert program.await_end() == 0


def test_start_is_retried_when_a_retry_may_cure_it(tmp_path):
    with tiny(tmp_path, behaviour="late-start", TIDELINE_RETRY_BACKOFF_MAX_S="0.01") as program:
        program.await_event("start failed, trying again", count=2)
        program.await_event("ticked")
        program.terminate()
        assert program.await_end() == 0
        assert next(line for line in program.logged() if line["event"] == "stop called")["starts"] == 3


@pytest.mark.parametrize(("behaviour", "event"), [("broken-start", "giving up"), ("broken-stop", "stop failed")])
def test_failing_start_or_stop_is_logged_and_told_by_the_exit_code(tmp_path, behaviour, event):
    with tiny(tmp_path, behaviour=behaviour) as program:
        if behaviour == "broken-stop":
            program.await_event("ticked")
            program.terminate()
        assert program.await_end() == 1
        assert "Traceback" in next(line for line in program.logged() if line["event"] == event)["exception"]
        assert list(tmp_path.iterdir()) == []


def test_settings_that_an_adapter_refuses_at_start_exit_with_2(tmp_path):
    with tiny(tmp_path, behaviour="refused-start") as program:
        assert program.await_end() == 2
        assert program.lines[-1] == "tiny: setting 'event_log' is 'x:' with a second line; expected a log"
        assert list(tmp_path.iterdir()) == []


def test_a_hanging_tick_does_not_outlive_the_grace_deadline(tmp_path):
    with tiny(tmp_path, behaviour="hanging-tick", TIDELINE_STOP_GRACE_S="0.3") as program:
        program.await_event("ticked")
        began = time.monotonic()
        program.terminate()
        assert program.await_end() == 3
        assert time.monotonic() - began >= 0.3
        assert program.logged()[-1]["event"].startswith("did not stop within the grace deadline")
        assert list(tmp_path.iterdir()) == []


def test_a_hanging_tick_is_not_live(tmp_path):
    with tiny(tmp_path, behaviour="hanging-tick", TIDELINE_LIVE_DEADLINE_S="0.001") as program:
        program.await_event("ticked")
        answer = httpx.get(read_running(tmp_path / "tiny.json").url + "/healthz")
        assert answer.status_code == 503
        assert "no sign of life of the main loop" in answer.json()["reasons"][0]


def test_warnings_and_stray_threads_are_log_lines(tmp_path):
    with tiny(tmp_path, behaviour="library", warnings="default") as program:
        stray = program.await_event("thread ended by an error")
        assert (stray["thread"], stray["error"]) == ("stray", "ZeroDivisionError")
        program.terminate()
        assert program.await_end() == 0
        warning = next(line for line in program.logged() if line["logger"] == "py.warnings")
        assert (warning["level"], warning["service"]) == ("warning", "tiny")
        assert "a library warns" in warning["event"]


@pytest.mark.parametrize(
    ("variables", "arguments", "line"),
    [
        (
            {"TIDELINE_HTTP_PORT": "soon"},
            (),
            (
                "tiny: setting 'http_port' is 'soon' (environment variable TIDELINE_HTTP_PORT); "
                "expected a valid integer, unable to parse string as an integer"
            ),
        ),
        (
            {"TIDELINE_TINY__BEHAVIOR": "good"},
            ("--check",),
            (
                "tiny: unknown environment variable TIDELINE_TINY__BEHAVIOR; expected a declared setting; did you mean "
                "TIDELINE_TINY__BEHAVIOUR?"
            ),
        ),
        (
            {"TIDELINE_HTTP_HOST": "0.0.0.0", "TIDELINE_TINY__BEHAVIOUR": "route"},
            (),
            (
                "tiny: setting 'http_host' is '0.0.0.0' and 'http_token' is unset; "
                "expected a token, because the service accepts requests from other machines; "
                "set http_token, or set http_host to a loopback address"
            ),
        ),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(tmp_path, variables, arguments, line):
    with tiny(tmp_path, *arguments, **variables) as program:
        assert program.await_end() == 2
        assert program.lines == [line]


def test_a_port_in_use_is_one_line_and_exit_code_2(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with tiny(tmp_path, TIDELINE_HTTP_PORT=str(port)) as program:
            assert program.await_end() == 2
            assert len(program.lines) == 1
            assert f"cannot listen on 127.0.0.1 port {port}" in program.lines[0]


def test_a_state_folder_that_cannot_be_made_is_exit_code_2(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with tiny(blocked / "below") as program:
        assert program.await_end() == 2
        assert "state_folder" in program.lines[0]


def test_what_a_service_creates_is_for_its_user_only(tmp_path):
    state = tmp_path / "state"
    with tiny(state) as program:
        program.await_event("ticked")
        assert state.stat().st_mode & 0o777 == 0o700
        assert (state / "tiny.json").stat().st_mode & 0o777 == 0o600
        program.terminate()
        assert program.await_end() == 0
    log = open_log_file(tmp_path / "logs" / "a.log")
    log.close()
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "logs", tmp_path / "logs" / "a.log")] == [0o700, 0o600]


@pytest.mark.parametrize(
    ("content", "mode", "warned"),
    [
        ('http_token = "abcdefgh"', 0o644, "http_token"),
        ('[tiny]\npassword = "hunter22"', 0o644, "password"),
        ('locks = "redis://user:hunter22@redis.example:6379/0"', 0o644, "locks"),
        ('[event_log_options]\n"sasl.password" = "hunter22"', 0o644, "event_log_options"),
        ('http_token = "abcdefgh"', 0o640, ""),
        ("http_port = 0", 0o644, ""),
    ],
)
def test_secrets_in_a_file_that_all_users_can_read_are_reported(content, mode, warned):
    # Not below pytest's own folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "tideline.toml"
        file.write_text(content)
        file.chmod(mode)
        with tiny(Path(folder) / "state", "--settings", str(file), "--check") as program:
            assert program.await_end() == 0
            lines = list(program.lines)
        expected = f"tiny: warning: settings file {file} has secrets ({warned}) and all users of this machine can read it"
        assert [line.partition(":")[0] for line in lines] == (["tiny"] if warned else [])
        assert not warned or lines[0].startswith(expected)


def test_check_and_print_settings(tmp_path):
    file = tmp_path / "tideline.toml"
    file.write_text('poll_interval_s = 2\n[tiny]\npassword = "hunter22"\nhttp_port = 1\n')
    with tiny(tmp_path, "--settings", str(file), "--check") as program:
        assert program.await_end() == 0
        assert program.lines == []
    with tiny(tmp_path, "--settings", str(file), "--print-settings") as program:
        assert program.await_end() == 0
        shown = program.process.stdout.read()
    assert f"poll_interval_s = 2.0  # settings file {file}" in shown
    assert f"http_port = 1  # settings file {file}, table [tiny]" in shown
    assert 'password = "**********"' in shown
    assert "hunter22" not in shown


def test_check_refuses_a_lock_url_that_the_start_would_refuse(tmp_path):
    with tiny(tmp_path, "--check", TIDELINE_LOCKS="zookeeper://host.example:2181") as program:
        assert program.await_end() == 2
        assert "setting 'locks': lock provider zookeeper:" in program.lines[0]


def test_shards_have_files_of_their_own(tmp_path):
    with tiny(tmp_path, TIDELINE_SHARD_COUNT="2", TIDELINE_SHARD_INDEX="1") as program:
        program.await_event("ticked")
        assert json.loads((tmp_path / "tiny-1.json").read_text())["pid"] == program.process.pid
        program.terminate()
        assert program.await_end() == 0


def test_an_exit_leaves_a_successors_file_alone(tmp_path):
    with tiny(tmp_path) as program:
        program.await_event("ticked")
        running = json.loads((tmp_path / "tiny.json").read_text())
        (tmp_path / "tiny.json").write_text(json.dumps(running | {"pid": os.getpid()}))
        program.terminate()
        assert program.await_end() == 0
        assert read_running(tmp_path / "tiny.json").pid == os.getpid()
