"""An action of the table: its instant and its current state."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.hudi.instant import Action, Named, State
from tideline_table.log.sharing import HUDI_WRITER

COMPACT = "COMPACT"
LOG_COMPACT = "LOG_COMPACT"


PENDING = (State.REQUESTED, State.INFLIGHT)
"""The states of an action that has not ended."""


@dataclass(frozen=True, slots=True)
class ActionRecord(Named):
    """One instant of the table, as the table log records it."""

    instant: str
    action: Action
    state: State
    operation: str
    sequence: int
    """Sequence of the latest transition. For a completed action this is its place in the completion order."""
    started_sequence: int
    writer_id: str
    since: str = ""
    """When the latest transition was recorded (ISO 8601, UTC)."""
    fenced_by: str = ""
    """Instant of the rollback or restore that undoes this action; empty when there is none."""
    completion: str = ""
    """Completion time as an instant, as the timeline names it. In layout 1, which has none: empty in a table with a log, otherwise
    the instant."""

    @property
    def is_pending(self) -> bool:
        """Whether the action is requested or inflight."""
        return self.state in PENDING

    @property
    def is_by_hudi(self) -> bool:
        """Whether Apache Hudi made the action: it was found on the timeline, not appended by Tideline."""
        return self.writer_id == HUDI_WRITER
