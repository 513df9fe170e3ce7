"""Every `hoodie.*` and `tideline.*` option of the engine, declared once.

`docs/options.md` is generated from these declarations. Table properties (what `hoodie.properties` holds) are in
`tideline_table.timeline.properties`; options here steer writers and table services and are not stored with the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import cast

from tideline_table.errors import InvalidOption
from tideline_table.option import Option, T

MAX_FILE_SIZE = Option(
    "hoodie.parquet.max.file.size", 120 * 1024 * 1024, "Size that a writer aims at for a base file.", unit="bytes", minimum=1024
)
SMALL_FILE_LIMIT = Option(
    "hoodie.parquet.small.file.limit",
    100 * 1024 * 1024,
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
    "Format of the data blocks in log files of merge-on-read tables: Parquet is read several times faster.",
    choices=("avro", "parquet"),
)
LOG_BLOCK_BYTES = Option(
    "hoodie.logfile.data.block.max.size",
    256 * 1024 * 1024,
    "Rows of one append beyond this go to a further data block; measured in memory.",
    unit="bytes",
    minimum=1024,
)
LOG_INDEX_CLIQUE_FILES = Option(
    "tideline.log.index.clique.files",
    8,
    "Each log file gets a key index beside it, which tells of so many log files of its slice at most: of itself and those before it. 0 "
    "writes none.",
    unit="files",
    minimum=0,
)
INSERT_TO_LOG = Option(
    "tideline.insert.to.log",
    False,
    "Rows that an upsert or insert adds to a merge-on-read table go to log files: they fill small file groups without rewriting their base "
    "files, and new groups begin with a log file; compaction gives those their base file. Blind inserts (of keys that nobody looked up) open "
    "new groups only, and go to base files where the input holds a key twice. bulk_insert writes base files all the same.",
)
COMPACTION_DELTA_COMMITS = Option(
    "hoodie.compact.inline.max.delta.commits",
    5,
    "A compaction is planned once this many delta commits came since the last one.",
    minimum=1,
)
COMPACTION_MAX_GROUPS = Option(
    "tideline.compaction.max.groups",
    1000,
    "File groups in one compaction plan, those with the most log bytes first.",
    minimum=1,
)
RECORD_SIZE_ESTIMATE = Option(
    "hoodie.copyonwrite.record.size.estimate",
    256,
    "Bytes per row that sizing assumes for a table without files.",
    unit="bytes",
    minimum=1,
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
    "Where a record key is unique: in its partition (SIMPLE, BLOOM) or in the table (GLOBAL_SIMPLE, GLOBAL_BLOOM), where upserts, deletions and "
    "inserts that mind known keys look in all partitions. Bloom and simple are one here: keys are looked up by the key ranges of base files and the key "
    "indexes of log files; the filters serve readers. Hudi keeps no index type with a table, it is the writers': all of one table want the same.",
    choices=("SIMPLE", "GLOBAL_SIMPLE", "BLOOM", "GLOBAL_BLOOM"),
)
SIMPLE_INDEX_UPDATE_PARTITION_PATH = Option(
    "hoodie.simple.index.update.partition.path",
    True,
    "With GLOBAL_SIMPLE, a row whose key another partition holds is deleted there and inserted in its own, in one commit; where ordering "
    "values decide, only if it wins. Otherwise it is written where the key is, as `_hoodie_partition_path` tells.",
)
BLOOM_INDEX_UPDATE_PARTITION_PATH = Option(
    "hoodie.bloom.index.update.partition.path", True, "As `hoodie.simple.index.update.partition.path`, with GLOBAL_BLOOM."
)
INSERT_DUP_POLICY = Option(
    "hoodie.datasource.insert.dup.policy",
    "none",
    "What insert and bulk_insert do about keys that the table holds already: write them again, drop them, or fail.",
    choices=("none", "drop", "fail"),
)
BULK_INSERT_SORT_COLUMNS = Option(
    "hoodie.bulkinsert.user.defined.partitioner.sort.columns",
    "",
    "Comma list of columns that bulk_insert sorts by inside a partition.",
)
CLEANER_COMMITS_RETAINED = Option(
    "hoodie.cleaner.commits.retained",
    10,
    "Cleaning keeps what queries of the last N completed writes may read.",
    unit="instants",
    minimum=1,
)
KEEP_MIN_COMMITS = Option(
    "hoodie.keep.min.commits",
    20,
    "Archival leaves the newest N completed writes on the active timeline: more than cleaning retains, unless it is set 10 more at least.",
    unit="instants",
    minimum=2,
)
KEEP_MAX_COMMITS = Option(
    "hoodie.keep.max.commits",
    30,
    "Archival begins once more than N completed writes are on the active timeline; unless it is set 10 more than it leaves at least.",
    unit="instants",
    minimum=2,
)
ARCHIVAL_BATCH = Option("hoodie.commits.archival.batch", 10, "Records in one block of an archive file.", unit="records", minimum=1)
ARCHIVE_AUTOMATIC = Option("hoodie.archive.automatic", True, "The cleaner archives behind each clean.")
ARCHIVAL_MIN_AGE_S = Option(
    "tideline.archive.min.age",
    3600.0,
    "Archival takes only instants that ended so long ago: whoever was about to write their timeline files has done so.",
    unit="seconds",
    minimum=0,
)
TASK_MAX_LIFETIME_S = Option(
    "tideline.task.max.lifetime",
    6 * 3600.0,
    "No task of a write runs longer. Archival passes a rolled-back instant this long after its rollback, when a look at its partitions finds none "
    "of its files.",
    unit="seconds",
    minimum=0,
)
CLUSTERING_SMALL_FILE_LIMIT = Option(
    "hoodie.clustering.plan.strategy.small.file.limit",
    300 * 1024 * 1024,
    "Base files smaller than this are candidates for clustering.",
    unit="bytes",
    minimum=1,
)
CLUSTERING_TARGET_FILE_SIZE = Option(
    "hoodie.clustering.plan.strategy.target.file.max.bytes",
    1024 * 1024 * 1024,
    "Size that clustering aims at for its output files.",
    unit="bytes",
    minimum=1024,
)
CLUSTERING_MAX_GROUP_BYTES = Option(
    "hoodie.clustering.plan.strategy.max.bytes.per.group",
    2 * 1024 * 1024 * 1024,
    "Most input of one clustering group: what one task reads.",
    unit="bytes",
    minimum=1024,
)
CLUSTERING_MAX_GROUPS = Option(
    "hoodie.clustering.plan.strategy.max.num.groups", 30, "Most clustering groups of one plan.", unit="groups", minimum=1
)
CLUSTERING_SORT_COLUMNS = Option(
    "hoodie.clustering.plan.strategy.sort.columns", "", "Comma list of columns that clustering sorts by; empty keeps the order."
)
CLUSTERING_MIN_INPUT_FILES = Option(
    "tideline.clustering.min.input.files",
    2,
    "A partition is clustered when it has at least this many candidates.",
    unit="files",
    minimum=1,
)
CLUSTERING_YIELDS = Option(
    "tideline.clustering.yields",
    3,
    "How often a clustering of the same file groups may lose against writers before writers have to wait for it.",
    unit="plans",
    minimum=0,
)
CLUSTERING_PRIORITY_LAPSE_S = Option(
    "tideline.clustering.priority.lapse",
    300.0,
    "A clustering that lost so often goes before writers no more, until somebody runs it, once it has been planned or running for this long without "
    "a sign of life; never before its heartbeat may be missed.",
    unit="seconds",
    minimum=0,
)
CLUSTERING_EXPIRATION_MIN = Option(
    "hoodie.clustering.expiration.threshold.mins",
    60,
    "In a shared table: a clustering or compaction that Apache Hudi runs counts as given up when its plan, its heartbeat, its timeline file and its "
    "markers gave no sign of life for this long. Then the clustering is rolled back, the compaction run again.",
    unit="minutes",
    minimum=1,
)
HEARTBEAT_INTERVAL_MS = Option(
    "hoodie.client.heartbeat.interval_in_ms", 60_000, "How often a writer renews its heartbeat.", unit="milliseconds", minimum=100
)
HEARTBEAT_MISSES = Option(
    "hoodie.client.heartbeat.tolerable.misses",
    2,
    "Heartbeats that may be missing before a writer counts as dead.",
    unit="heartbeats",
    minimum=1,
)
WRITE_RETRIES = Option(
    "tideline.write.conflict.retries",
    10,
    "How often a write that lost a conflict is done again on fresh state.",
    unit="attempts",
    minimum=0,
)
CLUSTERING_UPDATE_STRATEGY = Option(
    "tideline.clustering.update.strategy",
    "yield",
    "A write to file groups under a pending clustering: goes ahead, and the clustering yields as often as it may (yield), or conflicts at once, "
    "as RFC-19 has it (reject).",
    choices=("yield", "reject"),
)
INTENT_WAIT_S = Option(
    "tideline.write.intent.wait",
    30.0,
    "How long a write waits for another one that is about to write over the same file groups before it goes ahead beside it; 0 does without "
    "intents.",
    unit="seconds",
    minimum=0,
)
PRIORITY_AFTER = Option(
    "tideline.write.priority.after",
    3,
    "After so many lost conflicts a write locks the file groups that it needs: other writes of them wait. In a table that is shared with Apache "
    "Hudi's writers, who do not wait, those lost to them do not count, and after as many of them in spite of the lock it is over.",
    unit="conflicts",
    minimum=1,
)
PRIORITY_WAIT_S = Option(
    "tideline.write.priority.wait",
    600.0,
    "How long a write waits for another one that lost so often before it goes on beside it; and, over all of its attempts, for clusterings that did "
    "(`tideline.clustering.yields`) before it fails.",
    unit="seconds",
    minimum=0,
)
LOCK_WAIT_S = Option("tideline.lock.wait", 60.0, "How long a commit waits for the table lock.", unit="seconds", minimum=0)
LOCK_UNREACHABLE = Option(
    "tideline.lock.unreachable",
    "wait",
    "What a commit does while the Redis server of the locks does not answer: try again as long as `tideline.lock.wait` says and then fail, fail "
    "at once, or go on with leases and intents in the folder of the table. The last two go with locks on `redis:` or `rediss:` only. A table "
    "that is shared with Apache Hudi's writers has no lock but theirs, whatever this says: it is about intents alone there, and only `storage` goes "
    "on with any.",
    choices=("wait", "fail", "storage"),
)
LOCK_TTL_S = Option("tideline.lock.ttl", 30.0, "Life of the table lock's lease.", unit="seconds", minimum=1)
CHECKPOINT_INTERVAL = Option(
    "tideline.log.checkpoint.interval", 50, "A checkpoint of the table log is written every N entries.", unit="entries", minimum=2
)
LOG_RETAINED_ENTRIES = Option(
    "tideline.log.retained.entries",
    1000,
    "The newest N entries of the table log are kept whatever their age.",
    unit="entries",
    minimum=10,
)
LOG_RETENTION_S = Option(
    "tideline.log.retention",
    7 * 24 * 3600.0,
    "Entries of the table log are kept this long at least: the mirror must have published them by then.",
    unit="seconds",
    minimum=90,  # whoever follows the log relies on the last minute of it (`timeline.log_end`)
)
INSTANT_SKEW_S = Option(
    "tideline.instant.max.skew", 2.0, "How far the table's last instant may lie ahead of the clock.", unit="seconds", minimum=0
)
SPARK_INSERT_PARALLELISM = Option(
    "tideline.spark.insert.parallelism",
    0,
    "Into how many new file groups per partition a DataFrame write spreads its inserts (more where one is full). 0 derives it from Spark's "
    "estimate of the input's size, never more than the cores of the cluster.",
    unit="file groups",
    minimum=0,
)
SPARK_BROADCAST_KEYS = Option(
    "tideline.spark.broadcast.keys",
    500_000,
    "A DataFrame write that looks keys up broadcasts the record keys of a table of at most this many rows; larger ones are joined by a "
    "shuffle.",
    unit="rows",
    minimum=0,
)
SPARK_COLLECT_BYTES = Option(
    "tideline.spark.collect.bytes",
    16 * 1024 * 1024,
    "An upsert, a deletion or a blind insert of a DataFrame that Spark estimates at no more than this goes through the driver: no key of the "
    "table is shuffled or broadcast, and a source is evaluated once however often the write is tried. 0: none does.",
    unit="bytes",
    minimum=0,
)
SCHEMA_EVOLUTION = Option(
    "tideline.write.schema.evolution",
    "refuse",
    "What a write does about columns that the table lacks and types wider than the table's: refuse them, or evolve the table as Apache Hudi's "
    "writers do: new nullable columns at the end, whole numbers to larger, floating or text ones, decimals to wider ones.",
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
    "Nullable columns that the input lacks become null; otherwise such an input is refused (Apache Hudi's default).",
)
READ_OPERATION_FIELD = Option(
    "hoodie.allow.operation.metadata.field",
    False,
    "Rows are read with the meta field _hoodie_operation: what their writer did to them, null where it did not say.",
)

ALL_OPTIONS: tuple[Option[int] | Option[float] | Option[bool] | Option[str], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Option)
)
_BY_KEY = {option.key: option for option in ALL_OPTIONS}


class Options:
    """A checked set of options; everything not given has its default.

    Raises `InvalidOption` for an unknown key (and names the nearest known one) or a value that does not fit.
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
            self._given[key] = option.parse(value)

    def __getitem__(self, option: Option[T]) -> T:
        return cast("T", self._given.get(option.key, option.default))

    def given(self) -> dict[str, str]:
        """What was set explicitly, as text, for shipping to another process."""
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in self._given.items()}

    def merged(self, more: Mapping[str, object]) -> Options:
        """These options with `more` on top."""
        merged = Options(more)
        merged._given = {**self._given, **merged._given}
        return merged


def column_list(text: str) -> tuple[str, ...]:
    """A comma list as column names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
