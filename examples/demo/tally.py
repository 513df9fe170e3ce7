"""The state of the demo, from the progress reports of writers and from the tables."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from examples.demo.protocol import Progress

from tideline_table.hudi import Action, State
from tideline_table.table import Table, TableSummary, summarise


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of the live view."""

    name: str
    summary: TableSummary
    conflicts: int
    pending_plans: int
    clusterings: int
    cleans: int
    rollbacks: int


@dataclass(slots=True)
class Tally:
    """The last progress report by writer, and the number of conflicts by table. Thread-safe."""

    progress: dict[str, Progress] = field(default_factory=dict)
    conflicts: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, progress: Progress) -> None:
        """Add a writer's report."""
        with self._lock:
            self.progress[progress.writer] = progress
            self.conflicts[progress.table] = self.conflicts.get(progress.table, 0) + progress.conflicts

    def batches_done(self) -> int:
        """Return the number of batches that all writers together have committed."""
        with self._lock:
            return sum(p.batch for p in self.progress.values())

    def row(self, name: str, table: Table) -> TableRow:
        """Return the current state of a table as a row of the live view."""
        state = table.refresh()
        summary = summarise(table)
        return TableRow(
            name=name,
            summary=summary,
            conflicts=self.conflicts.get(name, 0),
            pending_plans=len(state.pending_clusterings()),
            clusterings=sum(1 for a in list(state.actions.values()) if a.is_clustering and a.state is State.COMPLETED),
            cleans=summary.actions.get(f"{Action.CLEAN} {State.COMPLETED}", 0),
            rollbacks=summary.actions.get(f"{Action.ROLLBACK} {State.COMPLETED}", 0),
        )
