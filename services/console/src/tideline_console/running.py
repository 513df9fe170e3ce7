"""How far the plans are that run: read from the markers and files of their tables, by one thread for all viewers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tideline_console.follower import Follower
from tideline_console.model import ReadModel
from tideline_console.one_table import opened
from tideline_console.shared import Watch
from tideline_runtime.logging import get_logger
from tideline_table.action import RunProgress, run_progress

_log = get_logger(__name__)
KEPT_S, PATIENCE_S = 3.0, 0.2
"""Age that an answer may have, and the time that a page waits for a new one."""
MOST_RUNNING = 100
_RUNNING = (
    "SELECT t.base_path, t.key, json_extract(p.document, '$.instant') AS instant FROM parts p JOIN tables t USING (base_path) "
    "WHERE part = 'pending' AND json_extract(p.document, '$.is_running') ORDER BY ends, since_s LIMIT ?"
)
Plan = tuple[str, str]
"""Key of a table and instant of a plan."""


class RunningPlans:
    """The progress of the plans that run. Thread-safe; answers are kept for `KEPT_S`."""

    def __init__(self, model: ReadModel, follower: Follower) -> None:
        self._model, self._follower = model, follower
        self._watch = Watch(self._asked, dict[Plan, RunProgress](), KEPT_S)
        self._sizes: dict[Plan, dict[str, int]] = {}

    def of(self, now_s: float) -> Mapping[Plan, RunProgress]:
        """Return how far each running plan is, as far as tables answered; without those that do not say it."""
        return self._watch.of(now_s, PATIENCE_S)

    def _asked(self) -> dict[Plan, RunProgress]:
        by_table = defaultdict[str, list[Plan]](list)
        for row in self._model.query(_RUNNING, MOST_RUNNING):
            by_table[row["base_path"]].append((row["key"], row["instant"]))
        plans = {plan for found in by_table.values() for plan in found}
        self._sizes = {plan: self._sizes.get(plan, {}) for plan in plans}
        with ThreadPoolExecutor(8, "progress") as pool:
            found = [one for part in pool.map(lambda named: self._of_table(*named), by_table.items()) for one in part]
        return dict(found)

    def _of_table(self, base_path: str, plans: list[Plan]) -> list[tuple[Plan, RunProgress]]:
        table, _ = opened({"base_path": base_path}, self._follower)
        try:
            found = [(plan, run_progress(table, plan[1], self._sizes[plan])) for plan in plans] if table is not None else []
        except Exception as error:  # noqa: BLE001 - a damaged plan must not take the page of all work away
            _log.warning("progress of a table cannot be read", base_path=base_path, exc_info=error)
            return []
        return [(plan, progress) for plan, progress in found if progress is not None]
