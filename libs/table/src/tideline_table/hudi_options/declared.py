"""Apache Hudi's options and what Tideline does with each: the one list behind the parser and docs/hudi-options.md.

Options of the engine that have Hudi's names are in docs/options.md and are not repeated here.
"""

from __future__ import annotations

from tideline_table.config import (
    BUCKET_ENGINE,
    BUCKET_HASH_FIELD,
    BUCKET_NUMBER,
    BUCKET_PARTITION_RULE_TYPE,
    BUCKET_PARTITION_RULES,
    INDEX_TYPE,
)
from tideline_table.hudi.merge_rules import MERGE_RULES
from tideline_table.hudi_options.ignored import IGNORED_OPTIONS
from tideline_table.hudi_options.option import READ, WRITE, Effect, HudiOption

_PAYLOADS = ", ".join(f"`{rule.payload_class.rpartition('.')[2]}`" for rule in MERGE_RULES)
_TRUE, _FALSE = ("true",), ("false",)


def _table(key: str, target: str, meaning: str, *older: str) -> HudiOption:
    return HudiOption(key, Effect.TABLE, meaning, target, older)


def _index(key: str, target: str, meaning: str, **values: str) -> HudiOption:
    return HudiOption(key, Effect.INDEX, meaning, target, values=values)


def _fixed(key: str, only: tuple[str, ...], meaning: str, *older: str) -> HudiOption:
    return HudiOption(key, Effect.FIXED, meaning, older=older, only=only)


TABLE_OPTIONS = (
    _table("hoodie.table.name", "name", "The table's name. Default: the last part of the path.", WRITE + "table.name"),
    _table("hoodie.database.name", "database", "The database that the table's properties name."),
    _table(
        WRITE + "recordkey.field",
        "key",
        "Columns of the record key. Without it keys are made up.",
        "hoodie.table.recordkey.fields",
    ),
    _table(
        WRITE + "partitionpath.field",
        "partition",
        "Columns of the partition path; `column:SIMPLE` or `column:TIMESTAMP` with `CustomKeyGenerator`. Default: those of "
        "`partitionBy`.",
        "hoodie.table.partition.fields",
    ),
    _table(
        WRITE + "precombine.field",
        "ordering",
        "Of two versions of a row, the one with the larger value in this column wins. Several columns (`a,b`) in tables of version "
        "9: the first one that differs decides.",
        "hoodie.table.precombine.field",
        "hoodie.table.ordering.fields",
    ),
    _table(
        WRITE + "table.type", "type", "`COPY_ON_WRITE` (default) or `MERGE_ON_READ`.", "hoodie.table.type", WRITE + "storage.type"
    ),
    _table(
        WRITE + "keygenerator.class",
        "key_generator",
        "`SimpleKeyGenerator`, `ComplexKeyGenerator`, `NonpartitionedKeyGenerator`, `TimestampBasedKeyGenerator`, "
        "`CustomKeyGenerator`, or their types. Other classes are refused: this engine cannot run them.",
        WRITE + "keygenerator.type",
        "hoodie.table.keygenerator.class",
        "hoodie.table.keygenerator.type",
    ),
    _table(
        "hoodie.keygen.timebased.*",
        "key_settings",
        "Settings of time-based partition paths.",
        "hoodie.deltastreamer.keygen.timebased.*",
        "hoodie.streamer.keygen.timebased.*",
    ),
    _table(WRITE + "keygenerator.consistent.logical.timestamp.enabled", "key_settings", "Timestamps in record keys are texts."),
    _table("hoodie.write.complex.keygen.new.encoding", "key_settings", "A complex key of one column holds its value only."),
    _table(WRITE + "hive_style_partitioning", "hive_style", "Partition folders are named `column=value`."),
    _table(WRITE + "partitionpath.urlencode", "url_encode", "Special characters in partition folders are escaped."),
    _table(
        "hoodie.table.base.file.format",
        "base_format",
        "`PARQUET` (default) or `ORC` ([types](types.md)).",
        "hoodie.base.file.format",
    ),
    _table(
        "hoodie.table.cdc.enabled",
        "changes",
        "Writes leave change files for Apache Hudi's queries of changes. Tideline's own (read option `changes`) need none.",
    ),
    _table(
        "hoodie.table.cdc.supplemental.logging.mode",
        "changes_mode",
        "`DATA_BEFORE_AFTER` (default), `DATA_BEFORE` or `OP_KEY_ONLY`: what change files say.",
    ),
    _table("hoodie.populate.meta.fields", "meta_fields", "Rows have the meta fields of Hudi."),
    _table(
        "hoodie.write.table.version",
        "version",
        "6, 8 or 9: the version of the table that is created. Default: 6. An existing table keeps its version.",
        "hoodie.table.version",
    ),
    _table(
        WRITE + "payload.class",
        "merging",
        f"How two versions of a row become one ([merge rules](merging.md)): {_PAYLOADS}. An existing table has to declare what is "
        "named. Other classes are refused: their code cannot run here.",
        "hoodie.compaction.payload.class",
        "hoodie.table.payload.class",
    ),
    _table(
        "hoodie.write.record.merge.mode",
        "merging",
        "`EVENT_TIME_ORDERING` (needs a precombine column), `COMMIT_TIME_ORDERING`; `CUSTOM` beside a payload class.",
        "hoodie.record.merge.mode",
    ),
)
INDEX_OPTIONS = (
    _index(
        INDEX_TYPE.key,
        "index",
        "`BUCKET` (also by the name `BUCKET_HASH_INDEX`) and `RECORD_INDEX` are kept with the table that is created. The others "
        "are each writer's choice, as in Hudi.",
        bucket_hash_index="BUCKET",
        global_record_level_index="RECORD_INDEX",
    ),
    _index(BUCKET_NUMBER.key, "buckets", "Buckets in each partition. Default with `BUCKET`: 256, as Hudi's."),
    _index(
        BUCKET_ENGINE.key,
        "bucket_engine",
        "`SIMPLE`, or `CONSISTENT_HASHING` for merge-on-read tables.",
        consistent="CONSISTENT_HASHING",
    ),
    _index(BUCKET_HASH_FIELD.key, "hash_fields", "Columns of the record key that decide the bucket."),
    _index(BUCKET_PARTITION_RULES.key, "partition_buckets", "Numbers of buckets by partition."),
    _index(BUCKET_PARTITION_RULE_TYPE.key, "rule_type", "`regex`, the only one."),
)
WRITE_OPTIONS = (
    HudiOption(
        WRITE + "operation",
        Effect.WRITE,
        "What the write does. Default: `upsert`.",
        "operation",
        only=("upsert", "insert", "bulk_insert", "delete", "insert_overwrite", "insert_overwrite_table", "delete_partition"),
    ),
    HudiOption(
        WRITE + "partitions.to.delete",
        Effect.WRITE,
        "With `delete_partition`: partition paths, separated by commas, `*` for any text. Default: those of the rows.",
        "partitions",
    ),
    HudiOption(
        WRITE + "insert.drop.duplicates",
        Effect.WRITE,
        "`true`: inserts drop rows whose key the table has; an upsert becomes an insert.",
        "drop_duplicates",
        only=("true", "false"),
    ),
)
READ_OPTIONS = (
    HudiOption(
        "hoodie.datasource.query.type",
        Effect.READ,
        "`incremental` reads rows written after the begin instant, `read_optimized` base files only.",
        "query_type",
        ("hoodie.datasource.view.type",),
        ("snapshot", "incremental", "read_optimized"),
    ),
    HudiOption("as.of.instant", Effect.READ, "The table as of this instant, date or time.", "as_of"),
    HudiOption(
        READ + "begin.instanttime",
        Effect.READ,
        "Incremental queries: the instant after which rows were written; `000` or `earliest`: all. Needed.",
        "since",
    ),
    HudiOption(READ + "end.instanttime", Effect.READ, "Incremental queries: the last instant. Default: the newest.", "until"),
)
FIXED_OPTIONS = (
    _fixed(
        "hoodie.datasource.query.incremental.format", ("latest_state",), "For changes with images use the read option `changes`."
    ),
    _fixed("hoodie.datasource.merge.type", ("payload_combine",), "Readers always merge log files.", "hoodie.realtime.merge.type"),
    _fixed(READ + "extract.partition.values.from.path", _FALSE, "Rows hold the partition columns as they were written."),
    _fixed(READ + "schema.use.end.instanttime", _FALSE, "Rows of incremental queries have the newest schema; select columns."),
    _fixed(
        READ + "handle.hollow.commit",
        ("fail", "block"),
        "The points of incremental queries are instants, not times of completion.",
        "hoodie.read.timeline.holes.resolution.policy",
    ),
    _fixed(WRITE + "drop.partition.columns", _FALSE, "Files keep the partition columns; use hive-style folders for other readers."),
    _fixed("hoodie.table.log.file.format", ("hoodie_log",), "The log format of Hudi."),
    _fixed("hoodie.errortable.enable", _FALSE, "A row that does not fit fails the write; filter rows before it."),
    _fixed("hoodie.combine.before.delete", _TRUE, "A key is deleted once."),
    _fixed(
        WRITE + "schema.allow.auto.evolution.column.drop",
        _FALSE,
        "Columns are never dropped by a write; see `hoodie.write.set.null.for.missing.columns` for rows that lack columns.",
    ),
    _fixed("hoodie.auto.commit", _TRUE, "A write is one commit."),
    _fixed(
        "hoodie.partition.ttl.inline",
        _FALSE,
        "The cleaner does it by the policy file (`hoodie.partition.ttl.strategy.days.retain`), or `tideline expire`.",
        "hoodie.partition.ttl.automatic",
    ),
    _fixed(
        "hoodie.merge.allow.duplicate.on.inserts", _TRUE, "Inserts look up no keys; `hoodie.datasource.insert.dup.policy` does."
    ),
    _fixed(
        "hoodie.datasource.write.ignore.failed.batch",
        _FALSE,
        "A failed batch ends the stream; start it again.",
        "hoodie.datasource.write.streaming.ignore.failed.batch",
    ),
)
REFUSED_OPTIONS = tuple(
    HudiOption(key, Effect.REFUSED, instead)
    for key, instead in {
        READ + "incr.filters": "Filter the DataFrame: .where(…)",
        READ + "incr.path.glob": "Filter the DataFrame by _hoodie_partition_path",
        READ + "paths": "Read one table by its base path",
        "hoodie.datasource.write.record.merger.*": "Leave it out: the precombine column decides, or the later write wins",
        "hoodie.write.record.merge.custom.*": "Leave it out: merge code of Java cannot run here",
        "hoodie.record.merge.strategy.id": "Leave it out: merge code of Java cannot run here",
        "hoodie.write.record.merge.strategy.id": "Leave it out: merge code of Java cannot run here",
        "hoodie.write.schema": "Leave it out, or cast the DataFrame: its columns are the schema",
        "hoodie.write.partial.update.*": "Write whole rows",
        "hoodie.bootstrap.*": "Let Apache Hudi bootstrap the table, or write its rows here",
        "hoodie.datasource.write.transformer.*": "Transform the DataFrame before the write",
        "hoodie.bulkinsert.user.defined.partitioner.class": "hoodie.bulkinsert.user.defined.partitioner.sort.columns sorts rows",
        "hoodie.precommit.validators*": "Check the rows before the write: validators of Java cannot run here",
        "hoodie.index.class": "hoodie.index.type names an index",
    }.items()
)
HUDI_OPTIONS = (*TABLE_OPTIONS, *INDEX_OPTIONS, *WRITE_OPTIONS, *READ_OPTIONS, *FIXED_OPTIONS, *REFUSED_OPTIONS, *IGNORED_OPTIONS)
_EXACT = {key: option for option in HUDI_OPTIONS for key in (option.key, *option.older) if "*" not in key}
_PATTERNS = tuple(option for option in HUDI_OPTIONS if any("*" in key for key in (option.key, *option.older)))


def named(key: str) -> HudiOption | None:
    """Return the option that spells out `key`, None for none."""
    return _EXACT.get(key)


def matching(key: str) -> HudiOption | None:
    """Return the option with a pattern that fits `key`, None for none."""
    return next((option for option in _PATTERNS if option.fits(key)), None)
