"""What a table costs: requests to storage that the services count for it, and the processor seconds of its rewrites."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tideline_cli.costs import Counted, ask_services, table_cost
from tideline_console.instants import DONE, Instant
from tideline_console.settings import ConsoleSettings
from tideline_table.action import REWRITES

KEPT_S = 60.0
"""Age that the counts may have: each answer names all tables of a service."""
PATIENCE_S = 0.2
_DAY_S = 86_400.0


class TableCosts:
    """Asks services what they count by table. Thread-safe. A page waits `PATIENCE_S`, and then shows what they said before."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._guard, self._pool = threading.Lock(), ThreadPoolExecutor(1, "costs")
        self._asked_s = float("-inf")
        self._answers: Future[Sequence[Counted]] | None = None
        self._known: Sequence[Counted] = ()

    def of(self, base_path: str, usage: Mapping[str, float], now_s: float) -> dict[str, Any] | None:
        """Return the document of `tideline status --cost` for a table, with what `usage_of` returned."""
        with self._guard:
            if not self._asked_s <= now_s < self._asked_s + KEPT_S and (self._answers is None or self._answers.done()):
                addresses = [*self._settings.service_addresses]
                self._asked_s, self._answers = now_s, self._pool.submit(ask_services, self._settings, addresses)
            answers = self._answers
        if answers is not None:
            with suppress(TimeoutError):
                self._known = answers.result(PATIENCE_S)
        return table_cost({"base_path": base_path, "usage": usage}, self._known, self._settings.prices)


def usage_of(instants: Sequence[Instant], now_s: float) -> Mapping[str, float]:
    """Return the bytes that rewrites wrote in the last day, and the seconds that they ran, each from its last start."""
    since_s, names = now_s - _DAY_S, {service.value for service in REWRITES}
    found = [one for one in instants if one.action in names and one.outcome == DONE and (one.ended_s or 0.0) > since_s]
    return {"rewritten_day_bytes": sum(one.bytes_added for one in found), "processor_day_s": sum(one.ran_s for one in found)}
