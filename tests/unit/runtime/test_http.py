import threading

import httpx
import pytest

from tideline_runtime.errors import InvalidSetting
from tideline_runtime.health import Health
from tideline_runtime.http import MAX_BODY_BYTES, HttpServer, Reply, Route, is_loopback, service_app
from tideline_runtime.metrics import Metrics
from tideline_table.clock import ManualClock

TOKEN = "a-token-of-length"


async def echo(call):
    return Reply(str(len(call.body)))


@pytest.fixture
def serve():
    servers = []

    def start(token=None):
        health = Health(ManualClock(), 10)
        health.started()
        app = service_app("probe", health, Metrics("probe"), routes=[Route("POST", "/echo", echo)], token=token)
        server = HttpServer(app, "127.0.0.1", 0)
        servers.append(server)
        server.start()
        return httpx.Client(base_url=f"http://127.0.0.1:{server.port}"), health

    yield start
    for server in servers:
        server.stop()


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/metrics"), ("GET", "/version"), ("POST", "/echo"), ("GET", "/nothing"), ("PUT", "/echo")]
)
def test_everything_but_the_probes_needs_the_token(serve, header, method, path):
    client, _ = serve(TOKEN)
    with client:
        answer = client.request(method, path, headers={} if header is None else {"authorization": header})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_with_the_token(serve):
    client, health = serve(TOKEN)
    with client:
        client.headers["authorization"] = f"bearer {TOKEN}"
        assert client.get("/metrics").status_code == 200
        assert client.post("/echo", content=b"abc").text == "3"
        health.obstruct("tick", "why")
        assert client.get("/readyz").json()["reasons"] == ["tick: why"]


def test_probes_are_open_but_keep_reasons_to_themselves(serve):
    client, health = serve(TOKEN)
    health.obstruct("tick", "inner matters")
    with client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"service": "probe", "ok": False})


def test_conditions_are_named_to_all_and_explained_to_clients_with_the_token(serve):
    client, health = serve(TOKEN)
    health.obstruct("table search", "inner matters", after_s=60)
    with client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"service": "probe", "ok": True, "degraded": ["table search"]})
        client.headers["authorization"] = f"bearer {TOKEN}"
        assert client.get("/readyz").json()["conditions"] == ["table search: inner matters"]
        assert "degraded" not in client.get("/healthz").json()


def test_bodies_are_bounded_with_and_without_a_declared_length(serve):
    client, _ = serve()

    def chunks(size):
        for _ in range(size // 65536):
            yield b"x" * 65536

    with client:
        assert client.post("/echo", content=b"x" * MAX_BODY_BYTES).text == str(MAX_BODY_BYTES)
        assert client.post("/echo", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
        assert client.post("/echo", content=chunks(MAX_BODY_BYTES)).text == str(MAX_BODY_BYTES)
        assert client.post("/echo", content=chunks(2 * MAX_BODY_BYTES)).status_code == 413


def test_many_callers_at_once(serve):
    client, _ = serve()
    codes = []
    with client:
        threads = [threading.Thread(target=lambda: codes.append(client.get("/metrics").status_code)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert codes == [200] * 16


def test_port_is_free_again_after_stop_and_stop_is_harmless_twice():
    app = service_app("probe", Health(ManualClock(), 10), Metrics("probe"))
    first = HttpServer(app, "127.0.0.1", 0)
    with pytest.raises(InvalidSetting, match="cannot listen"):
        HttpServer(app, "127.0.0.1", first.port)
    first.start()
    first.stop()
    first.stop()
    again = HttpServer(app, "127.0.0.1", first.port)
    again.stop()


def test_a_host_that_is_none():
    with pytest.raises(InvalidSetting) as caught:
        HttpServer(service_app("probe", Health(ManualClock(), 10), Metrics("probe")), "no.such.host.invalid", 0)
    assert caught.value.name == "http_host"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("x", False)],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected
