"""Which demands of a fleet are served first, and which wait. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from tideline_runtime.planning.demand import Demand, Held, HeldBy
from tideline_runtime.policy import Fleet
from tideline_table.action import EARLY

FILE_BYTES = 4 << 20
"""Cost of opening one file, in bytes that a reader could read instead. Spark assumes the same (spark.sql.files.openCostInBytes)."""
UNSORTED_GAIN = 0.1
"""Part of unsorted bytes that readers with a filter skip once the bytes are sorted."""
AGING_S = 3600.0
"""Waiting time after which the score of a demand is doubled; after twice this time it is tripled, and so on. So every table is
served in the end."""
POINTS_PER_DOUBLING = 10
"""Points of priority that let a demand count twice."""
OBJECTIVE_WEIGHT = 4.0
"""Weight of the used-up part of an objective (`Demand.pressure`), from `EARLY` on."""

Shrink = Callable[[Demand, int], Demand | Held]
"""Takes a demand and a number of bytes. Returns the demand for a plan of at most so many bytes, or `Held` if no plan is that
small."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome for a demand: it is served (`held` is None), perhaps made smaller, or it waits."""

    demand: Demand
    score: float
    held: Held | None = None


def score(demand: Demand, now: datetime) -> float:
    """Return the benefit per byte rewritten, weighted by priority, waiting time and objectives.

    The highest score is served first.
    """
    benefit = demand.files_saved * FILE_BYTES + demand.log_bytes + UNSORTED_GAIN * demand.unsorted_bytes
    waited_s = max(0.0, (now - demand.since).total_seconds()) if demand.since is not None else 0.0
    weight = math.pow(2.0, (demand.priority - 50) / POINTS_PER_DOUBLING)
    urgency = 1.0 + OBJECTIVE_WEIGHT * min(demand.pressure, 100.0) if demand.pressure >= EARLY else 1.0
    return weight * (benefit / max(demand.cost_bytes, FILE_BYTES)) * (1.0 + waited_s / AGING_S) * urgency


def arbitrate(
    demands: Iterable[Demand],
    fleet: Fleet,
    spent_bytes: int,
    pending_plans: int,
    now: datetime,
    shrink: Shrink,
    frees_at: datetime | None = None,
) -> list[Choice]:
    """Return the outcome for each demand, the highest score first.

    `spent_bytes`: bytes rewritten in the last day, and bytes that pending plans read. If a demand waits for the budget of the
    fleet, all demands after it wait, too, so that small demands do not use up the bytes that a large one waits for. A demand
    whose smallest plan exceeds the whole budget holds no other demand back. `frees_at`: when the oldest of the rewrites is a
    day old.
    """
    left = None if fleet.bytes_per_day is None else max(0, fleet.bytes_per_day - spent_bytes)
    outcome: list[Choice] = []
    waits_for_budget = False
    ranked = sorted(((score(d, now), d) for d in demands), key=lambda own: (-own[0], own[1].base_path, own[1].service))
    for points, demand in ranked:
        if fleet.pending_plans is not None and pending_plans >= fleet.pending_plans:
            held = Held(HeldBy.FLEET_PLANS, f"{pending_plans} plans of the fleet are pending, of {fleet.pending_plans} allowed")
            outcome.append(Choice(demand, points, held))
            continue
        if left is None:
            outcome.append(Choice(demand, points))
            pending_plans += 1
            continue
        assert fleet.bytes_per_day is not None
        fitting = None if waits_for_budget else _fitting(demand, left, shrink)
        if fitting is None:
            why = (
                f"{left} of {fleet.bytes_per_day} bytes of the fleet's budget are left in 24 hours; the plan reads "
                f"{demand.cost_bytes}"
            )
            outcome.append(Choice(demand, points, Held(HeldBy.FLEET_BUDGET, why, frees_at)))
            waits_for_budget = waits_for_budget or isinstance(_fitting(demand, fleet.bytes_per_day, shrink), Demand)
            continue
        outcome.append(Choice(fitting, points))
        left -= fitting.cost_bytes
        pending_plans += 1
    return outcome


def _fitting(demand: Demand, max_bytes: int, shrink: Shrink) -> Demand | None:
    found = shrink(demand, max_bytes) if max_bytes else None
    return found if isinstance(found, Demand) and found.cost_bytes <= max_bytes else None
