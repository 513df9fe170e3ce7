"""An HTTP proxy in front of the API server that delays answers and loses them after success."""

from __future__ import annotations

import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from tests.real.kubernetes_api import KubernetesApi

_KEPT = ("content-type",)


class ApiProxy:
    """Forwards each request.

    Of the answers to POST, PATCH and DELETE, `lost` are not sent, and `late` sent after `late_s` seconds.
    """

    def __init__(self, api: KubernetesApi, *, lost: float, late: float, late_s: float, seed: int = 1) -> None:
        self.lost = self.late = 0
        proxy, client, draws, guard = self, api.client(), random.Random(seed), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {k: self.headers[k] for k in ("Authorization", "Content-Type", "Accept") if k in self.headers}
                streams = "watch=true" in self.path
                request = client.build_request(
                    self.command, self.path, content=body, headers=headers, timeout=None if streams else 30
                )
                answer = client.send(request, stream=True)
                try:
                    if streams:
                        self._stream(answer)
                    else:
                        self._answer(answer)
                finally:
                    answer.close()

            def _answer(self, answer: httpx.Response) -> None:
                content = answer.read()
                with guard:
                    draw = draws.random() if self.command != "GET" else 1.0
                    proxy.lost += draw < lost
                    proxy.late += lost <= draw < lost + late
                if draw < lost:
                    self.close_connection = True
                    return
                if draw < lost + late:
                    time.sleep(late_s)
                self.send_response(answer.status_code)
                for name in _KEPT:
                    self.send_header(name, answer.headers.get(name, ""))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _stream(self, answer: httpx.Response) -> None:
                self.send_response(answer.status_code)
                # In chunks, as the API server sends it: without them the client would wait for 64 KiB of events.
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                for chunk in filter(None, answer.iter_raw()):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, httpx.HTTPError):
                    return  # the client gave up, or the test closed the proxy

            def log_message(self, *args: object) -> None:
                return

            do_GET = do_POST = do_PATCH = do_DELETE = _forward  # noqa: N815

        self._client = client
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._client.close()
