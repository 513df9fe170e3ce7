"""Budgets of policies beside what is used of them: bytes rewritten in 24 hours, and pending plans."""

from __future__ import annotations

from typing import Any

from tideline_console.model import SERVICE_LIST, ReadModel, Row
from tideline_console.policies import MOST_CHECKED, Matches
from tideline_console.shared import Recent
from tideline_runtime.policy import Policies
from tideline_table.action import REWRITES

KEPT_S = 5.0
"""Age that the budgets may have, because many viewers ask for the page."""
LISTED = 5
_REWRITES = ", ".join(f"'{service}'" for service in sorted(REWRITES))
# The index holds the steps for which the second and third condition are true; the query has to repeat them to use it.
_REWRITTEN = (
    f"SELECT uid, sum(bytes_added) AS bytes FROM steps INDEXED BY steps_of_services WHERE time_s > ? "  # noqa: S608 - own text
    f"AND to_state IN ('completed', 'rolledback') AND action IN ({SERVICE_LIST}) "
    f"AND to_state = 'completed' AND action IN ({_REWRITES}) GROUP BY uid"
)
_PLANS = (
    "SELECT count(*) AS n FROM parts WHERE part = 'pending' "  # noqa: S608 - own text
    f"AND json_extract(document, '$.service') IN ({_REWRITES})"
)


class Budgets:
    """What is used of budgets, at most `KEPT_S` old. Thread-safe."""

    def __init__(self, model: ReadModel, matches: Matches) -> None:
        self._model, self._matches, self._kept = model, matches, Recent[tuple[Policies, dict[str, Any]]](1)

    def of(self, policies: Policies, now_s: float) -> dict[str, Any]:
        """Return `fleet`, the bounds of the fleet with `used` and `bound`, and `tables`, those with the largest part used first."""
        # With the policies, so that no others get their id.
        used = lambda: (policies, _used(self._model, policies, self._matches, now_s))  # noqa: E731
        return self._kept.of("", used, id(policies), now_s, KEPT_S)[1]


def _used(model: ReadModel, policies: Policies, matches: Matches, now_s: float) -> dict[str, Any]:
    bound, plans = policies.fleet.bytes_per_day, policies.fleet.pending_plans
    fleet: list[Row] = [] if plans is None else [{"unit": "plans", "used": model.query(_PLANS)[0]["n"], "bound": plans}]
    has_own = any("budget.bytes_per_day" in fields for fields in (policies.defaults, *(rule.fields for rule in policies.rules)))
    if bound is None and not has_own:
        return {"fleet": fleet, "tables": [], "total": 0}
    rewritten = {row["uid"]: row["bytes"] for row in model.query(_REWRITTEN, now_s - 86_400)}
    rows = model.query("SELECT key, name, folder, base_path, uid, reserved_bytes FROM tables LIMIT ?", MOST_CHECKED)
    for row in rows:
        row["used"] = rewritten.get(row["uid"], 0) + row["reserved_bytes"]
    if bound is not None:
        fleet.insert(0, {"unit": "bytes", "used": sum(row["used"] for row in rows), "bound": bound})
    own = []
    for row, (_, policy, _) in zip(rows, matches.of(policies, rows), strict=True) if has_own else ():
        if policy is not None and policy.bytes_per_day is not None:
            origin = str(policy.given["budget.bytes_per_day"].origin)
            own.append({**row, "unit": "bytes", "bound": policy.bytes_per_day, "origin": origin})
    own.sort(key=lambda row: (-row["used"] / row["bound"] if row["bound"] else float("-inf"), -row["used"], row["base_path"]))
    return {"fleet": fleet, "tables": own[:LISTED], "total": len(own)}
