"""The merge rule of a table as a value.

Which version of a record lies on top, which cells it leaves open, which rows are deletions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.merge.fold import EventKind, LogEvents, LogOutcome, fold_events
from tideline_table.merge.mode import MergeMode
from tideline_table.merge.parts import PartialUpdate


@dataclass(frozen=True, slots=True)
class DeletionMark:
    """A value of one column that marks rows as deletions."""

    field: str
    marker: str
    any_case: bool = False
    """Ignore case, as payload classes do."""

    def mask(self, rows: pa.Table) -> np.ndarray:
        """Return True for each row that is marked."""
        if self.field not in rows.column_names:
            return np.zeros(rows.num_rows, dtype=bool)
        found, marker = rows.column(self.field).cast(pa.string()), self.marker
        if self.any_case:
            found, marker = pc.utf8_lower(found), marker.lower()
        return np.asarray(pc.fill_null(pc.equal(found, marker), fill_value=False))


@dataclass(frozen=True, slots=True)
class Merging:
    """Which version of a record lies on top, which of its cells are open, and which rows are deletions."""

    mode: MergeMode = MergeMode.COMMIT_TIME
    partial: PartialUpdate | None = None
    deletion: DeletionMark | None = None
    deletions_always_win: bool = False
    """By event time, deletions win without comparing ordering values, as payload classes require."""
    forgets_deletions: bool = False
    """By event time, a deletion that won leaves nothing in a log: a later row of its key is a new one, whatever its ordering
    value. False: as Apache Hudi merges logs (docs/design/merge-on-read.md, late rows)."""
    ordering_field: str = ""
    """The ordering fields, separated by commas; the first field that differs decides."""

    @property
    def ordering_fields(self) -> tuple[str, ...]:
        """The ordering fields if they decide, else none."""
        if self.mode is not MergeMode.EVENT_TIME:
            return ()
        return tuple(name.strip() for name in self.ordering_field.split(","))

    @property
    def deletion_kind(self) -> EventKind:
        """The event kind of a deletion with an ordering value."""
        return EventKind.PURGE if self.deletions_always_win else EventKind.DELETE

    def fold(self, events: LogEvents) -> LogOutcome:
        """Return one event of a log for each key, by this rule; cells are not merged."""
        return fold_events(events, self.mode, forgets_deletions=self.forgets_deletions)
