"""A thread that writes the status of HudiTable resources: only changed ones, and each resource at most once in an interval."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tideline_runtime.api_server import ApiServerDown, ApiServerRefused
from tideline_runtime.kubernetes.api import HudiTableApi
from tideline_runtime.kubernetes.resource_watch import ResourceWatch
from tideline_runtime.kubernetes.status import Status, patch
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)
_ROUND_S = 1.0


class StatusWriter:
    """Applies the fields that one service owns, in the background. A status that cannot be written delays no tick."""

    def __init__(
        self,
        api: HudiTableApi,
        watch: ResourceWatch,
        manager: str,
        owned: frozenset[str],
        clock: Clock,
        interval_s: float,
    ) -> None:
        self._api = api
        self._watch = watch
        self._manager = manager
        self._owned = owned
        self._clock = clock
        self._interval_s = interval_s
        self._backoff = Backoff(1.0, 60.0)
        self._wanted: dict[str, Status] = {}
        self._written_s: dict[str, float] = {}
        self._refusals: dict[str, str] = {}
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, name: str, status: Status) -> None:
        """Write this status of the resource `name` soon."""
        resource = self._watch.resource(name)
        if resource is None or patch(status, resource.status, self._owned, self._clock.now()) is None:
            with self._lock:
                self._wanted.pop(name, None)
            return
        with self._lock:
            if self._wanted.get(name) != status:
                self._wanted[name] = status
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hudi-table-status", daemon=True)
            self._thread.start()
        self._work.set()

    def stop(self) -> None:
        """Ask the thread to end. Returns at once; the thread does not keep the process from ending."""
        self._stopped.set()
        self._work.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._work.wait()
            try:
                self._round()
                failures = 0
            except ApiServerDown as error:
                failures += 1
                if failures == 1:
                    _log.warning("status of HudiTable resources cannot be written, trying again", reason=str(error))
                self._stopped.wait(self._backoff.pause_s(failures, 0.0))
            except Exception as error:  # noqa: BLE001 - a thread that died unseen would leave every status as it was
                failures += 1
                _log.error("writing the status of HudiTable resources failed", exc_info=error)
                self._stopped.wait(self._backoff.pause_s(failures, 0.0))
            self._stopped.wait(_ROUND_S)

    def _round(self) -> None:
        with self._lock:
            waiting = dict(self._wanted)
            if not waiting:
                self._work.clear()
                return
        now_s = self._clock.monotonic_s()
        self._written_s = {name: at_s for name, at_s in self._written_s.items() if now_s - at_s < self._interval_s}
        for name, status in waiting.items():
            if self._stopped.is_set():
                return
            if name in self._written_s:
                continue
            self._write(name, status)
            self._written_s[name] = now_s
            with self._lock:
                if self._wanted.get(name) is status:
                    del self._wanted[name]

    def _write(self, name: str, status: Mapping[str, Any]) -> None:
        resource = self._watch.resource(name)
        body = patch(status, resource.status, self._owned, self._clock.now()) if resource is not None else None
        if resource is None or body is None:
            return
        try:
            item = self._api.apply_status(name, body, self._manager)
        except ApiServerRefused as error:
            self._refused(name, error)
            return
        self._refusals.pop(name, None)
        if item is not None:
            self._watch.put(item)

    def _refused(self, name: str, error: TidelineError) -> None:
        if self._refusals.get(name) != str(error):
            self._refusals[name] = str(error)
            _log.error("status of a HudiTable resource was refused", resource=name, reason=str(error))
