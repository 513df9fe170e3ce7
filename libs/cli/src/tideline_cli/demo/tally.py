"""What the demo knows about its tables and writers, gathered from their own reports and from the tables themselves."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tideline_cli.demo.protocol import Progress
from tideline_table.table import Table, TableSummary, summarise
from tideline_table.timeline.instant import Action, State


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the live view."""

    name: str
    summary: TableSummary
    conflicts: int
    pending_plans: int
    clusterings: int
    cleans: int
    rollbacks: int


@dataclass(slots=True)
class Tally:
    """Progress by writer; safe to share between threads."""

    progress: dict[str, Progress] = field(default_factory=dict)
    conflicts: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, progress: Progress) -> None:
        """Take a writer's report."""
        with self._lock:
            self.progress[progress.writer] = progress
            self.conflicts[progress.table] = self.conflicts.get(progress.table, 0) + progress.conflicts
            self.commits[progress.table] = self.commits.get(progress.table, 0) + 1
            self.rows += progress.rows

    def batches_done(self) -> int:
        """Batches committed by all writers."""
        with self._lock:
            return sum(p.batch for p in self.progress.values())

    def row(self, name: str, table: Table) -> TableRow:
        """The table as it is now."""
        state = table.refresh()
        actions = list(state.actions.values())
        return TableRow(
            name=name,
            summary=summarise(table),
            conflicts=self.conflicts.get(name, 0),
            pending_plans=len(state.pending_clusterings()),
            clusterings=sum(1 for a in actions if a.is_clustering and a.state is State.COMPLETED),
            cleans=sum(1 for a in actions if a.action is Action.CLEAN and a.state is State.COMPLETED),
            rollbacks=sum(1 for a in actions if a.action is Action.ROLLBACK and a.state is State.COMPLETED),
        )
