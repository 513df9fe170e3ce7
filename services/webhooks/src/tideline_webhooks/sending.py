"""One attempt at a delivery: one request, bounded in time and size, without redirects."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, InvalidHeader

from tideline_webhooks.messages import Message
from tideline_webhooks.subscriptions import Subscription

MAX_ANSWER_BYTES = 64 * 1024
"""A longer answer is not read: its connection is closed."""
HEAD_TIMEOUTS = 2.0
"""The head of an answer is complete after so many times `timeout_s`, however short its pauses are."""
MAX_RETRY_AFTER_S = 3600.0
_RETRIED = frozenset({408, 425, 429})
"""Statuses of 4xx that another attempt may cure."""


class Outcome(Enum):
    """How an attempt ended."""

    TAKEN = "taken"
    RETRIED = "retried"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The end of an attempt. `reason` names no URL: its path may be a secret."""

    outcome: Outcome
    reason: str = ""
    retry_after_s: float = 0.0


class _Bounded(HTTPConnection):
    """Ends when the head of an answer is not complete in time: a timeout of the socket begins anew with each byte."""

    def getresponse(self) -> Any:
        """See `HTTPConnection`. Raises as for a lost connection."""
        assert self.sock is not None, "the request is sent"
        cut = threading.Timer(HEAD_TIMEOUTS * float(self.timeout or 0.0), _cut, [self.sock])
        cut.daemon = True
        cut.start()
        try:
            return super().getresponse()
        finally:
            cut.cancel()


class _BoundedTls(_Bounded, HTTPSConnection):
    """See `_Bounded`."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Bounded


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _BoundedTls


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Of the plain socket below TLS: the thread that reads is in the middle of TLS.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class Sender:
    """Sends messages of one subscription. Thread-safe."""

    def __init__(self, subscription: Subscription, connections: int) -> None:
        self._subscription = subscription
        self._pool = urllib3.PoolManager(
            num_pools=1, maxsize=connections, block=False, retries=False, ca_certs=subscription.ca_file or None
        )
        self._pool.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        self._timeout = urllib3.Timeout(connect=min(10.0, subscription.timeout_s), read=subscription.timeout_s)

    def send(self, message: Message, seconds: int) -> Attempt:
        """Send `message` at the time `seconds` of the Unix epoch."""
        try:
            answer = self._pool.request(
                "POST",
                self._subscription.url,
                body=message.body,
                headers=message.headers(self._subscription, seconds),
                timeout=self._timeout,
                redirect=False,
                preload_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            # The texts of these errors hold the path.
            return Attempt(Outcome.RETRIED, f"no answer ({type(error).__name__})")
        try:
            return _judged(answer)
        finally:
            self._finish(answer)

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()

    def _finish(self, answer: urllib3.BaseHTTPResponse) -> None:
        """Read the rest of a short answer, so that its connection is used again; else close the connection."""
        left, until_s = MAX_ANSWER_BYTES, time.monotonic() + self._subscription.timeout_s
        try:
            while left > 0 and time.monotonic() < until_s:
                data = answer.read1(min(left, 16 * 1024), decode_content=False)
                if not data:
                    answer.release_conn()
                    return
                left -= len(data)
        except (HTTPError, OSError, ValueError):
            pass
        answer.close()


def _judged(answer: urllib3.BaseHTTPResponse) -> Attempt:
    status = answer.status
    if 200 <= status < 300:
        return Attempt(Outcome.TAKEN)
    if status >= 500 or status in _RETRIED or status < 200:
        return Attempt(Outcome.RETRIED, f"status {status}", _retry_after_s(answer.headers.get("retry-after")))
    return Attempt(Outcome.REFUSED, f"status {status}" + (", a redirect, which is not followed" if status < 400 else ""))


def _retry_after_s(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        return min(MAX_RETRY_AFTER_S, max(0.0, urllib3.Retry().parse_retry_after(text)))
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0
