"""What an application that runs several plans reports of each: in a small file, and as marks in its log. It imports no Spark.

The file outlives the application. The launcher reads from it how each plan ended, and which plan ran when the application died. On
Kubernetes it is the container's termination message, of which the kubelet keeps the last 4096 bytes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tideline_table.errors import Recovery

MAX_PLANS = 64
"""Most plans of one application: their lines fit into a termination message."""
PLANS_BEGIN = "plans begin"
"""Event in the log before the first plan."""
PLAN_BEGINS, PLAN_ENDED = "plan begins", "plan ended"
"""Events in the log before the first and after the last line of a plan. The fields `table` and `instant` say which."""
_BEGIN, _END, _NONE = "begin", "end", "-"
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """How one plan ended: an `ExitCode`, and what can be done about its error, None if it had none."""

    exit_code: int
    recovery: Recovery | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The plans that an application began, and the outcomes of those that it ended, by their numbers."""

    begun: frozenset[int] = frozenset()
    ended: Mapping[int, PlanOutcome] = field(default_factory=dict)


class OutcomeFile:
    """Appends to the file, one short line per call, so that a kill leaves whole lines. Without a path it does nothing.

    A line that cannot be written is only logged, because the table has the result of the plan anyhow.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def begin(self, number: int) -> None:
        """Record that the plan begins."""
        self._append(f"{_BEGIN} {number}\n")

    def end(self, number: int, outcome: PlanOutcome) -> None:
        """Record how the plan ended."""
        self._append(f"{_END} {number} {int(outcome.exit_code)} {outcome.recovery.value if outcome.recovery else _NONE}\n")

    def _append(self, line: str) -> None:
        if self._path is None:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        except OSError as error:
            _LOGGER.warning("outcome of a plan not recorded", extra={"file": str(self._path), "reason": str(error)})


def read_outcomes(text: str) -> Outcomes:
    """Return what the lines of the file say; other lines and broken ones are ignored."""
    begun: set[int] = set()
    ended: dict[int, PlanOutcome] = {}
    recoveries = {r.value: r for r in Recovery} | {_NONE: None}
    for line in text.splitlines():
        match line.split(" "):
            case [word, number] if word == _BEGIN and number.isdecimal():
                begun.add(int(number))
            case [word, number, code, recovery] if (
                word == _END and number.isdecimal() and code.isdecimal() and recovery in recoveries
            ):
                ended[int(number)] = PlanOutcome(int(code), recoveries[recovery])
    return Outcomes(frozenset(begun | ended.keys()), ended)
