"""An action of the table: its instant, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.sharing import PEER_WRITER

CLUSTER = "CLUSTER"
COMPACT = "COMPACT"
LOG_COMPACT = "LOG_COMPACT"


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One instant of the table as far as the log tells."""

    instant: str
    action: Action
    state: State
    operation: str
    sequence: int
    """Of its latest transition; for a completed action the completion order."""
    started_sequence: int
    writer_id: str
    since: str = ""
    """When its latest transition was recorded (ISO 8601, UTC)."""
    fenced_by: str = ""
    """The rollback that was requested for it."""

    @property
    def is_pending(self) -> bool:
        """Neither completed nor rolled back."""
        return self.state in (State.REQUESTED, State.INFLIGHT)

    @property
    def is_peers(self) -> bool:
        """Found on the timeline of a shared table: Apache Hudi made it."""
        return self.writer_id == PEER_WRITER

    @property
    def is_clustering(self) -> bool:
        """A replace commit with a plan."""
        return self.action is Action.REPLACE_COMMIT and self.operation == CLUSTER
