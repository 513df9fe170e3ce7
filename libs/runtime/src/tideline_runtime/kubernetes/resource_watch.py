"""The HudiTable resources of a namespace, kept up to date by a thread that lists and watches them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tideline_runtime.api_server import Item, WatchExpired
from tideline_runtime.api_watch import WatchThread
from tideline_runtime.errors import DependencyDown
from tideline_runtime.kubernetes.api import HudiTableApi
from tideline_runtime.kubernetes.resource import Resource, Selection
from tideline_runtime.logging import get_logger
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)


class ResourceWatch:
    """Lists the resources, then applies the changes that a watch reports; lists again when a watch expires or fails.

    While the API server does not answer, the last known resources stay. The thread calls `changed` after every change of a
    spec, and after resources appeared or disappeared, and `failed` after every failed round.
    """

    def __init__(
        self,
        api: HudiTableApi,
        duration_s: int,
        clock: Clock,
        *,
        changed: Callable[[], None],
        failed: Callable[[], None] = lambda: None,
        max_pause_s: float = 30.0,
    ) -> None:
        self._api = api
        self._duration_s = duration_s
        self._changed = changed
        self._failed = failed
        self._watch = WatchThread("hudi-table-watch", self._watch_once, self._fail, clock, max_pause_s)
        self._resources: dict[str, Resource] = {}
        self._selection: Selection | None = None
        self._revision = 0
        self._version: str | None = None
        self._error: TidelineError | None = None
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._listed = threading.Event()

    @property
    def revision(self) -> int:
        """A number that grows with every change of a spec, and when resources appear or disappear."""
        with self._lock:
            return self._revision

    def selection(self, timeout_s: float) -> Selection:
        """Return which resource decides about each base path. The first call starts the thread.

        It then waits for the first list of resources or the first failure, at most `timeout_s`. Raises `DependencyDown` until the
        resources were listed once.
        """
        if self._watch.start():
            self._answered.wait(timeout_s)
        with self._lock:
            if self._listed.is_set():
                if self._selection is None:
                    self._selection = Selection.of(self._resources.values())
                return self._selection
            why = str(self._error) if self._error else "the API server has not answered yet"
        raise DependencyDown(
            f"HudiTable resources cannot be listed: {why}",
            remedy="install the custom resource definition, and let this service account list and watch huditables",
        )

    def resource(self, name: str) -> Resource | None:
        """Return a resource as it is known, None if there is none."""
        with self._lock:
            return self._resources.get(name)

    def resources(self) -> tuple[Resource, ...]:
        """Return all resources as they are known."""
        with self._lock:
            return tuple(self._resources.values())

    def put(self, item: Item) -> None:
        """Take over a resource from the reply to a request, because the watch reports its new status later."""
        shown = Resource.of(item)
        with self._lock:
            if (known := self._resources.get(shown.name)) is not None and known.uid == shown.uid:
                self._resources[shown.name] = shown

    def stop(self) -> None:
        """See `WatchThread.stop`."""
        self._watch.stop()

    def _watch_once(self) -> None:
        try:
            self._round()
        except WatchExpired:
            self._version = None
            raise
        finally:
            self._answered.set()

    def _round(self) -> None:
        if self._version is None:
            listed = self._api.list()
            self._replace({r.name: r for r in map(Resource.of, listed.items)})
            self._version = listed.resource_version
            self._listed.set()
            self._answered.set()
            self._recovered()
        for kind, item in self._api.watch(self._version, self._duration_s):
            if self._watch.is_stopped:
                return
            self._version = str(item["metadata"]["resourceVersion"])
            if kind != "BOOKMARK":
                self._apply(kind, Resource.of(item))

    def _apply(self, kind: str, resource: Resource) -> None:
        with self._lock:
            before = self._resources.get(resource.name)
            if kind == "DELETED":
                self._resources.pop(resource.name, None)
            else:
                self._resources[resource.name] = resource
            is_changed = kind == "DELETED" or before is None or _asked(before) != _asked(resource)
        if is_changed:
            self._note_change()

    def _replace(self, resources: dict[str, Resource]) -> None:
        with self._lock:
            before, self._resources = self._resources, resources
        if {name: _asked(r) for name, r in resources.items()} != {name: _asked(r) for name, r in before.items()}:
            self._note_change()

    def _note_change(self) -> None:
        with self._lock:
            # Computed when a caller asks: many changes can arrive between two ticks.
            self._selection = None
            self._revision += 1
        self._changed()

    def _fail(self, error: TidelineError) -> None:
        self._version = None
        with self._lock:
            is_new, self._error = self._error is None, error
        if is_new:
            _log.warning("HudiTable resources cannot be read, those that are known stay", reason=str(error))
        self._failed()

    def _recovered(self) -> None:
        with self._lock:
            was_failing, self._error = self._error is not None, None
        if was_failing:
            _log.info("HudiTable resources are read again")


def _asked(resource: Resource) -> tuple[str, int]:
    # The generation grows with the spec only: a changed status asks for nothing.
    return resource.uid, resource.generation
