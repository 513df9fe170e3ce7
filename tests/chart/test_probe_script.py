"""The script of `helm test`, against real HTTP servers."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.chart.tools import CHART

from tideline_runtime.health import Health
from tideline_runtime.http import HttpServer, service_app
from tideline_runtime.metrics import Metrics
from tideline_table.clock import SystemClock


@pytest.fixture
def probes():
    spec = importlib.util.spec_from_file_location("probes", CHART / "files/probes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PAUSE_S = 0.01
    return module


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = self.server.statuses.get(self.path, 404)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"reasons": ["start: not started yet"], **self.server.more}).encode())

        def log_message(self, *_: object) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as made:
        made.statuses = {"/healthz": 200, "/readyz": 200}
        made.more = {}
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_ready_pods_pass(probes, server, capsys):
    assert probes.main([f"--port={server.server_port}", "--timeout=5", "127.0.0.1=1"]) == 0
    assert '{"ready": {"127.0.0.1": 1}}' in capsys.readouterr().out


def test_a_pod_that_is_not_ready_fails_with_its_answer(probes, server, capsys):
    server.statuses["/readyz"] = 503
    assert probes.main([f"--port={server.server_port}", "--timeout=0", "127.0.0.1=1"]) == 1
    assert "/readyz answers 503" in (error := capsys.readouterr().err)
    assert "not started yet" in error


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"degraded": ["table search"]}, "/readyz answers 200, degraded: table search\n"),
        ({"degraded": ["tables"], "conditions": ["tables: none can be opened"]}, "degraded: tables: none can be opened\n"),
    ],
)
def test_a_pod_that_can_search_for_tables_nowhere_or_open_none_fails_although_it_is_ready(probes, server, capsys, more, shown):
    server.more = more
    assert probes.main([f"--port={server.server_port}", "--timeout=0", "127.0.0.1=1"]) == 1
    assert shown in capsys.readouterr().err


def test_what_services_answer_is_what_the_script_reads(probes, capsys):
    """The server of the services themselves, with a token that the script does not have."""
    health = Health(SystemClock(), 300)
    health.started()
    server = HttpServer(service_app("mirror", health, Metrics("mirror"), token="a-secret-token"), "127.0.0.1", 0)
    server.start()
    try:
        arguments = [f"--port={server.port}", "--timeout=0", "127.0.0.1=1"]
        assert probes.main(arguments) == 0
        health.obstruct("table search", "a cause", after_s=300)
        assert probes.main(arguments) == 1
        assert "/readyz answers 200, degraded: table search" in (error := capsys.readouterr().err)
        assert "a cause" not in error
    finally:
        server.stop()


def test_a_missing_pod_fails(probes, server, capsys):
    assert probes.main([f"--port={server.server_port}", "--timeout=0", "127.0.0.1=2"]) == 1
    assert "127.0.0.1: found 1 pods, expected 2" in capsys.readouterr().err


def test_a_pod_that_does_not_answer_fails(probes, server, capsys):
    server.shutdown()
    server.socket.close()
    assert probes.main([f"--port={server.server_port}", "--timeout=0", "127.0.0.1=1"]) == 1
    assert "/healthz does not answer" in capsys.readouterr().err
