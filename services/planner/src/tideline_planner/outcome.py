"""The planner's last word about each service of each table: kept to see what changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tideline_planner.metrics import CHANGES, VERDICTS
from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import Metrics
from tideline_runtime.planning import Held, HeldBy
from tideline_table.action import TableService

_log = get_logger(__name__)
PLANNED = "planned"
_QUIET = (HeldBy.NOT_DUE,)


@dataclass(slots=True)
class Verdicts:
    """The verdict of each (uid, service). A change is counted and logged; `show` sets the gauges."""

    metrics: Metrics
    _known: dict[tuple[str, TableService], str] = field(default_factory=dict)

    def planned(self, uid: str, service: TableService) -> None:
        """Record that a plan was published."""
        self._record(uid, service, PLANNED)

    def held(self, uid: str, base_path: str, service: TableService, held: Held) -> None:
        """Record why no plan was published."""
        if self._record(uid, service, held.by.value):
            log = _log.debug if held.by in _QUIET else _log.info
            until = None if held.until is None else held.until.isoformat()
            log("held", table=uid, base_path=base_path, service=service.value, by=held.by.value, reason=held.why, until=until)

    def show(self, uids: set[str]) -> None:
        """Forget other tables, and show how many tables have each verdict."""
        self._known = {key: verdict for key, verdict in self._known.items() if key[0] in uids}
        found = Counter((service, verdict) for (_, service), verdict in self._known.items())
        for service in (TableService.CLUSTERING, TableService.COMPACTION):
            for verdict in (PLANNED, *(by.value for by in HeldBy)):
                self.metrics.set(VERDICTS, found[service, verdict], service=service.value, verdict=verdict)

    def _record(self, uid: str, service: TableService, verdict: str) -> bool:
        changed = self._known.get((uid, service)) != verdict
        self._known[uid, service] = verdict
        if changed:
            self.metrics.increment(CHANGES, service=service.value, verdict=verdict)
        return changed
