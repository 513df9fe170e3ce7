"""The result of a commit."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.hudi.write_stats import WriteStat


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction. `sequence` is its position in the completion order of the table."""

    instant: str
    sequence: int
    stats: tuple[WriteStat, ...] = ()
    attempts: int = 1
    rows_replaced: int = 0
    """The number of rows in file groups that the commit replaced without their rows, -1 if only a merge of files tells it."""

    @property
    def rows_inserted(self) -> int:
        """The number of rows with new keys."""
        return sum(s.num_inserts for s in self.stats)

    @property
    def rows_updated(self) -> int:
        """The number of rows that replaced an older version."""
        return sum(s.num_updates for s in self.stats)

    @property
    def rows_deleted(self) -> int:
        """The number of rows removed; -1 if unknown: the commit replaced file groups with log files that add or delete rows."""
        return -1 if self.rows_replaced < 0 else self.rows_replaced + sum(s.num_deletes for s in self.stats)
