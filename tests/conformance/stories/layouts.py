"""Where rows lie: partitioning, key generators, indexes, meta fields."""

from __future__ import annotations

from dataclasses import replace

from tests.conformance.matrix import Kind, Topic
from tests.conformance.stories.life import (
    AVRO_LOGS,
    EVENT_TIME,
    KEYS,
    PARQUET_LOGS,
    run_compaction,
    schedule_clustering,
    schedule_compaction,
)
from tests.conformance.stories.rows import PartOf, trips, two_parts
from tests.conformance.stories.story import Maker, Step, Story

META = frozenset(
    {"_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"}
)
RECORD_KEY = "hoodie.datasource.write.recordkey.field"
PARTITION = "hoodie.datasource.write.partitionpath.field"
HIVE_STYLE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
KEY_GENERATOR = "hoodie.datasource.write.keygenerator.class"
# One key field under the complex key generator: Hudi wants to be told that the table has no keys of another encoding.
OLD_COMPLEX_KEYS = {"hoodie.write.complex.keygen.validation.enable": "false"}
NO_PARTITION = {KEY_GENERATOR: "org.apache.hudi.keygen.NonpartitionedKeyGenerator", PARTITION: ""}


def _steps(part: PartOf = two_parts, spoil: tuple[str, str] | None = None) -> tuple[Step, ...]:
    """Four writes; `part` gives the partition value of a row, `spoil` a column's type that Parquet sources must not have."""
    return (
        Step("bulk insert", Topic.BULK_INSERT, lambda m: m.write(trips(range(10), 5, part), "bulk_insert")),
        Step("upsert", Topic.UPSERT, lambda m: m.write(trips(range(6, 14), 6, part), "upsert")),
        Step("late upsert", Topic.UPSERT, lambda m: m.write(trips(range(4, 8), lambda n: n, part), "upsert")),
        Step("delete", Topic.DELETE, lambda m: m.write(trips([1, 2, 9], 9, part), "delete")),
    )


def _awkward(number: int) -> str | None:
    """Partition values with a slash, a blank, letters of other scripts, an equals sign, a percent sign, nothing."""
    return ("a/b c", "é漢=1", "100%", None, "x:y?")[number % 5]


def _named(number: int) -> str | None:
    """Partition values with a blank, letters of other scripts, nothing."""
    return ("a b", "é漢", None)[number % 3]


def _moved(maker: Maker) -> None:
    """Rows that change their partition under a global index: deleted there, inserted here."""
    maker.write(trips(range(3, 7), 8, lambda n: "p9"), "upsert")


def _both(name: str, options: dict[str, str], steps: tuple[Step, ...], logs: dict[str, str], **fields: object) -> tuple[Story, ...]:
    base = {"hoodie.datasource.write.recordkey.field": "id", "hoodie.datasource.write.precombine.field": "ts", **EVENT_TIME}
    cow = Story(f"cow-{name}", Kind.COW, steps, {**base, **options}, **fields)  # type: ignore[arg-type]
    return (cow, replace(cow, name=f"mor-{name}", kind=Kind.MOR, options={**cow.options, **logs}))


_TIMESTAMP_PARTS = {
    KEY_GENERATOR: "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
    PARTITION: "ts",
    "hoodie.keygen.timebased.timestamp.type": "SCALAR",
    "hoodie.keygen.timebased.timestamp.scalar.time.unit": "days",
    "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
    "hoodie.keygen.timebased.timezone": "UTC",
}
_CUSTOM = {
    KEY_GENERATOR: "org.apache.hudi.keygen.CustomKeyGenerator",
    PARTITION: "part:SIMPLE,quantity:TIMESTAMP",
    "hoodie.keygen.timebased.timestamp.type": "SCALAR",
    "hoodie.keygen.timebased.timestamp.scalar.time.unit": "days",
    "hoodie.keygen.timebased.output.dateformat": "yyyyMM",
    "hoodie.keygen.timebased.timezone": "UTC",
}
# The partition value of a row must not move with its ordering value here.
_SAME_DAY = (
    Step("bulk insert", Topic.BULK_INSERT, lambda m: m.write(trips(range(10), lambda n: n % 3), "bulk_insert")),
    Step("upsert", Topic.UPSERT, lambda m: m.write(trips(range(6, 14), lambda n: n % 3), "upsert")),
    Step("delete", Topic.DELETE, lambda m: m.write(trips([1, 2, 9], lambda n: n % 3), "delete")),
)
_BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.index.bucket.engine": "SIMPLE",
    "hoodie.storage.layout.type": "BUCKET",
    "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
}
# With a bucket index inserts go to log files: slices without a base file.
_LOGS_ONLY = (
    Step("insert", Topic.INSERT, lambda m: m.write(trips(range(10), 5), "upsert")),
    Step("upsert", Topic.UPSERT, lambda m: m.write(trips(range(6, 14), 6), "upsert")),
    Step("delete", Topic.DELETE, lambda m: m.write(trips([1, 2, 9], 9), "delete")),
    Step("compaction scheduled", Topic.COMPACTION, schedule_compaction),
    Step("upsert beside compaction", Topic.COMPACTION, lambda m: m.write(trips(range(12, 20), 7), "upsert")),
    Step("compacted", Topic.COMPACTION, run_compaction),
    Step("clustering scheduled", Topic.CLUSTERING, schedule_clustering),
)
# A sixth meta field says what a write did to the row.
_OPERATIONS = {"hoodie.allow.operation.metadata.field": "true"}
_GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}
_NO_META_FIELDS = {"hoodie.populate.meta.fields": "false"}
_DROPPED = {"hoodie.datasource.write.drop.partition.columns": "true"}
_ONLY_APPENDS = (
    Step("bulk insert", Topic.BULK_INSERT, lambda m: m.write(trips(range(10), 5), "bulk_insert")),
    Step("bulk insert again", Topic.BULK_INSERT, lambda m: m.write(trips(range(10, 14), 5), "bulk_insert")),
)
_DUPLICATES = (
    Step("bulk insert", Topic.BULK_INSERT, lambda m: m.write(trips(range(6), 5), "bulk_insert")),
    Step("insert of the same keys", Topic.INSERT, lambda m: m.write(trips(range(3, 9), 6), "insert")),
    Step("upsert", Topic.UPSERT, lambda m: m.write(trips(range(2, 4), 7), "upsert")),
)


def _archived(maker: Maker) -> None:
    """Enough commits that the oldest leave the active timeline."""
    options = {
        "hoodie_archive_automatic": "true",
        "hoodie_clean_automatic": "true",
        "hoodie_cleaner_commits_retained": "1",
        "hoodie_keep_min_commits": "2",
        "hoodie_keep_max_commits": "3",
    }
    if maker.story.kind is Kind.MOR:
        options |= {"hoodie_compact_inline": "true", "hoodie_compact_inline_max_delta_commits": "2"}
    for number in range(6):
        maker.write(trips([number, 20 + number], 10 + number), "upsert", **options)


_ARCHIVE = (
    Step("bulk insert", Topic.BULK_INSERT, lambda m: m.write(trips(range(10), 5), "bulk_insert")),
    Step("archived and cleaned", Topic.ARCHIVAL, _archived),
)

STORIES = (
    *_both("non-partitioned", NO_PARTITION, _steps(), AVRO_LOGS),
    *_both("hive-two-fields", {**HIVE_STYLE, PARTITION: "part,flag", **OLD_COMPLEX_KEYS}, _steps(), PARQUET_LOGS),
    *_both(
        "url-encoded",
        {**HIVE_STYLE, PARTITION: "part", "hoodie.datasource.write.partitionpath.urlencode": "true"},
        _steps(_awkward),
        AVRO_LOGS,
    ),
    *_both("complex-key", {RECORD_KEY: "id,day", PARTITION: "part"}, _steps(), PARQUET_LOGS),
    *_both("days", _TIMESTAMP_PARTS, _SAME_DAY, AVRO_LOGS, as_text=frozenset({"ts"}), excuse=1),
    *_both("custom-keys", _CUSTOM, (_steps()[0],), AVRO_LOGS),
    *_both("global-index", {PARTITION: "part", **_GLOBAL}, (*_steps(), Step("moved", Topic.UPSERT, _moved)), AVRO_LOGS),
    *_both("duplicates", {PARTITION: "part"}, _DUPLICATES, AVRO_LOGS),
    *_both("dropped-partitions", {PARTITION: "part", **HIVE_STYLE, **_DROPPED}, _steps(_named)[:3], AVRO_LOGS),
    *_both("archive", {PARTITION: "part"}, _ARCHIVE, AVRO_LOGS),
    *_both("no-meta-fields", {PARTITION: "part", **_NO_META_FIELDS}, _ONLY_APPENDS, AVRO_LOGS, key=("id",), ignore=META, excuse=2),
    Story("mor-buckets", Kind.MOR, _LOGS_ONLY, {**KEYS, **EVENT_TIME, **AVRO_LOGS, **_BUCKETS}),
    Story("mor-operations", Kind.MOR, _steps()[:2], {**KEYS, **EVENT_TIME, **AVRO_LOGS, **_OPERATIONS}),
    Story("mor-buckets-parquet", Kind.MOR, _LOGS_ONLY[:3], {**KEYS, **EVENT_TIME, **PARQUET_LOGS, **_BUCKETS}),
)
