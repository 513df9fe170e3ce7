"""What a resize of buckets leaves as it is: partitions, each with the reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tideline_table.config import BUCKET_MOST
from tideline_table.coordination.committed import Committed
from tideline_table.table.facade import Table


class SkipReason(enum.StrEnum):
    """Why a resize left the buckets of a partition as they are."""

    PLAN_PENDING = "plan_pending"
    """A pending compaction or clustering names file groups of it; the sizes of its buckets were not looked at."""
    MOST_BUCKETS = "most_buckets"
    """With consistent hashing: buckets are too large, and the partition has as many as it may have."""
    FITS = "fits"
    """With consistent hashing: there is nothing to split or merge."""
    SAME_NUMBER = "same_number"
    """It has the number of buckets that was asked for."""


@dataclass(frozen=True, slots=True)
class SkippedPartition:
    """A partition with files that a resize of buckets did not change."""

    partition: str
    """The partition path, empty in a table without partitions."""
    reason: SkipReason
    instants: tuple[str, ...] = ()
    """The pending plans that name it."""
    too_large: int = 0
    """The number of its buckets that are too large and were not split."""

    @property
    def text(self) -> str:
        """One line for users."""
        match self.reason:
            case SkipReason.PLAN_PENDING:
                return f"a compaction or clustering is pending there: {', '.join(self.instants)}"
            case SkipReason.MOST_BUCKETS:
                return f"{self.too_large} bucket(s) are too large, and {BUCKET_MOST.key} allows no more buckets"
            case SkipReason.FITS:
                return "all buckets have a fitting size"
            case SkipReason.SAME_NUMBER:
                return "it has this number of buckets"


def partitions_of_same_number(table: Table, done: Committed | None) -> tuple[SkippedPartition, ...]:
    """Return the partitions that a resize to a number of buckets, which committed `done`, did not have to change."""
    moved = {stat.partition_path for stat in done.stats} if done is not None else set[str]()
    visible = {found.group.partition_path for found in table.state.latest_slices()}
    return tuple(SkippedPartition(name, SkipReason.SAME_NUMBER) for name in sorted(visible - moved))
