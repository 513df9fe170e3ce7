"""A proxy in front of a real S3 server: counts requests, loses answers, answers itself, or takes the condition out of a put."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import S3Store
from tests.real.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStoreServer

TIMEOUT_S = 60


@dataclass(frozen=True)
class Request:
    method: str
    key: str
    """Bucket and key, unquoted."""
    query: str
    is_conditional: bool
    """Whether it creates an object only if there is none."""
    replaces_version: bool
    """Whether it replaces an object only if it is still the one that was seen."""


@dataclass(frozen=True)
class Answer:
    status: int
    code: str = ""

    @property
    def body(self) -> bytes:
        return f"<Error><Code>{self.code}</Code><Message>injected</Message></Error>".encode()


class _LostReply:
    """The server gets the request, the client no answer."""


class _CutReply:
    """The client gets the head and half of the body."""


class _Unconditional:
    """The server gets the put without its condition."""


LOST_REPLY = _LostReply()
CUT_REPLY = _CutReply()
UNCONDITIONAL = _Unconditional()
Rule = Callable[[Request], "Answer | _LostReply | _CutReply | _Unconditional | None"]


@dataclass
class S3Proxy:
    server: ObjectStoreServer
    rule: Rule = lambda request: None
    requests: list[Request] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """Bytes of the content of each answer."""
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {**self.server.settings, "AWS_ENDPOINT_URL": self.endpoint}


@contextmanager
def proxy_before(server: ObjectStoreServer) -> Iterator[S3Proxy]:
    proxy = S3Proxy(server)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    listening.daemon_threads = True
    proxy.port = listening.server_port
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _handler(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            split = urlsplit(self.path)
            conditions = "If-None-Match" in self.headers, "If-Match" in self.headers
            request = Request(self.command, unquote(split.path).lstrip("/"), split.query, *conditions)
            proxy.requests.append(request)
            what = proxy.rule(request)
            if isinstance(what, Answer):
                self._send(what.status, {"Content-Type": "application/xml"}, what.body)
                return
            if what is UNCONDITIONAL:
                status, headers, content = self._forward(self._signed_anew(request.key), {}, body)
            else:
                status, headers, content = self._forward(self.path, dict(self.headers), body)
            if what is LOST_REPLY:
                self.close_connection = True
                return
            self._send(status, headers, content, is_cut=what is CUT_REPLY)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - names that http.server looks for

        def _forward(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
            # The Host header is part of the signature and goes on as it came.
            upstream = http.client.HTTPConnection("127.0.0.1", proxy.server.port, timeout=TIMEOUT_S)
            try:
                upstream.request(self.command, path, body=body, headers={**headers, "Connection": "close"})
                answer = upstream.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()
            finally:
                upstream.close()

        def _signed_anew(self, key: str) -> str:
            bucket, _, name = key.partition("/")
            store = S3Store(
                bucket,
                endpoint=proxy.server.endpoint,
                region=REGION,
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
                client_options={"allow_http": True},
            )
            url = urlsplit(obstore.sign(store, "PUT", name, timedelta(minutes=5)))
            return f"{url.path}?{url.query}"

        def _send(self, status: int, headers: dict[str, str], content: bytes, *, is_cut: bool = False) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                proxy.sent.append(len(content))
                self.wfile.write(content[: len(content) // 2] if is_cut else content)
            self.close_connection = self.close_connection or is_cut

        def log_message(self, *args: Any) -> None:
            """Nothing: tests look at `requests`."""

    return Handler
