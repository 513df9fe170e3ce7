"""The driver pods of a fleet, kept up to date by a thread that lists and watches them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tideline_launcher.kubernetes.api import Pod, PodApi
from tideline_runtime.api_server import ApiServerDown, ApiServerRefused, WatchExpired
from tideline_runtime.errors import DependencyDown
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)
_SHORT_S = 1.0
"""A round of list and watch that ends sooner is followed by a pause."""


class PodWatch:
    """Lists the pods, then applies the changes that a watch reports; lists again when the watch ends, expires or fails.

    Listing again also adds changes that a watch has missed. A round that ends at once is followed by a pause of up to
    `max_pause_s`.
    """

    def __init__(self, api: PodApi, selector: str, duration_s: int, clock: Clock, max_pause_s: float = 30.0) -> None:
        self._api = api
        self._selector = selector
        self._duration_s = duration_s
        self._clock = clock
        self._backoff = Backoff(0.2, max_pause_s)
        self._pods: dict[str, Pod] = {}
        self._error: TidelineError | None = None
        self._lock = threading.Lock()
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self, wake: Callable[[], None], timeout_s: float) -> None:
        """Begin to watch, and wait for the first list, at most `timeout_s`. Safe to repeat. Raises `DependencyDown`."""
        self._wake = wake
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)
            self._thread.start()
        self._listed.wait(timeout_s)
        self.pods()

    def pods(self) -> dict[str, Pod]:
        """Return the pods by name. Raises `DependencyDown` while the API server does not list them."""
        with self._lock:
            if self._error is not None:
                raise DependencyDown(
                    f"pods cannot be listed: {self._error}",
                    remedy="check the API server and the rights of the launcher (docs/kubernetes-security.md)",
                )
            if not self._listed.is_set():
                raise DependencyDown(
                    "the API server has not listed the pods yet", remedy="the launcher asks again at its next tick"
                )
            return dict(self._pods)

    def put(self, pod: Pod) -> None:
        """Add a pod from the reply to a request, because the watch reports it later."""
        with self._lock:
            self._pods.setdefault(str(pod["metadata"]["name"]), pod)

    def stop(self) -> None:
        """Ask the thread to end. Returns at once; the thread does not keep the process from ending."""
        self._stopped.set()

    def _run(self) -> None:
        fruitless = 0
        while not self._stopped.is_set():
            begun_s = self._clock.monotonic_s()
            try:
                self._round()
            except WatchExpired as error:
                _log.info("watch of pods expired, listing again", reason=str(error))
            except (ApiServerDown, ApiServerRefused) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - a thread that died unseen would leave the pods as they were
                _log.error("watch of pods failed", exc_info=error)
                self._failed(ApiServerDown(f"{type(error).__name__}: {error}"))
            fruitless = fruitless + 1 if self._clock.monotonic_s() - begun_s < _SHORT_S else 0
            if fruitless:
                self._stopped.wait(self._backoff.pause_s(fruitless, 0.0))

    def _round(self) -> None:
        listed = self._api.list(self._selector)
        with self._lock:
            self._pods = {str(pod["metadata"]["name"]): pod for pod in listed.items}
            self._error = None
        self._listed.set()
        self._wake()
        for kind, pod in self._api.watch(self._selector, listed.resource_version, self._duration_s):
            if self._stopped.is_set():
                return
            if kind != "BOOKMARK":
                self._apply(kind, pod)
                self._wake()

    def _apply(self, kind: str, pod: Pod) -> None:
        name = str(pod["metadata"]["name"])
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(name, None)
            else:
                self._pods[name] = pod

    def _failed(self, error: TidelineError) -> None:
        with self._lock:
            is_new = self._error is None
            self._error = error
        if is_new:
            _log.warning("pods cannot be listed", reason=str(error))
        self._listed.set()
        self._wake()
