"""The client of the lock service where it differs from other adapters: lost replies, tokens, addresses, and tables under its
lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from tests.contract.locks.conftest import lock_service

import tideline
from tideline_locks import LockAccessDenied, LockUnreachable, StaleFence, check_lock_url, open_lock_provider
from tideline_locks.http import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, HttpLockProvider
from tideline_locks.table_lock import lock_name
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.errors import InvalidOption
from tideline_table.table import Table

TOKEN = "a-token-of-this-test"


@contextmanager
def losing_replies(url: str, step: str) -> Iterator[tuple[str, list[str]]]:
    """Stand before the service at `url` and lose the first reply to `step` after the service has acted.

    Yields URL and lost paths.
    """
    lost: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            reply = httpx.post(url + self.path, content=body, timeout=30)
            if self.path.endswith(step) and not lost:
                lost.append(self.path)
                self.close_connection = True
            else:
                self.answer(reply)

        def do_GET(self) -> None:
            self.answer(httpx.get(url + self.path, timeout=30))

        def answer(self, reply: httpx.Response) -> None:
            self.send_response(reply.status_code)
            self.send_header("content-length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", lost
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with lock_service(f"memory:{tmp_path}", SystemClock(), tmp_path) as served:
        yield served


@pytest.mark.parametrize("step", ["acquire", "renew", "release"])
def test_a_lost_reply_costs_nothing(url: str, step: str) -> None:
    with losing_replies(url, step) as (lossy, lost):
        provider = HttpLockProvider(lossy, clock=SystemClock())
        lease = provider.acquire("trips", owner="ann", ttl_s=60, wait_s=30, fence=lambda: 5)
        for act in (lease.renew, lease.release):
            try:
                act()
            except LockUnreachable:
                act()
        assert len(lost) == 1
        assert lease.released
        assert not lease.lost
        other = provider.try_acquire("trips", owner="bob", ttl_s=60, fence=5)
        assert other is not None, "no second lease of ann remained"


def test_a_waiter_reads_the_log_when_it_is_next(url: str) -> None:
    provider, reads = HttpLockProvider(url, clock=SystemClock()), []
    first = provider.acquire("trips", owner="a", ttl_s=60, wait_s=0, fence=1)

    def head() -> int:
        reads.append(provider.read("trips"))
        return 10 + len(reads)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(provider.acquire, "trips", owner="b", ttl_s=60, wait_s=60, fence=head)
        first.release()
        assert waiting.result(300).token == 10 + len(reads)


def test_one_who_gives_up_is_out_of_the_way(url: str) -> None:
    provider = HttpLockProvider(url, clock=SystemClock())

    def broken_log() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        provider.acquire("trips", owner="a", ttl_s=60, wait_s=5, fence=broken_log)
    assert provider.try_acquire("trips", owner="b", ttl_s=60) is not None


def test_a_service_that_does_not_answer_is_unreachable_until_the_wait_ends() -> None:
    provider = HttpLockProvider("http://127.0.0.1:9", clock=ManualClock())
    with pytest.raises(LockUnreachable, match=r"127\.0\.0\.1:9"):
        provider.acquire("trips", owner="a", ttl_s=60, wait_s=3)


def test_another_server_is_named(tmp_path: Path) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(LockUnreachable, match="lease API"):
            HttpLockProvider(f"http://127.0.0.1:{server.server_address[1]}", clock=SystemClock()).read("trips")
    finally:
        server.shutdown()
        server.server_close()


def test_the_token_comes_from_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_service(f"memory:{tmp_path}", SystemClock(), tmp_path, token=TOKEN) as url:
        provider = HttpLockProvider(url, clock=SystemClock())
        with pytest.raises(LockAccessDenied, match="401"):
            provider.read("trips")
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
        assert provider.read("trips") is None
        monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
        with pytest.raises(LockAccessDenied, match=TOKEN_FILE_VARIABLE):
            provider.read("trips")
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        assert provider.read("trips") is None


@pytest.mark.parametrize(
    "wrong", ["http:", "http://", "https://host:x", "http://user:secret@host", "http://host/?a=b", "http://host:0"]
)
def test_wrong_addresses_are_refused_without_showing_them(wrong: str) -> None:
    for check in (check_lock_url, lambda url: open_lock_provider(url, clock=SystemClock())):
        with pytest.raises(InvalidOption) as caught:
            check(wrong)
        assert "secret" not in str(caught.value)


def test_writers_of_a_table_queue_at_the_service(url: str, tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.string(), "n": pa.int64()})
    path = tmp_path / "tables" / "trips"
    table = tideline.create(path, schema=schema, key="id", locks=url)

    def write(number: int) -> None:
        tideline.open(path, locks=url).upsert(pa.table({"id": [f"k{number}"], "n": [number]}, schema))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    assert sorted(table.read()["id"].to_pylist()) == [f"k{number}" for number in range(8)]
    provider = HttpLockProvider(url, clock=SystemClock())
    name = lock_name(Table.open(str(path)).uid)
    assert provider.read(name) is None
    with pytest.raises(StaleFence) as caught:
        provider.acquire(name, owner="old", ttl_s=5, wait_s=0, fence=1)
    assert caught.value.greatest > 8, "the last commits were made under leases of the service"
