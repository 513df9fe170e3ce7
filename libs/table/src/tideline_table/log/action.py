"""An action of the table: its instant and its current state."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.log.sharing import HUDI_WRITER

CLUSTER = "CLUSTER"
COMPACT = "COMPACT"
LOG_COMPACT = "LOG_COMPACT"


PENDING = (State.REQUESTED, State.INFLIGHT)
"""The states of an action that has not ended."""


class Named:
    """What names an instant and says its operation: an action, an entry or a draft of the table log."""

    __slots__ = ()
    instant: str
    action: Action
    operation: str

    @property
    def is_clustering(self) -> bool:
        """Whether the action is a clustering: a replace commit with a plan."""
        return self.action is Action.REPLACE_COMMIT and self.operation == CLUSTER

    def at(self, state: State) -> Instant:
        """Return the instant in a state."""
        return Instant(self.instant, self.action, state, self.is_clustering)


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
    """Completion time as an instant, as the timeline of a Hudi-written table names it: in layout 1, which has none, the instant."""

    @property
    def is_pending(self) -> bool:
        """Whether the action is requested or inflight."""
        return self.state in PENDING

    @property
    def is_by_hudi(self) -> bool:
        """Whether Apache Hudi made the action: it was found on the timeline, not appended by Tideline."""
        return self.writer_id == HUDI_WRITER
