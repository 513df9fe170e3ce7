"""A real HTTP server that keeps what it gets, and answers as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def place(self) -> tuple[str, int]:
        """The table's name and the sequence of a transition."""
        return self.json["data"]["table"]["name"], self.json["data"]["sequence"]


@dataclass
class Answer:
    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    act: Callable[[BaseHTTPRequestHandler], None] | None = None
    """Does all of the answer itself."""


class Receiver:
    """Answers 204, or what `answer` returns for a request. `taken` has the requests that it answered with 2xx."""

    def __init__(self, answer: Callable[[Received], Answer] = lambda _: Answer(), context: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.got: list[Received] = []
        self.taken: list[Received] = []
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received = Received(self.path, {name.lower(): text for name, text in self.headers.items()}, body)
                answer = outer.answer(received)
                with outer._changed:
                    outer.got.append(received)
                    if 200 <= answer.status < 300:
                        outer.taken.append(received)
                    outer._changed.notify_all()
                if answer.act is not None:
                    self.close_connection = True
                    answer.act(self)
                    return
                self.send_response(answer.status)
                for name, text in answer.headers:
                    self.send_header(name, text)
                if answer.status != 204:
                    self.send_header("content-length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self._server.server_port}/hook"

    def wait(self, is_enough: Callable[[], bool], timeout_s: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(is_enough, timeout_s), [r.body[:300] for r in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
