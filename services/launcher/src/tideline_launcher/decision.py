"""What the launcher does next: a pure function of pending plans, running applications and past attempts."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


class Outcome(enum.StrEnum):
    """How an application ended."""

    SUCCEEDED = "succeeded"
    YIELDED = "yielded"
    SUPERSEDED = "superseded"
    FAILED = "failed"


CLUSTERING = "clustering"
COMPACTION = "compaction"
EXIT_YIELDED = 3
EXIT_SUPERSEDED = 4


def outcome_of(exit_code: int) -> Outcome:
    """The meaning of a table-service application's exit code."""
    known = {0: Outcome.SUCCEEDED, EXIT_YIELDED: Outcome.YIELDED, EXIT_SUPERSEDED: Outcome.SUPERSEDED}
    return known.get(exit_code, Outcome.FAILED)


@dataclass(frozen=True, slots=True, order=True)
class PlanKey:
    """A plan of a table."""

    instant: str
    table_uid: str


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A plan that is not completed. `is_driven` while an application's heartbeat is fresh."""

    key: PlanKey
    base_path: str
    table_name: str
    is_driven: bool
    service: str = CLUSTERING


@dataclass(frozen=True, slots=True)
class Decision:
    """Plans to launch now and plans to give up."""

    launch: tuple[PendingPlan, ...]
    give_up: tuple[PendingPlan, ...]


def decide(
    plans: Sequence[PendingPlan],
    running: Collection[PlanKey],
    failures: Mapping[PlanKey, int],
    *,
    max_applications: int,
    max_attempts: int,
) -> Decision:
    """Oldest plans first, one application per plan, at most `max_applications`.

    A plan that somebody drives is left alone; one that failed `max_attempts` times is given up.
    """
    idle = [p for p in sorted(plans, key=lambda p: p.key) if p.key not in running and not p.is_driven]
    give_up = tuple(p for p in idle if failures.get(p.key, 0) >= max_attempts)
    candidates = [p for p in idle if p not in give_up]
    free = max(0, max_applications - len(running))
    return Decision(tuple(candidates[:free]), give_up)


def application_name(table_name: str, instant: str, attempt: int) -> str:
    """`table-instant-attempt`: the same for every launcher that comes to the same decision."""
    safe = "".join(c if c.isalnum() else "-" for c in table_name.lower()).strip("-")
    return f"{safe}-{instant}-{attempt}"
