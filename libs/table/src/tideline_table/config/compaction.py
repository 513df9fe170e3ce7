"""Options of compaction."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_table.option import Option

_MIB = 1024 * 1024

COMPACTION_DELTA_COMMITS = Option(
    "hoodie.compact.inline.max.delta.commits",
    5,
    "A compaction is planned after this many delta commits since the last one.",
    minimum=1,
)
COMPACTION_MAX_GROUPS = Option(
    "tideline.compaction.max.groups",
    1000,
    "Maximum number of file groups in one compaction plan, in the order of the strategy.",
    minimum=1,
)
_HUDI_STRATEGIES = "org.apache.hudi.table.action.compact.strategy."
COMPACTION_STRATEGIES: Mapping[str, str] = {
    **{
        name: name for name in ("log_size", "log_count", "bounded_io", "day_based", "recent_days", "older_days", "unbounded", "age")
    },
    f"{_HUDI_STRATEGIES}LogFileSizeBasedCompactionStrategy": "log_size",
    f"{_HUDI_STRATEGIES}LogFileNumBasedCompactionStrategy": "log_count",
    f"{_HUDI_STRATEGIES}BoundedIOCompactionStrategy": "bounded_io",
    f"{_HUDI_STRATEGIES}DayBasedCompactionStrategy": "day_based",
    f"{_HUDI_STRATEGIES}BoundedPartitionAwareCompactionStrategy": "recent_days",
    f"{_HUDI_STRATEGIES}UnBoundedPartitionAwareCompactionStrategy": "older_days",
    f"{_HUDI_STRATEGIES}UnBoundedCompactionStrategy": "unbounded",
}
"""Values of the strategy option, with Apache Hudi's class names, and the strategy that each stands for."""
COMPACTION_STRATEGY = Option(
    "hoodie.compaction.strategy",
    "log_size",
    "Which file groups a compaction plan takes first: those with the most log bytes or log files (from a threshold on), those with "
    "the oldest log file, all in order of their partitions, or those of certain days. The first three and `bounded_io` stop at the "
    "bound on input and output.",
    choices=tuple(COMPACTION_STRATEGIES),
)
COMPACTION_TARGET_IO_MB = Option(
    "hoodie.compaction.target.io",
    500 * 1024,
    "Bound on what one compaction plan reads and writes, for the strategies that have a bound. The file group that reaches it is "
    "the last.",
    unit="MiB",
    minimum=1,
)
COMPACTION_LOG_BYTES_THRESHOLD = Option(
    "hoodie.compaction.logfile.size.threshold",
    0,
    "With `log_size`, file groups with fewer log bytes wait.",
    unit="bytes",
    minimum=0,
)
COMPACTION_LOG_FILES_THRESHOLD = Option(
    "hoodie.compaction.logfile.num.threshold",
    0,
    "With `log_count`, file groups with fewer log files wait.",
    unit="files",
    minimum=0,
)
COMPACTION_DAY_PARTITIONS = Option(
    "hoodie.compaction.daybased.target.partitions",
    10,
    "With `day_based`, the newest N partitions are compacted; with `recent_days` those of the last N days, with `older_days` the "
    "others.",
    unit="partitions",
    minimum=1,
)
COMPACTION_MAX_WAIT_COMMITS = Option(
    "tideline.compaction.max.wait.commits",
    20,
    "A file group whose oldest log file has waited for this many delta commits goes first in the next compaction plan, regardless "
    "of thresholds, bounds and reservations of writers; 0 lets groups wait forever.",
    unit="instants",
    minimum=0,
)
COMPACTION_MEMORY_LIMIT = Option(
    "tideline.compaction.memory.limit",
    1024 * _MIB,
    "Memory for the slices that one process compacts at the same time, as estimated before they are read. A larger slice is "
    "compacted alone.",
    unit="bytes",
    minimum=_MIB,
)
LOG_COMPACTION_ENABLE = Option(
    "hoodie.log.compaction.enable",
    False,
    "The planner, `tideline maintain`, `table.maintenance.run_due()` and verdicts include log compaction: the log files of a slice "
    "are merged into one, and its base file stays as it is.",
)
LOG_COMPACTION_INLINE = Option(
    "hoodie.log.compaction.inline",
    False,
    "A writer that appends to log files plans a log compaction behind its commit, if one is due, and runs it.",
)
LOG_COMPACTION_FILES = Option(
    "hoodie.log.compaction.blocks.threshold",
    5,
    "A log compaction takes slices of which a reader opens this many log files. Each write of Tideline appends one file with its "
    "blocks.",
    unit="files",
    minimum=2,
)
LOG_COMPACTION_MAX_BYTES = Option(
    "tideline.log.compaction.max.bytes",
    128 * _MIB,
    "A log compaction leaves slices with more bytes in the log files that a reader opens to compaction: each log compaction of a "
    "slice writes what earlier ones wrote once more.",
    unit="bytes",
    minimum=1,
)
COMPACT_INLINE = Option(
    "hoodie.compact.inline",
    False,
    "A writer plans a compaction behind its commit, once `hoodie.compact.inline.max.delta.commits` delta commits came, and runs "
    "it.",
)
COMPACT_SCHEDULE_INLINE = Option(
    "hoodie.compact.schedule.inline", False, "A writer plans compactions behind its commits and leaves their run to the launcher."
)
