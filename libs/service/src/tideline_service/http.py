"""The HTTP side of a service: `/healthz`, `/readyz`, `/metrics`, `/version` and what the service adds, in a thread of its process.

Probes are open to everyone who reaches the port; everything else asks for the bearer token when one is set. Bodies are bounded.
"""

from __future__ import annotations

import hmac
import ipaddress
import platform
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import version

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tideline_service.errors import InvalidSetting
from tideline_service.health import Health, Verdict
from tideline_service.metrics import CONTENT_TYPE, Metrics

MAX_BODY_BYTES = 1 << 20
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_CLOSE_WITHIN_S = 3


def service_app(
    service: str, health: Health, metrics: Metrics, *, routes: Sequence[BaseRoute] = (), token: str | None = None
) -> Starlette:
    """The application. With a `token`, callers without it get 401 everywhere but at the probes, which then keep reasons to themselves."""

    def judged(verdict: Verdict, request: Request) -> JSONResponse:
        body: dict[str, object] = {"service": service, "ok": verdict.is_ok}
        if token is None or _is_authorized(request.headers.get("authorization", ""), token):
            body["reasons"] = list(verdict.reasons)
        return JSONResponse(body, status_code=200 if verdict.is_ok else 503)

    async def healthz(request: Request) -> Response:
        return judged(health.live(), request)

    async def readyz(request: Request) -> Response:
        return judged(await run_in_threadpool(health.ready), request)

    async def show_metrics(_request: Request) -> Response:
        return Response(await run_in_threadpool(metrics.render), media_type=CONTENT_TYPE)

    async def show_version(_request: Request) -> Response:
        return JSONResponse({"service": service, "version": version("tideline-service"), "python": platform.python_version()})

    shared = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", show_metrics),
        Route("/version", show_version),
    ]
    return Starlette(routes=[*shared, *routes], middleware=[Middleware(_Gate, token=token)])


class HttpServer:
    """Serves an application on `host` and `port` (0: any free one) in a thread, from `start` to `stop`.

    The port is bound at once, so that `port` is known and a port in use is refused before anything else has started: the
    constructor raises `InvalidSetting` then.
    """

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._socket = _bound_socket(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=64,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    @property
    def local_host(self) -> str:
        """An address at which this machine reaches the server, also when it listens on all of them."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound

    def start(self) -> None:
        """Answer requests; returns when the first one would be answered."""
        self._thread.start()
        self._server.has_started.wait()

    def stop(self) -> None:
        """Finish the requests under way (bounded) and close the port. Harmless when never started or stopped before."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(2 * _CLOSE_WITHIN_S)
        self._socket.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.has_started.set()


class _Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


class _Gate:
    """Lets a request in only with the token, and only with a body below the bound."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if (
            self._token is not None
            and scope["path"] not in OPEN_PATHS
            and not _is_authorized(headers.get(b"authorization", ""), self._token)
        ):
            refusal = PlainTextResponse("a bearer token is needed\n", 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        body = await _bounded_body(receive)
        if body is None:
            await PlainTextResponse(f"a body has at most {MAX_BODY_BYTES} bytes\n", 413)(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


async def _bounded_body(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_authorized(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _bound_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidSetting(
            f"setting 'http_host' is {host!r}: {error.strerror}", name="http_host", origin="", expected="an address of this machine"
        ) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise InvalidSetting(
            f"cannot listen on {host} port {port}: {error.strerror}",
            name="http_port",
            origin="",
            expected="an address of this machine and a free port",
            remedy="set http_port to 0 for any free port",
        ) from None
    return bound
