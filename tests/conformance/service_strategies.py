"""The second matrix: each strategy of each table service, and who goes on with what it left."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tests.conformance.matrix import Cell, Kind


class Strategy(enum.StrEnum):
    """The rows: what `docs/options.md` and the pages of the services name."""

    SIZE = "clustering plan: size"
    RECENT_DAYS = "clustering plan: recent-days"
    SELECTED = "clustering plan: selected-partitions"
    KEY_RANGE = "clustering plan: key-range"
    OVERLAP = "clustering plan: overlap"
    COMMIT_TIME = "clustering plan: commit-time"
    SINGLE_FILE = "clustering plan: single-file"
    FILTER_NONE = "clustering filter: NONE"
    FILTER_RECENT = "clustering filter: RECENT_DAYS"
    FILTER_OLDEST = "clustering filter: OLDEST_DAYS"
    FILTER_SELECTED = "clustering filter: SELECTED_PARTITIONS"
    FILTER_ROLLING = "clustering filter: DAY_ROLLING"
    FILTER_PATHS = "clustering filter: partition.selected"
    FILTER_REGEX = "clustering filter: regex.pattern"
    BY_PARTITION = "clustering group order: partition"
    BY_BYTES = "clustering group order: bytes"
    BY_FILES = "clustering group order: files"
    BY_OLDEST = "clustering group order: oldest"
    BY_CHANCE = "clustering group order: random"
    LINEAR = "clustering layout: linear"
    Z_ORDER = "clustering layout: z-order"
    HILBERT = "clustering layout: hilbert"
    SORT_AND_SIZE = "clustering execution: sort-and-size"
    SINGLE_FILE_SORT = "clustering execution: single-file-sort"
    IN_FILES = "clustering execution: group larger than memory"
    SPLIT = "clustering execution: group in several tasks"
    BUCKETS = "clustering execution: bucket-aware"
    YIELD = "clustering updates: yield"
    REJECT = "clustering updates: reject"
    CARRY_OVER = "clustering updates: carry-over"
    LOG_SIZE = "compaction: log_size"
    LOG_COUNT = "compaction: log_count"
    BOUNDED_IO = "compaction: bounded_io"
    DAY_BASED = "compaction: day_based"
    OLDER_DAYS = "compaction: older_days"
    COMPACT_RECENT = "compaction: recent_days"
    UNBOUNDED = "compaction: unbounded"
    AGE = "compaction: age"
    LOG_COMPACTION = "log compaction"
    KEEP_COMMITS = "clean: KEEP_LATEST_COMMITS"
    KEEP_HOURS = "clean: KEEP_LATEST_BY_HOURS"
    KEEP_VERSIONS = "clean: KEEP_LATEST_FILE_VERSIONS"
    CLEAN_INCREMENTAL = "clean: incremental"
    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    ARCHIVAL = "archival"
    ROLLBACK = "rollback"
    CANCELLED = "plan cancelled"


class Proof(enum.StrEnum):
    """The columns: what held after the service of that strategy."""

    READ = "read"
    UPSERT = "upsert"
    COMPACTION = "compact"
    CLUSTERING = "cluster"
    CLEAN = "clean"
    ROLLBACK = "roll back"
    CONTINUED = "Hudi's, here"


HUDI_GOES_ON = [proof for proof in Proof if proof is not Proof.CONTINUED]
"""Tideline ran the service; what Apache Hudi then did. `CONTINUED`: Apache Hudi ran it; Tideline read, upserted, compacted,
clustered, cleaned and rolled back."""

ONLY_LOGS = frozenset(
    {
        Strategy.LOG_SIZE,
        Strategy.LOG_COUNT,
        Strategy.BOUNDED_IO,
        Strategy.DAY_BASED,
        Strategy.OLDER_DAYS,
        Strategy.COMPACT_RECENT,
        Strategy.UNBOUNDED,
        Strategy.AGE,
        Strategy.LOG_COMPACTION,
        Strategy.CARRY_OVER,
    }
)
"""Strategies that work on log files."""

NOT_IN_BUCKETS = (
    "a clustering of Apache Hudi takes rows out of their buckets; Tideline refuses its plan (`docs/design/bucket-index.md`)"
)
_NONE_THERE = "Apache Hudi has no such strategy"
NOT_THERE = {
    Strategy.KEY_RANGE: _NONE_THERE,
    Strategy.OVERLAP: _NONE_THERE,
    Strategy.FILTER_OLDEST: _NONE_THERE,
    Strategy.BY_PARTITION: _NONE_THERE,
    Strategy.BY_BYTES: _NONE_THERE,
    Strategy.BY_FILES: _NONE_THERE,
    Strategy.BY_OLDEST: _NONE_THERE,
    Strategy.BY_CHANCE: _NONE_THERE,
    Strategy.IN_FILES: _NONE_THERE,
    Strategy.SPLIT: "Apache Hudi 1.2.0 writes a group as small as those of this table by one task",
    Strategy.YIELD: "Apache Hudi's SparkAllowUpdateStrategy, which also lets writers win, is not compared",
    Strategy.CARRY_OVER: _NONE_THERE,
    Strategy.BUCKETS: NOT_IN_BUCKETS,
    Strategy.AGE: _NONE_THERE,
    Strategy.COMMIT_TIME: "Apache Hudi 1.2.0 writes a plan with CommitBasedClusteringPlanStrategy whose checkpoint is null, and "
    "fails",
    Strategy.COMPACT_RECENT: "Apache Hudi 1.2.0 cannot plan with BoundedPartitionAwareCompactionStrategy on Spark: it is not "
    "serializable",
    Strategy.LOG_COMPACTION: "Tideline does not write tables with log compactions of Apache Hudi; it reads them (story "
    "mor-log-compaction)",
}
"""Strategies that Apache Hudi does not run, or with which Tideline does not go on, and why."""


def impossible() -> Iterable[Cell]:
    """Cells that mean nothing: services of log files in copy-on-write tables."""
    for strategy in Strategy:
        for proof in Proof:
            if strategy in ONLY_LOGS or proof is Proof.COMPACTION:
                yield Cell(strategy, Kind.COW, proof)


def reasons() -> dict[Cell, str]:
    """Cells that cannot be filled, and why."""
    nothing = set(impossible())
    found = {Cell(strategy, kind, Proof.CONTINUED): why for strategy, why in NOT_THERE.items() for kind in Kind}
    found |= {Cell(Strategy.BUCKETS, kind, Proof.CLUSTERING): NOT_IN_BUCKETS for kind in Kind}
    return {cell: why for cell, why in found.items() if cell not in nothing}
