"""Whether the locks of a `locks` setting answer: asked for findings, beside the work that needs the locks."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from tideline_locks.location import SERVICE_SCHEMES, open_lock_provider
from tideline_locks.port import LockProvider, OnUnreachable
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

PROBE_EVERY_S = 10.0
"""How long an answer is kept. A server that answers nothing costs a few seconds of waiting each time."""
_REDIS = ("redis", "rediss")
_NAME = "probe"
"""A lock that no table has: only whether the server answers matters."""


class LockProbe:
    """Asks the server of a lock URL, at most every `PROBE_EVERY_S`, however many tables have their locks there. Thread-safe.

    Locks without a server (`storage:`, `memory:`) need no probe: whether a table's folder answers shows when the table is opened.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._guard = threading.Lock()
        self._provider: LockProvider | None = None
        self._asked_s: float | None = None
        self._failure = ""

    @property
    def place(self) -> str:
        """The server in words that a finding may show: the URL without user and password."""
        return shown_url(self._url)

    def failure(self) -> str:
        """Return why the locks cannot be used, an empty text if they answered."""
        if self._url.partition(":")[0] not in (*_REDIS, *SERVICE_SCHEMES):
            return ""
        with self._guard:
            now_s = self._clock.monotonic_s()
            if self._asked_s is None or now_s - self._asked_s >= PROBE_EVERY_S:
                self._failure = self._ask()
                self._asked_s = self._clock.monotonic_s()
            return self._failure

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        with self._guard:
            provider, self._provider = self._provider, None
        if provider is not None:
            provider.close()

    def _ask(self) -> str:
        try:
            if self._provider is None:
                on_unreachable = OnUnreachable.FAIL if self._url.partition(":")[0] in _REDIS else OnUnreachable.WAIT
                self._provider = open_lock_provider(self._url, clock=self._clock, on_unreachable=on_unreachable)
            self._provider.read(_NAME)
        except TidelineError as error:
            return str(error)
        return ""


def shown_url(url: str) -> str:
    """Return a lock URL without user, password and query."""
    split = urlsplit(url)
    host = f"[{split.hostname}]" if split.hostname and ":" in split.hostname else split.hostname or ""
    port = f":{split.port}" if split.port else ""
    return f"{split.scheme}://{host}{port}{split.path}"
