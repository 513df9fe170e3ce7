"""HTTP server of a service: probes, `/metrics`, `/requests`, `/version` and its own routes, in a thread of its process.

Probes are open to every client that reaches the port; all other routes require the bearer token if one is set. Heads, bodies and
idle connections have deadlines. Connections are bounded: a connection beyond the bound closes the oldest one without a running
request, clients that never sent the token first, so that slow clients cannot block probes.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import os
import platform
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from weakref import WeakSet

import anyio
from anyio.to_thread import run_sync
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler, stream_request_body

from tideline_runtime.errors import InvalidSetting
from tideline_runtime.health import Health, Verdict
from tideline_runtime.metrics import CONTENT_TYPE, Metrics
from tideline_table.extras import DISTRIBUTION

MAX_BODY_BYTES = 1 << 20
MAX_HEAD_BYTES = 16 << 10
_BACKLOG = 128
MAX_CONNECTIONS = 2 * _BACKLOG
"""Tornado accepts up to a backlog at a time: a connection must outlast the rest of its batch and the next one to be read. Also
larger than the number of requests that may wait for locks."""
HEAD_WITHIN_S = 5.0
"""From the opening of a connection, or from its last reply, to the end of the next head; it also bounds idle connections."""
BODY_WITHIN_S = 10.0
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_CLOSE_WITHIN_S = 3.0
_RENDERING = 2
"""Threads that render metrics; probes have separate threads."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a route; a mapping is sent as JSON."""

    content: Mapping[str, Any] | str | bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@stream_request_body
class Call(RequestHandler):
    """One request. Routes use `path_kwargs`, `get_query_argument`, `body` and `is_gone`."""

    body: bytearray
    is_gone = False
    """Whether the client has closed the connection."""

    def initialize(self, answers: Mapping[str, Answer], token: str | None) -> None:
        """Take the arguments of the route; called by Tornado."""
        self.body = bytearray()
        self._answers = answers
        self._token = token
        self._refusal: Reply | None = None

    @property
    def is_authorized(self) -> bool:
        """Whether no token is set, or the client sent it."""
        return self._token is None or _is_authorized(self.request.headers.get("authorization", ""), self._token)

    def prepare(self) -> None:
        """Check the head. The body of a refused call is still read, because a client that is still sending would lose the reply."""
        if self.request.path not in OPEN_PATHS and not self.is_authorized:
            self._refusal = Reply("this route requires a bearer token\n", 401, {"www-authenticate": "Bearer"})
        elif self.request.method not in self._answers:
            self._refusal = Reply("", 405 if self._answers else 404)

    def data_received(self, chunk: bytes) -> None:
        """Append a part of the body, unless the call is refused."""
        if self._refusal is None and len(self.body) + len(chunk) > MAX_BODY_BYTES:
            self._refusal = Reply(f"a body has at most {MAX_BODY_BYTES} bytes\n", 413)
            self.body.clear()
        elif self._refusal is None:
            self.body += chunk

    def on_connection_close(self) -> None:
        """Record that the client is gone; called by Tornado."""
        self.is_gone = True

    def compute_etag(self) -> None:
        """Return None: replies need no caching."""

    async def get(self, *_: str, **__: str) -> None:
        """Reply with the result of the route's function; HEAD and POST do the same."""
        if self._refusal is not None:
            self._send(self._refusal)
            return
        answer = self._answers[str(self.request.method)]
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection)
        stream, running = connection.stream, self.settings["running"]
        if self.request.path in OPEN_PATHS:
            reply = await answer(self)
        else:
            running[stream] = asyncio.current_task()
            self.settings["known"].add(stream)
            try:
                reply = await answer(self)
            finally:
                del running[stream]
        self._send(reply)

    head = post = put = patch = delete = options = get

    def _send(self, reply: Reply) -> None:
        self.clear_header("Server")
        self.set_status(reply.status)
        is_json = isinstance(reply.content, Mapping)
        self.set_header("Content-Type", "application/json" if is_json else "text/plain; charset=utf-8")
        for name, value in reply.headers.items():
            self.set_header(name, value)
        self.finish(json.dumps(reply.content) if isinstance(reply.content, Mapping) else reply.content)


Answer = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """The function for a method on paths that a regular expression matches; its named groups are the call's `path_kwargs`."""

    method: str
    path: str
    answer: Answer


def service_app(
    service: str, health: Health, metrics: Metrics, *, routes: Sequence[Route] = (), token: str | None = None
) -> Application:
    """Return the application.

    With a `token`, clients without it get status 401, except from probes, whose replies then lack the reasons.

    A probe with status 200 may list topics as `degraded`: conditions under which the service stays ready.
    """
    rendering = anyio.CapacityLimiter(_RENDERING)

    def judged(verdict: Verdict, call: Call) -> Reply:
        body: dict[str, object] = {"service": service, "ok": verdict.is_ok}
        if call.is_authorized:
            body["reasons"] = list(verdict.reasons)
        if verdict.conditions:
            # Topics are constants of this program and hold no secret, so clients without the token may read them.
            body["degraded"] = sorted(verdict.conditions)
            if call.is_authorized:
                body["conditions"] = [f"{topic}: {reason}" for topic, reason in verdict.conditions.items()]
        return Reply(body, 200 if verdict.is_ok else 503)

    async def healthz(call: Call) -> Reply:
        return judged(health.live(), call)

    async def readyz(call: Call) -> Reply:
        return judged(await run_sync(health.ready), call)

    async def show_metrics(_call: Call) -> Reply:
        return Reply(await run_sync(metrics.render, limiter=rendering), headers={"Content-Type": CONTENT_TYPE})

    async def show_version(_call: Call) -> Reply:
        return Reply({"service": service, "version": version(DISTRIBUTION), "python": platform.python_version()})

    async def show_requests(_call: Call) -> Reply:
        # Copied at once, because other threads count meanwhile.
        return Reply(
            {"service": service, "tables": {table: dict(count) for table, count in metrics.requests_by_table.copy().items()}}
        )

    probes = {"/healthz": healthz, "/readyz": readyz}
    shared = {**probes, "/metrics": show_metrics, "/requests": show_requests, "/version": show_version}
    by_path: dict[str, dict[str, Answer]] = {path: {"GET": answer, "HEAD": answer} for path, answer in shared.items()}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route.answer
    return Application(
        [(path, Call, {"answers": answers, "token": token}) for path, answers in by_path.items()],
        default_handler_class=Call,
        default_handler_args={"answers": {}, "token": token},
        log_function=lambda _call: None,
        running={},
        known=WeakSet(),
    )


class HttpServer:
    """Serves an application on `host` and `port` (0: any free one) in a thread, from `start` to `stop`.

    The constructor binds the port, so that `port` is known before anything else starts. It raises `InvalidSetting` for a port in
    use and for an unknown address.
    """

    def __init__(self, app: Application, host: str, port: int) -> None:
        self._socket = _bound_socket(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._app = app
        self._has_started = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="http", daemon=True)

    @property
    def local_host(self) -> str:
        """An address at which clients on this machine reach the server, also if the server listens on all addresses."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound

    def start(self) -> None:
        """Start the thread; return when the server answers requests."""
        self._thread.start()
        self._has_started.wait()

    def stop(self) -> None:
        """Finish running requests (bounded) and close the port. Safe to repeat, and without `start`."""
        if self._thread.is_alive():
            self._stop()
            self._thread.join(2 * _CLOSE_WITHIN_S)
        self._socket.close()

    async def _serve(self) -> None:
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(asked.set)
        listener = _Listener(
            self._app,
            idle_connection_timeout=HEAD_WITHIN_S,
            body_timeout=BODY_WITHIN_S,
            max_header_size=MAX_HEAD_BYTES,
        )
        listener.add_socket(self._socket)
        self._has_started.set()
        await asked.wait()
        listener.stop()
        if running := self._app.settings["running"]:
            await asyncio.wait(running.values(), timeout=_CLOSE_WITHIN_S)
        await listener.close_all_connections()


class _Listener(HTTPServer):
    """Keeps at most `MAX_CONNECTIONS` open.

    Beyond them it closes the oldest idle one, clients without the token first, else the new one.
    """

    def initialize(self, app: Application, **parameters: Any) -> None:  # type: ignore[override]
        super().initialize(app, **parameters)
        self._running: Mapping[IOStream, object] = app.settings["running"]
        self._known: WeakSet[IOStream] = app.settings["known"]
        self._open: list[IOStream] = []

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._open = [s for s in self._open if not s.closed()]
        if len(self._open) >= MAX_CONNECTIONS:
            # Clients of running requests sent the token and stay; of the others, clients that sent it earlier are closed last.
            idle = [s for s in self._open if s not in self._running]
            oldest = min(idle, key=self._known.__contains__, default=stream)
            oldest.close()
            if oldest is stream:
                return
            self._open.remove(oldest)
        self._open.append(stream)
        super().handle_stream(stream, address)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_authorized(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _bound_socket(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidSetting(
            f"setting 'http_host' is {host!r}: {error.strerror}", name="http_host", origin="", expected="an address of this machine"
        ) from None
    try:
        # Not Tornado's `bind_sockets`, which leaks the socket if the port is in use.
        bound = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidSetting(
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}",
            name="http_port",
            origin="",
            expected="an address of this machine and a free port",
            remedy="set http_port to 0 for any free port",
        ) from None
    bound.setblocking(False)
    return bound
