"""A schema registry's answers over HTTP, for the client that asks the real ones: schemas by id, and failures as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOT_FOUND = 404, {"error_code": 40403, "message": "Schema not found"}


@dataclass
class Answers:
    """What `/schemas/ids/<id>` and other paths answer: a document, or a status with a document or text."""

    paths: dict[str, Any] = field(default_factory=dict)
    failure: tuple[int, Any] | None = None
    """Instead of everything."""
    deleted: set[str] = field(default_factory=set)
    """Paths that are answered only with `deleted=true`, as versions that were deleted softly."""
    on_answer: Callable[[], object] = lambda: None
    """Called before each answer."""
    asked: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/base"

    def register(self, schema_id: int, schema: Any, **more: Any) -> bytes:
        """The header of values of this schema."""
        self.paths[f"/schemas/ids/{schema_id}"] = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        return b"\x00" + schema_id.to_bytes(4, "big")

    def refer(self, name: str, schema: Any, references: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
        """A schema that others refer to by `name`: version 3 of a subject of that name. Returns the reference."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        known = {"subject": name, "version": 3, "id": 1, "schema": text, "references": list(references)}
        self.paths[f"/subjects/{name}/versions/3"] = {**known, **more}
        return {"name": name, "subject": name, "version": 3}

    def answer(self, path: str, query: str) -> tuple[int, Any]:
        if self.failure is not None:
            return self.failure
        if path in self.deleted and "deleted=true" not in query.split("&"):
            return NOT_FOUND
        return (200, self.paths[path]) if path in self.paths else NOT_FOUND


@contextmanager
def answering() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            path, _, query = self.path.removeprefix("/base").partition("?")
            answers.asked.append(path)
            answers.authorizations.append(self.headers.get("Authorization"))
            answers.on_answer()
            status, document = answers.answer(path, query)
            content = document.encode() if isinstance(document, str) else json.dumps(document).encode()
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing: tests look at `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    answers.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
