"""The driver pods of a fleet, kept up to date by a thread that lists and watches them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tideline_launcher.kubernetes.api import Pod, PodApi
from tideline_runtime.api_watch import WatchThread
from tideline_runtime.errors import DependencyDown
from tideline_runtime.logging import get_logger
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)


class PodWatch:
    """Lists the pods, then applies the changes that a watch reports; lists again when the watch ends, expires or fails.

    Listing again also adds changes that a watch has missed. A round that ends at once is followed by a pause of up to
    `max_pause_s`.
    """

    def __init__(self, api: PodApi, selector: str, duration_s: int, clock: Clock, max_pause_s: float = 30.0) -> None:
        self._api = api
        self._selector = selector
        self._duration_s = duration_s
        self._watch = WatchThread("pod-watch", self._round, self._failed, clock, max_pause_s)
        self._pods: dict[str, Pod] = {}
        self._error: TidelineError | None = None
        self._lock = threading.Lock()
        self._listed = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def start(self, wake: Callable[[], None], timeout_s: float) -> None:
        """Begin to watch, and wait for the first list, at most `timeout_s`. Safe to repeat. Raises `DependencyDown`."""
        self._wake = wake
        self._watch.start()
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
        """See `WatchThread.stop`."""
        self._watch.stop()

    def _round(self) -> None:
        listed = self._api.list(self._selector)
        with self._lock:
            self._pods = {str(pod["metadata"]["name"]): pod for pod in listed.items}
            self._error = None
        self._listed.set()
        self._wake()
        for kind, pod in self._api.watch(self._selector, listed.resource_version, self._duration_s):
            if self._watch.is_stopped:
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
