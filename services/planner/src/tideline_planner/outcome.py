"""The planner's last verdict about each service of each table, kept to find changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tideline_events import VerdictEvent
from tideline_planner.metrics import CHANGES, VERDICTS
from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import Metrics
from tideline_runtime.planning import Held, HeldBy
from tideline_runtime.planning.examination import PLANNED as SERVICES
from tideline_table.action import TableService
from tideline_table.clock import Clock

_log = get_logger(__name__)
PLANNED = "planned"
_QUIET = (HeldBy.NOT_DUE,)


@dataclass(slots=True)
class Verdicts:
    """The verdict of each (uid, service). A change is counted, logged and published; `show` sets the gauges."""

    metrics: Metrics
    clock: Clock
    publish: Callable[[VerdictEvent], None]
    _known: dict[tuple[str, TableService], str] = field(default_factory=dict)

    def planned(self, uid: str, base_path: str, service: TableService, why: str) -> None:
        """Record that a plan was published, and what made it due."""
        self._record(uid, base_path, service, PLANNED, why)

    def held(self, uid: str, base_path: str, service: TableService, held: Held) -> None:
        """Record why no plan was published."""
        if self._record(uid, base_path, service, held.by.value, held.reason, held.until):
            log = _log.debug if held.by in _QUIET else _log.info
            until = None if held.until is None else held.until.isoformat()
            log("held", table=uid, base_path=base_path, service=service.value, by=held.by.value, reason=held.reason, until=until)

    def forget(self, uid: str, services: Iterable[TableService]) -> None:
        """Forget services that are not examined for a table any more."""
        for service in services:
            self._known.pop((uid, service), None)

    def show(self, uids: set[str]) -> None:
        """Forget other tables, and show how many tables have each verdict."""
        self._known = {key: verdict for key, verdict in self._known.items() if key[0] in uids}
        found = Counter((service, verdict) for (_, service), verdict in self._known.items())
        for service in SERVICES:
            for verdict in (PLANNED, *(by.value for by in HeldBy)):
                self.metrics.set(VERDICTS, found[service, verdict], service=service.value, verdict=verdict)

    def _record(
        self, uid: str, base_path: str, service: TableService, verdict: str, why: str, until: datetime | None = None
    ) -> bool:
        before = self._known.get((uid, service))
        self._known[uid, service] = verdict
        if before != verdict:
            self.metrics.increment(CHANGES, service=service.value, verdict=verdict)
            self.publish(VerdictEvent(uid, base_path, service.value, verdict, self.clock.now(), before, until, why or None))
        return before != verdict
