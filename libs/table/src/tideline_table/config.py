"""Every `hoodie.*` and `tideline.*` option of the engine, declared once.

`docs/options.md` is generated from these declarations. Table properties (stored in `hoodie.properties`) are in
`tideline_table.hudi.properties`. The options here configure writers and table services and are not stored with the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import cast

from tideline_table.errors import InvalidOption
from tideline_table.option import Option, T

_MIB = 1024 * 1024

MAX_FILE_SIZE = Option(
    "hoodie.parquet.max.file.size", 120 * _MIB, "Size that a writer aims at for a base file.", unit="bytes", minimum=1024
)
SMALL_FILE_LIMIT = Option(
    "hoodie.parquet.small.file.limit",
    100 * _MIB,
    "Inserts of an upsert or insert fill base files smaller than this; 0 sends every insert to a new file group.",
    unit="bytes",
    minimum=0,
)
COMPRESSION_CODEC = Option(
    "hoodie.parquet.compression.codec", "zstd", "Codec of base files.", choices=("zstd", "snappy", "gzip", "lz4", "none")
)
LOG_BLOCK_FORMAT = Option(
    "hoodie.logfile.data.block.format",
    "parquet",
    "Format of the data blocks in log files of merge-on-read tables. Parquet is read several times faster.",
    choices=("avro", "parquet"),
)
LOG_BLOCK_BYTES = Option(
    "hoodie.logfile.data.block.max.size",
    256 * _MIB,
    "Maximum size in memory of the rows of one data block; one append may write several blocks.",
    unit="bytes",
    minimum=1024,
)
LOG_INDEX_WINDOW_FILES = Option(
    "tideline.log.index.clique.files",
    8,
    "Maximum number of log files that one key index covers: the log file next to it and earlier ones of the same slice. "
    "0 writes no index.",
    unit="files",
    minimum=0,
)
INSERT_TO_LOG = Option(
    "tideline.insert.to.log",
    False,
    "Write the rows that an upsert or insert adds to a merge-on-read table to log files. Small file groups are filled without rewriting "
    "their base files, and new groups begin with a log file until compaction writes their base file. Blind inserts (without key look-up) "
    "open new groups only, and write base files if the input contains a key twice. bulk_insert always writes base files.",
)
COMPACTION_DELTA_COMMITS = Option(
    "hoodie.compact.inline.max.delta.commits",
    5,
    "A compaction is planned after this many delta commits since the last one.",
    minimum=1,
)
METADATA_ENABLE = Option(
    "hoodie.metadata.enable",
    False,
    "`tideline.create` makes a metadata table with the new table (docs/design/metadata-table.md). For existing tables: `tideline index create`.",
)
METADATA_COMPACTION_DELTA_COMMITS = Option(
    "hoodie.metadata.compact.max.delta.commits",
    10,
    "The metadata table is compacted after this many delta commits. The value at its creation counts.",
    minimum=1,
)
COLUMN_STATISTICS = Option(
    "tideline.column.stats.enable",
    True,
    "Writers and table services record statistics of the columns of each file in the table log; queries use them to leave out files "
    "(docs/design/data-skipping.md).",
)
METADATA_COLUMN_STATISTICS = Option(
    "hoodie.metadata.index.column.stats.enable",
    False,
    "`tideline.create` makes a metadata table with column statistics with the new table, for Apache Hudi's readers. For existing tables: "
    "`tideline index create --type column_stats`.",
)
COLUMN_STATISTICS_LIST = Option(
    "hoodie.metadata.index.column.stats.column.list",
    "",
    "Comma-separated columns with statistics; empty: the first ones of the table. The meta fields of commit time, record key and "
    "partition path are always among them.",
)
COLUMN_STATISTICS_MOST = Option(
    "hoodie.metadata.index.column.stats.max.columns.to.index",
    32,
    "How many columns have statistics if none are named: the first ones whose type is supported.",
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
    "Which file groups a compaction plan takes first: those with the most log bytes or log files (from a threshold on), those with the "
    "oldest log file, all in order of their partitions, or those of certain days. The first three and `bounded_io` stop at the bound on "
    "input and output.",
    choices=tuple(COMPACTION_STRATEGIES),
)
COMPACTION_TARGET_IO_MB = Option(
    "hoodie.compaction.target.io",
    500 * 1024,
    "Bound on what one compaction plan reads and writes, for the strategies that have a bound. The file group that reaches it is the last.",
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
    "With `day_based`, the newest N partitions are compacted; with `recent_days` those of the last N days, with `older_days` the others.",
    unit="partitions",
    minimum=1,
)
COMPACTION_MAX_WAIT_COMMITS = Option(
    "tideline.compaction.max.wait.commits",
    20,
    "A file group whose oldest log file has waited for this many delta commits goes first in the next compaction plan, regardless of "
    "thresholds, bounds and reservations of writers; 0 lets groups wait forever.",
    unit="instants",
    minimum=0,
)
COMPACTION_MEMORY_LIMIT = Option(
    "tideline.compaction.memory.limit",
    1024 * _MIB,
    "Memory for the slices that one process compacts at the same time, as estimated before they are read. A larger slice is compacted alone.",
    unit="bytes",
    minimum=_MIB,
)
RECORD_SIZE_ESTIMATE = Option(
    "hoodie.copyonwrite.record.size.estimate", 256, "Assumed bytes per row of a table without files.", unit="bytes", minimum=1
)
ROW_GROUP_ROWS = Option(
    "tideline.parquet.row.group.rows",
    262_144,
    "Rows per row group of a base file; smaller ones prune better.",
    unit="rows",
    minimum=1,
)
COMBINE_BEFORE_UPSERT = Option(
    "hoodie.combine.before.upsert",
    True,
    "Keep one row per record key of the input: the one with the largest ordering value, the last on ties.",
)
COMBINE_BEFORE_INSERT = Option("hoodie.combine.before.insert", False, "The same for insert and bulk_insert.")
INDEX_TYPE = Option(
    "hoodie.index.type",
    "SIMPLE",
    "Scope in which a record key is unique: its partition (SIMPLE, BLOOM) or the table (GLOBAL_SIMPLE, GLOBAL_BLOOM, RECORD_INDEX). With a global type, "
    "operations that look up keys search all partitions. SIMPLE reads the key columns of the base files whose key ranges fit, BLOOM only "
    "those whose Bloom filters may hold a key; both find the same rows. RECORD_INDEX asks the record index of the metadata table, and reads no data file. Hudi does not store the type with the table, so all writers of a "
    "table must set the same scope. A table that was created with an index (`tideline create --index bucket|bloom|global_bloom|record_index`) keeps it; "
    "writers of such a table need not set it.",
    choices=("SIMPLE", "GLOBAL_SIMPLE", "BLOOM", "GLOBAL_BLOOM", "RECORD_INDEX", "BUCKET"),
)
BUCKET_NUMBER = Option(
    "hoodie.bucket.index.num.buckets",
    0,
    "Number of buckets in each partition of a table with a bucket index. The table keeps it, and a writer that sets another number is "
    "refused; 0 stands for the table's.",
    unit="buckets",
    minimum=0,
)
BUCKET_HASH_FIELD = Option(
    "hoodie.bucket.index.hash.field",
    "",
    "Comma-separated columns of the record key that decide the bucket. The table keeps them, and a writer that sets others is refused.",
)
SIMPLE_INDEX_UPDATE_PARTITION_PATH = Option(
    "hoodie.simple.index.update.partition.path",
    True,
    "With GLOBAL_SIMPLE, move a row whose key is in another partition: delete it there and insert it in its own partition, in one commit. "
    "Where ordering values decide, the row moves only if it wins. If false, write the row in the partition that has the key.",
)
BLOOM_INDEX_UPDATE_PARTITION_PATH = Option(
    "hoodie.bloom.index.update.partition.path", True, "As `hoodie.simple.index.update.partition.path`, with GLOBAL_BLOOM."
)
RECORD_INDEX_UPDATE_PARTITION_PATH = Option(
    "hoodie.record.index.update.partition.path", False, "As `hoodie.simple.index.update.partition.path`, with RECORD_INDEX."
)
RECORD_INDEX_MIN_FILE_GROUPS = Option(
    "hoodie.metadata.record.index.min.filegroup.count",
    10,
    "Least number of file groups of a record index. Its creation decides: room for twice as many keys as there are rows.",
    unit="file groups",
    minimum=1,
)
RECORD_INDEX_MAX_FILE_GROUPS = Option(
    "hoodie.metadata.record.index.max.filegroup.count",
    10_000,
    "Greatest number of file groups of a record index.",
    unit="file groups",
    minimum=1,
)
BLOOM_FILTERS = Option(
    "hoodie.parquet.bloom.filter.enabled",
    True,
    "Write a Bloom filter over the record keys into the footer of each base file.",
)
BLOOM_FILTER_TYPE = Option(
    "hoodie.bloom.index.filter.type",
    "DYNAMIC_V0",
    "Form of the Bloom filters in base files. SIMPLE has room for `hoodie.index.bloom.num_entries` keys, DYNAMIC_V0 for up to "
    "`hoodie.bloom.index.filter.dynamic.max.entries`. A filter of a file with fewer keys is smaller in both, unlike Apache Hudi's.",
    choices=("DYNAMIC_V0", "SIMPLE"),
)
BLOOM_ENTRIES = Option(
    "hoodie.index.bloom.num_entries",
    60_000,
    "Keys for which the Bloom filter of a base file is sized at most, with SIMPLE.",
    unit="keys",
    minimum=1,
    maximum=10_000_000,
)
BLOOM_MAX_ENTRIES = Option(
    "hoodie.bloom.index.filter.dynamic.max.entries",
    100_000,
    "The same with DYNAMIC_V0, unless `hoodie.index.bloom.num_entries` is larger. A file with more keys has more false positives.",
    unit="keys",
    minimum=1,
    maximum=10_000_000,
)
BLOOM_FALSE_POSITIVES = Option(
    "hoodie.index.bloom.fpp",
    0.000000001,
    "Share of absent keys that a Bloom filter reports as present, for files with no more keys than it is sized for.",
    minimum=1e-12,
    maximum=0.5,
)
INSERT_DUP_POLICY = Option(
    "hoodie.datasource.insert.dup.policy",
    "none",
    "What insert and bulk_insert do with keys that the table already has: write them again, drop them, or fail.",
    choices=("none", "drop", "fail"),
)
BULK_INSERT_SORT_COLUMNS = Option(
    "hoodie.bulkinsert.user.defined.partitioner.sort.columns",
    "",
    "Comma-separated columns by which bulk_insert sorts the rows of a partition.",
)
CLEANER_COMMITS_RETAINED = Option(
    "hoodie.cleaner.commits.retained",
    10,
    "With `KEEP_LATEST_COMMITS`, cleaning keeps the files that queries of the last N completed writes may read.",
    unit="instants",
    minimum=1,
    aliases=("hoodie.clean.commits.retained",),
)
CLEAN_POLICY = Option(
    "hoodie.clean.policy",
    "KEEP_LATEST_COMMITS",
    "What cleaning keeps: the files that queries of the last N completed writes read, those that queries of the last N hours read, or the "
    "newest N file slices of each file group. Savepoints, pending plans and reader leases keep more.",
    choices=("KEEP_LATEST_COMMITS", "KEEP_LATEST_BY_HOURS", "KEEP_LATEST_FILE_VERSIONS"),
    aliases=("hoodie.cleaner.policy",),
)
CLEAN_HOURS_RETAINED = Option(
    "hoodie.clean.hours.retained",
    24,
    "With `KEEP_LATEST_BY_HOURS`, cleaning keeps the files that queries of the last N hours may read.",
    unit="hours",
    minimum=1,
    aliases=("hoodie.cleaner.hours.retained",),
)
CLEAN_FILE_VERSIONS_RETAINED = Option(
    "hoodie.clean.fileversions.retained",
    3,
    "With `KEEP_LATEST_FILE_VERSIONS`, cleaning keeps the newest N file slices of each file group, and none of a replaced group.",
    unit="slices",
    minimum=1,
    aliases=("hoodie.cleaner.fileversions.retained",),
)
CLEAN_MAX_SHARE = Option(
    "tideline.clean.max.deleted.share",
    0.0,
    "A clean that would delete more bytes than this share of the bytes that the newest queries read is refused before it deletes anything "
    "(1 stands for as many bytes as the table has now). 0 sets no limit.",
    unit="share",
    minimum=0,
)
LEASE_TTL_S = Option(
    "tideline.lease.ttl",
    300.0,
    "A reader lease expires this long after its holder last renewed it. The library renews it three times in that period.",
    unit="seconds",
    minimum=1,
)
KEEP_MIN_COMMITS = Option(
    "hoodie.keep.min.commits",
    20,
    "Archival leaves the newest N completed writes on the active timeline; N must exceed `hoodie.cleaner.commits.retained`. The default "
    "is raised to 10 more than that if needed.",
    unit="instants",
    minimum=2,
)
KEEP_MAX_COMMITS = Option(
    "hoodie.keep.max.commits",
    30,
    "Archival begins once more than N completed writes are on the active timeline. The default is raised to 10 more than "
    "`hoodie.keep.min.commits` if needed.",
    unit="instants",
    minimum=2,
)
ARCHIVAL_BATCH = Option("hoodie.commits.archival.batch", 10, "Records in one block of an archive file.", unit="records", minimum=1)
ARCHIVE_AUTOMATIC = Option("hoodie.archive.automatic", True, "The cleaner archives after each clean.")
ARCHIVAL_MIN_AGE_S = Option(
    "tideline.archive.min.age",
    3600.0,
    "Archival takes only instants that ended at least this long ago, when their writers can no longer be writing timeline files.",
    unit="seconds",
    minimum=0,
)
TASK_MAX_LIFETIME_S = Option(
    "tideline.task.max.lifetime",
    6 * 3600.0,
    "Maximum run time of a write task. Archival passes a rolled-back instant this long after its rollback, once a listing of its "
    "partitions finds none of its files.",
    unit="seconds",
    minimum=0,
)
COMPACT_INLINE = Option(
    "hoodie.compact.inline",
    False,
    "A writer plans a compaction behind its commit, once `hoodie.compact.inline.max.delta.commits` delta commits came, and runs it.",
)
COMPACT_SCHEDULE_INLINE = Option(
    "hoodie.compact.schedule.inline", False, "A writer plans compactions behind its commits and leaves their run to the launcher."
)
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
SERVICE_VERIFY = Option(
    "tideline.service.verify",
    "keys",
    "What compaction and clustering read back from the files they wrote and compare with what they read, before they commit: record keys "
    "and ordering values, or whole rows.",
    choices=("keys", "full"),
)
CLUSTERING_SMALL_FILE_LIMIT = Option(
    "hoodie.clustering.plan.strategy.small.file.limit",
    300 * _MIB,
    "File slices smaller than this, and smaller than the target size, are candidates for clustering (strategies `size`, `key-range`).",
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
    "Maximum input of one clustering group, which one task reads.",
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
    "Which file slices clustering groups, and how: `size`, `recent-days`, `selected-partitions`, `key-range`, `overlap`, `commit-time`, "
    "`single-file`, a class name of Apache Hudi for one of them, or an entry point of the group `tideline.clustering.plan` "
    "([clustering](design/clustering.md)).",
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
    "The order of rows in clustering with sort columns: by the columns one after the other (linear), or along a space-filling curve over "
    "all of them (z-order, hilbert), which also serves queries on later columns. A plan of Tideline keeps the value; for a plan of Apache "
    "Hudi the executor's value counts.",
    choices=("linear", "z-order", "hilbert", "LINEAR", "ZORDER", "HILBERT"),
)
CLUSTERING_PARTITION_FILTER = Option(
    "hoodie.clustering.plan.partition.filter.mode",
    "NONE",
    "Which partitions clustering plans: all (NONE); the newest by path (RECENT_DAYS) or the oldest (OLDEST_DAYS), as many as "
    "`hoodie.clustering.plan.strategy.daybased.lookback.partitions`; a range of paths (SELECTED_PARTITIONS); every 24th, beginning at "
    "the present hour in UTC (DAY_ROLLING).",
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
    "Which groups a plan takes first if there are more than `hoodie.clustering.plan.strategy.max.num.groups`: those of the partition with "
    "most candidates (partition), with most input bytes (bytes), with most input files (files), or with the oldest slice (oldest).",
    choices=("partition", "bytes", "files", "oldest"),
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
    "Memory for the rows of the clustering groups that one process runs at the same time. A larger group runs alone; it is partitioned by "
    "ranges of its sort order into files in the temporary folder of the executor (TMPDIR), which are sorted one after the other. The decoder, the encoder and the interpreter need memory beside it.",
    unit="bytes",
    minimum=4 * _MIB,
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
CLUSTERING_PRIORITY_LAPSE_S = Option(
    "tideline.clustering.priority.lapse",
    300.0,
    "A clustering with priority loses it after this long without a sign of life as planned or running, but not before its heartbeat "
    "counts as missed. It gets priority back when an executor runs it.",
    unit="seconds",
    minimum=0,
)
CLUSTERING_EXPIRATION_MIN = Option(
    "hoodie.clustering.expiration.threshold.mins",
    60,
    "In a shared table, a clustering or compaction that Apache Hudi runs counts as abandoned if its plan, heartbeat, timeline file and "
    "markers show no sign of life for this long. The clustering is then rolled back, the compaction run again.",
    unit="minutes",
    minimum=1,
)
HEARTBEAT_INTERVAL_MS = Option(
    "hoodie.client.heartbeat.interval_in_ms", 60_000, "How often a writer renews its heartbeat.", unit="milliseconds", minimum=100
)
HEARTBEAT_MISSES = Option(
    "hoodie.client.heartbeat.tolerable.misses",
    2,
    "Heartbeats that a writer may miss before it counts as dead.",
    unit="heartbeats",
    minimum=1,
)
WRITE_RETRIES = Option(
    "tideline.write.conflict.retries",
    10,
    "How often a write that lost a conflict is repeated on fresh state.",
    unit="attempts",
    minimum=0,
)
CLUSTERING_UPDATE_STRATEGY = Option(
    "tideline.clustering.update.strategy",
    "yield",
    "What a write does to file groups under a pending clustering: commit, so that the clustering loses as often as "
    "`tideline.clustering.yields` allows (yield), or fail with a conflict, as in RFC-19 (reject).",
    choices=("yield", "reject"),
)
CLUSTERING_UPDATES_STRATEGY = Option(
    "hoodie.clustering.updates.strategy",
    "",
    "As `tideline.clustering.update.strategy`, which it overrides: `yield`, `reject`, Apache Hudi's class name for one of them "
    "(`SparkAllowUpdateStrategy`, `SparkRejectUpdateStrategy`), or an entry point of the group `tideline.clustering.update`.",
)
INTENT_WAIT_S = Option(
    "tideline.write.intent.wait",
    30.0,
    "How long a write waits for another write that has reserved the same file groups before it proceeds anyway; 0 makes no reservations.",
    unit="seconds",
    minimum=0,
)
PRIORITY_AFTER = Option(
    "tideline.write.priority.after",
    3,
    "After this many lost conflicts, a write locks the file groups that it needs, and other writes of them wait. In a table shared with "
    "Apache Hudi, conflicts lost to Apache Hudi's writers do not count, because those do not wait; a write that loses this many of them "
    "in spite of the lock fails.",
    unit="conflicts",
    minimum=1,
)
PRIORITY_WAIT_S = Option(
    "tideline.write.priority.wait",
    600.0,
    "How long a write waits for another write with priority before it proceeds anyway; also how long it waits, over all of its attempts, "
    "for clusterings with priority (`tideline.clustering.yields`) before it fails.",
    unit="seconds",
    minimum=0,
)
BACKLOG_LOG_FILES = Option(
    "tideline.write.backlog.log.files",
    50,
    "Log files that one file slice has before compaction counts as outrun by the writers: `tideline status` and the health of the table say "
    "so, and writes to the partition of the slice follow `tideline.write.backlog.response`.",
    unit="log files",
    minimum=1,
)
BACKLOG_RESPONSE = Option(
    "tideline.write.backlog.response",
    "warn",
    "What an upsert or delete of a merge-on-read table does, and an insert into log files, if its partitions have a slice with a backlog "
    "(`tideline.write.backlog.log.files`): nothing (none), log a warning (warn), wait before it begins (slow; `tideline.write.backlog.wait`), "
    "or fail before anything is written (refuse). Writes that only add or replace file groups are not concerned.",
    choices=("none", "warn", "slow", "refuse"),
)
BACKLOG_WAIT_S = Option(
    "tideline.write.backlog.wait",
    10.0,
    "How long a write waits at most with `tideline.write.backlog.response` `slow`, at twice as many log files as "
    "`tideline.write.backlog.log.files`; proportionally shorter below, but at least a tenth of it. The wait ends when a compaction has merged "
    "the log files.",
    unit="seconds",
    minimum=0,
)
PLAN_AGE_S = Option(
    "tideline.plan.age",
    3600.0,
    "A plan that is pending for longer than this without a process that runs it is a finding in `tideline status` and in the health of the table.",
    unit="seconds",
    minimum=0,
)
LOCK_WAIT_S = Option("tideline.lock.wait", 60.0, "How long a commit waits for the table lock.", unit="seconds", minimum=0)
LOCK_UNREACHABLE = Option(
    "tideline.lock.unreachable",
    "wait",
    "What a commit does while the Redis server of the locks does not answer: retry for `tideline.lock.wait`, then fail (wait); fail "
    "immediately (fail); or use leases and reservations in the table's folder (storage). The last two require locks on `redis:` or "
    "`rediss:`. A table shared with Apache Hudi always uses Apache Hudi's lock; there the option concerns reservations only: they move to "
    "the table's folder with `storage`, and are omitted otherwise.",
    choices=("wait", "fail", "storage"),
)
LOCK_TTL_S = Option("tideline.lock.ttl", 30.0, "Duration of the table lock's lease.", unit="seconds", minimum=1)
CHECKPOINT_INTERVAL = Option(
    "tideline.log.checkpoint.interval", 50, "A checkpoint of the table log is written every N entries.", unit="entries", minimum=2
)
LOG_RETAINED_ENTRIES = Option(
    "tideline.log.retained.entries",
    1000,
    "The newest N entries of the table log are kept, regardless of their age.",
    unit="entries",
    minimum=10,
)
LOG_RETENTION_S = Option(
    "tideline.log.retention",
    7 * 24 * 3600.0,
    "Entries of the table log are kept at least this long. The mirror must publish them within this time.",
    unit="seconds",
    minimum=90,  # readers that follow the log rely on its last minute (`timeline.log_end`)
)
INSTANT_SKEW_S = Option(
    "tideline.instant.max.skew",
    2.0,
    "How far a writer's clock may be ahead of the store's; in a table shared with Apache Hudi also how far the last instant may be ahead "
    "of the clock.",
    unit="seconds",
    minimum=0,
)
SCHEMA_EVOLUTION = Option(
    "tideline.write.schema.evolution",
    "refuse",
    "What a write does with columns that the table lacks and with types wider than the table's: reject them, or evolve the table as Apache "
    "Hudi's writers do. New columns are nullable and last; whole numbers become larger, floating or text types, decimals become wider.",
    choices=("refuse", "evolve"),
)
RECONCILE_SCHEMA = Option(
    "hoodie.datasource.write.reconcile.schema",
    False,
    "Evolve the table by new columns only: types stay, and columns that the input lacks become null.",
)
SET_NULL_FOR_MISSING_COLUMNS = Option(
    "hoodie.write.set.null.for.missing.columns",
    True,
    "Nullable columns that the input lacks become null. If false, such input is rejected (Apache Hudi's default).",
)
READ_OPERATION_FIELD = Option(
    "hoodie.allow.operation.metadata.field",
    False,
    "Read rows with the meta field _hoodie_operation: the operation of their writer, null if the writer did not record it.",
)

AnyOption = Option[int] | Option[float] | Option[bool] | Option[str]

ALL_OPTIONS: tuple[AnyOption, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Option))
_BY_KEY = {key: option for option in ALL_OPTIONS for key in (option.key, *option.aliases)}


def declare_options(*options: AnyOption) -> None:
    """Let `Options` accept the options of a package above the engine. The package calls this when it is imported."""
    _BY_KEY.update({key: option for option in options for key in (option.key, *option.aliases)})


class Options:
    """A validated set of options. An option without a value has its default.

    An alias stands for the key of its option; of several values the last one counts. Raises `InvalidOption` for an unknown key (the
    error names the nearest known key) and for a value that is not allowed.
    """

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self._given: dict[str, int | float | bool | str] = {}
        for key, value in (given or {}).items():
            option = _BY_KEY.get(key)
            if option is None:
                near = difflib.get_close_matches(key, _BY_KEY, n=1)
                raise InvalidOption(
                    f"unknown option {key!r}",
                    expected=f"a declared one{f', such as {near[0]!r}' if near else ''}",
                    remedy="see docs/options.md",
                )
            self._given[option.key] = option.parse(value)

    def __getitem__(self, option: Option[T]) -> T:
        return cast("T", self._given.get(option.key, option.default))

    def given(self) -> dict[str, str]:
        """Return the explicitly set options as text, to send them to another process."""
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in self._given.items()}

    def merged(self, more: Mapping[str, object]) -> Options:
        """Return these options, overridden by `more`."""
        return Options({**self._given, **more})


def column_list(text: str) -> tuple[str, ...]:
    """Return the column names in a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
