"""A thread that lists objects of the API server and watches them, again and again, with pauses after rounds that end at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tideline_runtime.api_server import ApiServerDown, WatchExpired
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)
_SHORT_S = 1.0
"""A round that ends sooner is followed by a pause."""


class WatchThread:
    """Calls `watch_once` until `stop`: it lists the objects, if it has to, and applies what one watch reports.

    It raises `WatchExpired` if it has to list again at once. Any other error is given to `failed`.
    """

    def __init__(
        self,
        name: str,
        watch_once: Callable[[], None],
        failed: Callable[[TidelineError], None],
        clock: Clock,
        max_pause_s: float,
    ) -> None:
        self._name = name
        self._watch_once = watch_once
        self._failed = failed
        self._clock = clock
        self._backoff = Backoff(0.2, max_pause_s)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def start(self) -> bool:
        """Start the thread, and return whether this was the first call."""
        if self._thread is not None:
            return False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Ask the thread to end. Returns at once; the thread does not keep the process from ending."""
        self._stopped.set()

    def _run(self) -> None:
        fruitless = 0
        while not self._stopped.is_set():
            begun_s = self._clock.monotonic_s()
            try:
                self._watch_once()
            except WatchExpired as error:
                _log.info("watch expired, listing again", watch=self._name, reason=str(error))
            except TidelineError as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - a thread that died unseen would leave the objects as they were
                _log.error("watch failed", watch=self._name, exc_info=error)
                self._failed(ApiServerDown(f"{type(error).__name__}: {error}"))
            fruitless = fruitless + 1 if self._clock.monotonic_s() - begun_s < _SHORT_S else 0
            if fruitless:
                self._stopped.wait(self._backoff.pause_s(fruitless, 0.0))
