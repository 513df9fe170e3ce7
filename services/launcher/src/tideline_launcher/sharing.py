"""Which plans share an application: pure functions.

Plans share one because Spark takes longer to start than a small plan to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tideline_launcher.application import PlanKey
from tideline_launcher.settings import SharingSettings


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that may share an application: the driver alone runs it, and no driver died with an earlier attempt at it."""

    key: PlanKey
    input_bytes: int
    waiting_since_s: float
    """Monotonic time at which the launcher first saw the plan."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Plans for one application, oldest first."""

    keys: tuple[PlanKey, ...]
    not_before_s: float
    """Monotonic time until which the batch waits for more plans. In the past for a full batch and for one that has waited long
    enough."""


def batches(candidates: Sequence[Candidate], settings: SharingSettings) -> tuple[Batch, ...]:
    """Group plans in the order given, each batch up to the maxima. Equal inputs give equal batches in every launcher.

    A plan above the maximum of bytes has a batch of its own. Only the last batch may wait for more plans.
    """
    found: list[Batch] = []
    members: list[Candidate] = []
    for candidate in candidates:
        if members and not _fits(candidate, members, settings):
            found.append(_batch(members, wait_s=0.0))
            members = []
        members.append(candidate)
    if members:
        found.append(_batch(members, wait_s=0.0 if _is_full(members, settings) else settings.max_wait_s))
    return tuple(found)


def waiting_since(keys: Sequence[PlanKey], before: Mapping[PlanKey, float], now_s: float) -> dict[PlanKey, float]:
    """Return since when the launcher has known each of these plans: the time in `before`, else `now_s`."""
    return {key: before.get(key, now_s) for key in keys}


def _fits(candidate: Candidate, members: Sequence[Candidate], settings: SharingSettings) -> bool:
    return not _is_full(members, settings) and _bytes(members) + candidate.input_bytes <= settings.max_bytes


def _is_full(members: Sequence[Candidate], settings: SharingSettings) -> bool:
    return len(members) >= settings.max_plans or _bytes(members) >= settings.max_bytes


def _bytes(members: Sequence[Candidate]) -> int:
    return sum(m.input_bytes for m in members)


def _batch(members: Sequence[Candidate], wait_s: float) -> Batch:
    return Batch(tuple(m.key for m in members), min(m.waiting_since_s for m in members) + wait_s)
