"""Clients that are slow on purpose, on a real socket and without the token: probes and calls of others are answered in bounded
time."""

import contextlib
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException

import httpx
import pytest
from anyio.to_thread import run_sync

from tideline_runtime import http
from tideline_runtime.health import Health
from tideline_runtime.http import HttpServer, Reply, Route, service_app
from tideline_runtime.metrics import Metrics
from tideline_table.clock import ManualClock

TOKEN = "a-token-of-length"
ATTACKERS = 300
"""More than the server keeps open."""
BOUND_S = 60.0
PATIENCE_S = 600.0
"""How long the servers here wait for slow clients: who is answered within the bound did not wait until they were cut off."""

HALF_HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
HALF_BODY = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
OPENINGS = {"half a head": HALF_HEAD, "half a body": HALF_BODY, "nothing": b"", "an answered request": WHOLE}


def wait_long_for_slow_clients(monkeypatch):
    """The deadlines of servers that start from now on are far behind the bound, also on a slow machine."""
    for deadline in ("HEAD_WITHIN_S", "BODY_WITHIN_S"):
        monkeypatch.setattr(http, deadline, PATIENCE_S)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    wait_long_for_slow_clients(monkeypatch)


@contextlib.contextmanager
def serving(*routes):
    health = Health(ManualClock(), 10)
    health.started()
    server = HttpServer(service_app("probe", health, Metrics("probe"), routes=routes, token=TOKEN), "127.0.0.1", 0)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def server():
    with serving() as server:
        yield server


@contextlib.contextmanager
def attack(server, opening, count=ATTACKERS):
    with contextlib.ExitStack() as opened:
        connections = []
        for _ in range(count):
            connections.append(opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S)))
            with contextlib.suppress(OSError):
                connections[-1].sendall(opening)
        yield connections


def ended(connection):
    """Whether the server has closed the connection."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def status(server, path, method="GET", timeout=BOUND_S):
    with contextlib.closing(HTTPConnection("127.0.0.1", server.port, timeout=timeout)) as connection:
        connection.request(method, path, headers={} if path in http.OPEN_PATHS else {"authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status


def check_answers(server):
    for path in ("/healthz", "/readyz", "/metrics"):
        began = time.monotonic()
        assert (status(server, path), time.monotonic() - began < BOUND_S) == (200, True), path


def check_answers_to_who_tries_again(server):
    """As a kubelet does: while new connections stream in, the server may close one whose head has not arrived yet."""
    for path in ("/healthz", "/readyz", "/metrics"):
        began, answer = time.monotonic(), None
        while answer is None and time.monotonic() - began < BOUND_S:
            with contextlib.suppress(OSError, HTTPException):
                answer = status(server, path)
        assert (answer, time.monotonic() - began < BOUND_S) == (200, True), path


@pytest.mark.parametrize("kind", OPENINGS)
@pytest.mark.parametrize("count", [70, ATTACKERS])
def test_slow_clients_keep_nobody_out(server, kind, count):
    with attack(server, OPENINGS[kind], count) as connections:
        for _ in range(3):
            check_answers(server)
        assert sum(not ended(c) for c in connections) <= http.MAX_CONNECTIONS


@pytest.mark.parametrize("kind", OPENINGS)
def test_slow_clients_are_cut_off_though_they_drip(kind, monkeypatch):
    """Deadlines count for all of a head or a body: one more byte now and then prolongs nothing."""
    monkeypatch.setattr(http, "HEAD_WITHIN_S", 0.5)
    monkeypatch.setattr(http, "BODY_WITHIN_S", 0.5)
    with serving() as server, attack(server, OPENINGS[kind], 10) as connections:
        until_s = time.monotonic() + BOUND_S
        while not all(ended(c) for c in connections):
            assert time.monotonic() < until_s, "still open"
            if kind in ("half a head", "half a body"):
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")
            time.sleep(0.05)


class Holding:
    """A route that answers when the test lets it."""

    def __init__(self):
        self.held = threading.Semaphore(0)
        self.let_go = threading.Event()

    async def answer(self, _call):
        self.held.release()
        await run_sync(self.let_go.wait)
        return Reply("held")

    @contextlib.contextmanager
    def calls(self, server, count):
        """So many calls of other threads, held until the context ends; the statuses that they got."""
        got = []
        threads = [threading.Thread(target=lambda: got.append(status(server, "/hold", "POST"))) for _ in range(count)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert self.held.acquire(timeout=BOUND_S)
        yield got
        self.let_go.set()
        for thread in threads:
            thread.join()


def test_a_running_call_is_not_closed_for_slow_clients():
    holding = Holding()
    with serving(Route("POST", "/hold", holding.answer)) as server:
        with holding.calls(server, 2) as statuses, attack(server, HALF_HEAD):
            check_answers(server)
        assert statuses == [200, 200]


def test_a_connection_beyond_running_calls_is_refused(monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    holding = Holding()
    with serving(Route("POST", "/hold", holding.answer)) as server:
        with holding.calls(server, 2) as statuses, attack(server, b"", 1) as (refused,):
            assert ended_within(refused, BOUND_S)
        assert statuses == [200, 200]
        check_answers(server)


def test_a_stop_lets_running_calls_end():
    holding = Holding()
    with serving(Route("POST", "/hold", holding.answer)) as server, holding.calls(server, 1) as statuses:
        stop = threading.Thread(target=server.stop)
        stop.start()
        holding.let_go.set()
        stop.join()
    assert statuses == [200]


def test_a_stream_of_new_attackers_keeps_nobody_out(server):
    over = threading.Event()

    def besiege():
        while not over.is_set():
            with contextlib.suppress(OSError), attack(server, HALF_HEAD, 100):
                pass

    besiegers = [threading.Thread(target=besiege) for _ in range(4)]
    for besieger in besiegers:
        besieger.start()
    try:
        for _ in range(10):
            check_answers_to_who_tries_again(server)
    finally:
        over.set()
        for besieger in besiegers:
            besieger.join()


def test_a_large_body_without_the_token_is_told_so(server):
    answer = httpx.post(f"http://127.0.0.1:{server.port}/metrics", content=b"x" * (4 * http.MAX_BODY_BYTES), timeout=BOUND_S)
    assert answer.status_code == 401


def test_a_head_is_bounded(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S) as connection:
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(b"GET /healthz HTTP/1.1\r\n" + b"X-Long: " + b"x" * 10_000)
        assert ended_within(connection, BOUND_S)
    check_answers(server)


def ended_within(connection, wait_s):
    until_s = time.monotonic() + wait_s
    while not ended(connection):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True
