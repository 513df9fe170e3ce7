"""Options of clustering."""

from __future__ import annotations

from tideline_table.option import Option

_MIB = 1024 * 1024

CLUSTERING_INLINE = Option(
    "hoodie.clustering.inline",
    False,
    "A writer plans a clustering behind its commit, once `hoodie.clustering.inline.max.commits` writes came, and runs it.",
)
CLUSTERING_SCHEDULE_INLINE = Option(
    "hoodie.clustering.schedule.inline",
    False,
    "A writer plans clusterings behind its commits and leaves their run to the launcher.",
)
CLUSTERING_INLINE_COMMITS = Option(
    "hoodie.clustering.inline.max.commits",
    4,
    "A writer plans an inline clustering after this many writes since the last one.",
    unit="instants",
    minimum=1,
)
CLUSTERING_SMALL_FILE_LIMIT = Option(
    "hoodie.clustering.plan.strategy.small.file.limit",
    300 * _MIB,
    "File slices smaller than this, and smaller than the target size, are candidates for clustering (strategies `size`, "
    "`key-range`).",
    unit="bytes",
    minimum=1,
)
CLUSTERING_TARGET_FILE_SIZE = Option(
    "hoodie.clustering.plan.strategy.target.file.max.bytes",
    1024 * _MIB,
    "Size that clustering aims at for its output files.",
    unit="bytes",
    minimum=1024,
)
CLUSTERING_MAX_GROUP_BYTES = Option(
    "hoodie.clustering.plan.strategy.max.bytes.per.group",
    2048 * _MIB,
    "Maximum input of one clustering group, which one task reads. `resize-buckets --overwrite` reads buckets with more input "
    "several times.",
    unit="bytes",
    minimum=1024,
)
CLUSTERING_MAX_GROUPS = Option(
    "hoodie.clustering.plan.strategy.max.num.groups",
    30,
    "Maximum number of groups in one clustering plan.",
    unit="groups",
    minimum=1,
)
CLUSTERING_SORT_COLUMNS = Option(
    "hoodie.clustering.plan.strategy.sort.columns",
    "",
    "Comma-separated columns by which clustering sorts; empty keeps the order.",
)
CLUSTERING_PLAN_STRATEGY = Option(
    "hoodie.clustering.plan.strategy.class",
    "size",
    "Which file slices clustering groups, and how: `size`, `recent-days`, `selected-partitions`, `key-range`, `overlap`, "
    "`commit-time`, `single-file`, a class name of Apache Hudi for one of them, or an entry point of the group "
    "`tideline.clustering.plan` ([clustering](design/clustering.md)).",
)
CLUSTERING_EXECUTION_STRATEGY = Option(
    "hoodie.clustering.execution.strategy.class",
    "sort-and-size",
    "How clustering orders rows: `sort-and-size` along `hoodie.layout.optimize.strategy`, `single-file-sort` likewise within each "
    "file slice, a class name of Apache Hudi for one of them, or an entry point of the group `tideline.clustering.execution`.",
)
LAYOUT_STRATEGY = Option(
    "hoodie.layout.optimize.strategy",
    "linear",
    "The order of rows in clustering with sort columns: by the columns one after the other (linear), or along a space-filling "
    "curve over all of them (z-order, hilbert), which also serves queries on later columns. A plan of Tideline keeps the value; "
    "for a plan of Apache Hudi the executor's value counts.",
    choices=("linear", "z-order", "hilbert", "ZORDER"),
)
CLUSTERING_PARTITION_FILTER = Option(
    "hoodie.clustering.plan.partition.filter.mode",
    "NONE",
    "Which partitions clustering plans: all (NONE); the newest by path (RECENT_DAYS) or the oldest (OLDEST_DAYS), as many as "
    "`hoodie.clustering.plan.strategy.daybased.lookback.partitions`; a range of paths (SELECTED_PARTITIONS); every 24th, beginning "
    "at the present hour in UTC (DAY_ROLLING).",
    choices=("NONE", "RECENT_DAYS", "OLDEST_DAYS", "SELECTED_PARTITIONS", "DAY_ROLLING"),
)
CLUSTERING_LOOKBACK_PARTITIONS = Option(
    "hoodie.clustering.plan.strategy.daybased.lookback.partitions",
    2,
    "Number of partitions that RECENT_DAYS and OLDEST_DAYS choose; 0 chooses all that are not skipped.",
    unit="partitions",
    minimum=0,
)
CLUSTERING_SKIP_LATEST_PARTITIONS = Option(
    "hoodie.clustering.plan.strategy.daybased.skipfromlatest.partitions",
    0,
    "Number of newest partitions that RECENT_DAYS and OLDEST_DAYS leave out, because writers still fill them.",
    unit="partitions",
    minimum=0,
)
CLUSTERING_BEGIN_PARTITION = Option(
    "hoodie.clustering.plan.strategy.cluster.begin.partition",
    "",
    "First partition path that SELECTED_PARTITIONS chooses; empty: no lower bound.",
)
CLUSTERING_END_PARTITION = Option(
    "hoodie.clustering.plan.strategy.cluster.end.partition",
    "",
    "Last partition path that SELECTED_PARTITIONS chooses (inclusive); empty: no upper bound.",
)
CLUSTERING_PARTITION_REGEX = Option(
    "hoodie.clustering.plan.strategy.partition.regex.pattern",
    "",
    "Only partitions whose whole path matches this regular expression are planned, before the filter mode applies.",
)
CLUSTERING_PARTITION_SELECTED = Option(
    "hoodie.clustering.plan.strategy.partition.selected",
    "",
    "Comma-separated partition paths: only these are planned, before the filter mode applies. Overrides the regular expression.",
)
CLUSTERING_EARLIEST_COMMIT = Option(
    "hoodie.clustering.plan.strategy.earliest.commit.to.cluster",
    "",
    "The plan strategy `commit-time` takes file slices that commits after this instant wrote; empty: of all commits.",
)
CLUSTERING_GROUP_ORDER = Option(
    "tideline.clustering.plan.group.order",
    "partition",
    "Which groups a plan takes first if there are more than `hoodie.clustering.plan.strategy.max.num.groups`: those of the "
    "partition with "
    "most candidates (partition), with most input bytes (bytes), with most input files (files), with the oldest slice (oldest), or "
    "any (random).",
    choices=("partition", "bytes", "files", "oldest", "random"),
)
CLUSTERING_GROUP_MIN_BYTES = Option(
    "tideline.clustering.plan.group.min.bytes",
    0,
    "Groups with less input than this wait for a later plan.",
    unit="bytes",
    minimum=0,
)
CLUSTERING_MEMORY_LIMIT = Option(
    "tideline.clustering.memory.limit",
    1024 * _MIB,
    "Memory for the rows of the clustering groups that one process runs at the same time. A larger group runs alone; it is "
    "partitioned by ranges of its sort order into files in the temporary folder of the executor (TMPDIR), which are sorted one "
    "after the other. The decoder, the encoder and the interpreter need memory beside it.",
    unit="bytes",
    minimum=4 * _MIB,
)
CLUSTERING_SPLIT_GROUP_BYTES = Option(
    "tideline.clustering.split.group.bytes",
    512 * _MIB,
    "On Spark, a clustering group with at least this much input and more than one output file is split by ranges of its sort "
    "order: several tasks read its slices, one writes each output file. A smaller group is one task.",
    unit="bytes",
    minimum=1,
)
CLUSTERING_MIN_INPUT_FILES = Option(
    "tideline.clustering.min.input.files", 2, "Minimum number of candidates in a partition to cluster it.", unit="files", minimum=1
)
CLUSTERING_YIELDS = Option(
    "tideline.clustering.yields",
    3,
    "How often a clustering of the same file groups may lose to writers before it gets priority and writers must wait for it.",
    unit="plans",
    minimum=0,
)
CLUSTERING_QUIET_S = Option(
    "tideline.clustering.quiet",
    600.0,
    "In a table shared with Apache Hudi, the planner clusters only partitions that were not written for this long: a job of Apache "
    "Hudi that updates a file group under a pending clustering fails. 0: it also clusters partitions that are written.",
    unit="seconds",
    minimum=0,
)
CLUSTERING_PRIORITY_LAPSE_S = Option(
    "tideline.clustering.priority.lapse",
    300.0,
    "A clustering with priority loses it after this long without a sign of life as planned or running, but not before its "
    "heartbeat counts as missed. It gets priority back when an executor runs it.",
    unit="seconds",
    minimum=0,
)
CLUSTERING_EXPIRATION_MIN = Option(
    "hoodie.clustering.expiration.threshold.mins",
    60,
    "In a shared table, a clustering or compaction that Apache Hudi runs counts as abandoned if its plan, heartbeat, timeline "
    "file and markers show no sign of life for this long. The clustering is then rolled back, the compaction run again. The "
    "cleaner rolls back a write of Apache Hudi without a heartbeat file after the same time.",
    unit="minutes",
    minimum=1,
)
CLUSTERING_UPDATE_STRATEGY = Option(
    "tideline.clustering.update.strategy",
    "yield",
    "What a write does to file groups under a pending clustering: commit, so that the clustering loses as often as "
    "`tideline.clustering.yields` allows (yield), or fail with a conflict, as in RFC-19 (reject). With carry-over, it commits as "
    "with yield, and a clustering that runs with this value adds log files that were appended meanwhile to its output.",
    choices=("yield", "reject", "carry-over"),
)
CLUSTERING_UPDATES_STRATEGY = Option(
    "hoodie.clustering.updates.strategy",
    "",
    "As `tideline.clustering.update.strategy`, which it overrides: `yield`, `reject`, `carry-over`, Apache Hudi's class name for "
    "one of them (`SparkAllowUpdateStrategy` for `yield`, `SparkRejectUpdateStrategy`), or an entry point of the group "
    "`tideline.clustering.update`.",
)
