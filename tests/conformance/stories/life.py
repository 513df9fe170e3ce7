"""The life of a table: every operation of the matrix in turn, and what a crash or a restore leaves behind."""

from __future__ import annotations

from tests.conformance.matrix import Kind, Topic
from tests.conformance.peers.apache_hudi import PeerFailed
from tests.conformance.stories.rows import marked_deleted, trips
from tests.conformance.stories.story import Maker, Step, Story

KEYS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.datasource.write.precombine.field": "ts",
}
EVENT_TIME = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload"}
COMMIT_TIME = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"}
AVRO_LOGS = {"hoodie.logfile.data.block.format": "avro"}
PARQUET_LOGS = {"hoodie.logfile.data.block.format": "parquet"}


def schedule_compaction(maker: Maker) -> None:
    maker.sql(
        "call run_compaction(op => 'schedule', path => '{base}', options => 'hoodie.compact.inline.max.delta.commits=1,"
        f"hoodie.metadata.enable={str(maker.story.metadata).lower()}')"
    )


def run_compaction(maker: Maker) -> None:
    maker.sql("call run_compaction(op => 'run', path => '{base}')")


def schedule_clustering(maker: Maker) -> None:
    maker.sql("call run_clustering(path => '{base}', op => 'schedule', order => 'price')")


def run_clustering(maker: Maker) -> None:
    maker.sql("call run_clustering(path => '{base}', op => 'execute')")


def clean(maker: Maker) -> None:
    maker.in_catalog()
    maker.sql("call run_clean(table => '{table}', retain_commits => 1, clean_policy => 'KEEP_LATEST_COMMITS')")


def failed_bulk_insert(maker: Maker) -> None:
    """A write whose last row fails: base files and markers are left, the instant stays inflight."""
    spoiled = {"quantity": "if(id = 'k0069', cast(raise_error('spoiled') as int), quantity)"}
    options = {**maker.options, "hoodie.datasource.write.operation": "bulk_insert", "hoodie.bulkinsert.sort.mode": "NONE"}
    try:
        maker.hudi.write(maker.base, trips(range(60, 70), 5), options, metadata=maker.story.metadata, computed=spoiled)
    except PeerFailed as error:
        if "spoiled" not in str(error):
            raise
        return
    raise PeerFailed("AssertionError", "the spoiled write did not fail")


def crashed_upsert(maker: Maker) -> None:
    """A write that died right before its commit point: all its files are there, its completed file is not."""
    maker.write(trips(range(2, 8), 90), "upsert")
    last = maker.timeline()[-1]
    timeline = maker.base / ".hoodie" / ("" if maker.story.version < 8 else "timeline")
    for path in timeline.glob(f"*{last.instant}*.{last.action}*"):
        if path.name.removesuffix(".crc").endswith(last.action):
            path.unlink()


def roll_back_crashed(maker: Maker) -> None:
    """The next writer rolls back what died; without markers Hudi finds the files by listing."""
    maker.write(trips(range(70, 72), 5), "upsert", hoodie_rollback_using_markers="false")


def undo_last_commit(maker: Maker) -> None:
    """A completed write is rolled back on request."""
    maker.write(trips(range(2, 12), 91), "upsert")
    last = maker.timeline()[-1].instant
    if not maker.hudi.roll_back(maker.base, maker.table_name, last, maker.settings):
        raise PeerFailed("AssertionError", f"{last} was not rolled back")


def savepoint(maker: Maker) -> None:
    maker.in_catalog()
    instant = maker.instants("commit", "deltacommit", "replacecommit")[-1]
    maker.sql(f"call create_savepoint(table => '{{table}}', commit_time => '{instant}')")


def restore(maker: Maker) -> None:
    instant = maker.instants("savepoint")[-1]
    maker.hudi.restore(maker.base, maker.table_name, instant, maker.settings)


def delete_partition(maker: Maker) -> None:
    maker.write(trips([0], 1), "delete_partition", hoodie_datasource_write_partitions_to_delete="p1")


DATA = (
    Step("bulk insert", Topic.BULK_INSERT, lambda m: m.write(trips(range(12), 5), "bulk_insert")),
    Step("insert", Topic.INSERT, lambda m: m.write(trips(range(12, 20), 5), "insert")),
    Step("upsert", Topic.UPSERT, lambda m: m.write(trips(range(8, 24), 7), "upsert")),
    # 8 and 9 come late, 10 and 11 tie, 12 and 13 are new versions.
    Step("late upsert", Topic.UPSERT, lambda m: m.write(trips(range(8, 14), lambda n: 6 + (n - 8) // 2), "upsert")),
    Step("delete", Topic.DELETE, lambda m: m.write(trips([0, 1, 2, 15], 9), "delete")),
    Step("soft delete", Topic.DELETE, lambda m: m.write(marked_deleted(trips([3, 4, 16], 9)), "upsert")),
    Step("deleted again inserted", Topic.UPSERT, lambda m: m.write(trips([0, 3, 16], 10), "upsert")),
)
COMPACTION = (
    Step("compaction scheduled", Topic.COMPACTION, schedule_compaction),
    Step("upsert beside compaction", Topic.COMPACTION, lambda m: m.write(trips(range(6, 10), 12), "upsert")),
    Step("delete beside compaction", Topic.COMPACTION, lambda m: m.write(trips([10], 12), "delete")),
    Step("compacted", Topic.COMPACTION, run_compaction),
    Step("upsert after compaction", Topic.COMPACTION, lambda m: m.write(trips(range(5, 8), 13), "upsert")),
)
CLUSTERING = (
    Step("clustering scheduled", Topic.CLUSTERING, schedule_clustering),
    Step("insert beside clustering", Topic.CLUSTERING, lambda m: m.write(trips(range(30, 36), 5), "bulk_insert")),
    Step("clustered", Topic.CLUSTERING, run_clustering),
    Step("upsert after clustering", Topic.CLUSTERING, lambda m: m.write(trips(range(18, 32), 14), "upsert")),
)
OVERWRITE = (
    Step("insert overwrite", Topic.INSERT_OVERWRITE, lambda m: m.write(trips([40, 42], 5), "insert_overwrite")),
    Step("upsert after overwrite", Topic.INSERT_OVERWRITE, lambda m: m.write(trips([19, 42, 43], 6), "upsert")),
)
MISHAPS = (
    Step("first rows", Topic.BULK_INSERT, lambda m: m.write(trips(range(12), 5), "bulk_insert")),
    Step("second rows", Topic.UPSERT, lambda m: m.write(trips(range(6, 16), 6), "upsert")),
    Step("failed write", Topic.ROLLBACK, failed_bulk_insert),
    Step("failed write rolled back", Topic.ROLLBACK, lambda m: m.write(trips([50, 51], 5), "upsert")),
    Step("crashed write", Topic.ROLLBACK, crashed_upsert),
    Step("crashed write rolled back", Topic.ROLLBACK, roll_back_crashed),
    Step("commit undone", Topic.ROLLBACK, undo_last_commit),
    Step("upsert after undoing", Topic.ROLLBACK, lambda m: m.write(trips([3, 4], 92), "upsert")),
    Step("cleaned", Topic.CLEAN, clean),
    Step("savepoint", Topic.SAVEPOINT, savepoint),
    Step("upsert after savepoint", Topic.SAVEPOINT, lambda m: m.write(trips(range(3, 9), 93), "upsert")),
    Step("delete after savepoint", Topic.SAVEPOINT, lambda m: m.write(trips([9, 10], 93), "delete")),
    Step("restored", Topic.SAVEPOINT, restore),
    Step("upsert after restore", Topic.SAVEPOINT, lambda m: m.write(trips([4, 5], 94), "upsert")),
    Step("delete partition", Topic.INSERT_OVERWRITE, delete_partition),
    Step("written again", Topic.INSERT_OVERWRITE, lambda m: m.write(trips([5, 6], 95), "insert")),
    Step("overwrite table", Topic.INSERT_OVERWRITE, lambda m: m.write(trips([2, 80], 5), "insert_overwrite_table")),
)

_BY_NAME = {step.name: step for step in (*DATA, *COMPACTION, *CLUSTERING, *OVERWRITE)}
CORE = tuple(_BY_NAME[name] for name in ("bulk insert", "upsert", "late upsert", "delete", "soft delete"))
PENDING = tuple(_BY_NAME[name] for name in ("compaction scheduled", "upsert beside compaction", "compacted"))
CRASHES = tuple(
    step
    for step in MISHAPS
    if step.name
    in ("first rows", "second rows", "crashed write", "crashed write rolled back", "commit undone", "upsert after undoing")
)

STORIES = (
    Story("cow-life", Kind.COW, (*DATA, *CLUSTERING, *OVERWRITE), {**KEYS, **EVENT_TIME}, travels=True),
    Story("mor-life", Kind.MOR, (*DATA, *COMPACTION, *CLUSTERING, *OVERWRITE), {**KEYS, **EVENT_TIME, **AVRO_LOGS}, travels=True),
    Story("mor-parquet", Kind.MOR, (*CORE, *COMPACTION), {**KEYS, **EVENT_TIME, **PARQUET_LOGS}),
    Story("cow-mishaps", Kind.COW, MISHAPS, {**KEYS, **EVENT_TIME}),
    Story("mor-mishaps", Kind.MOR, MISHAPS, {**KEYS, **EVENT_TIME, **AVRO_LOGS}),
    Story("cow-commit-time", Kind.COW, CORE, {**KEYS, **COMMIT_TIME}, metadata=True),
    Story("mor-commit-time", Kind.MOR, (*CORE, *PENDING), {**KEYS, **COMMIT_TIME, **PARQUET_LOGS}, metadata=True),
    Story("cow-version-8", Kind.COW, (*CORE, *CLUSTERING), KEYS, version=8),
    Story("cow-version-9", Kind.COW, (*CORE, *OVERWRITE), KEYS, version=9, metadata=True),
    Story("mor-version-8", Kind.MOR, (*CORE, *PENDING), {**KEYS, **PARQUET_LOGS}, version=8),
    Story("mor-version-9", Kind.MOR, (*CORE, *PENDING, *CLUSTERING), {**KEYS, **AVRO_LOGS}, version=9, metadata=True),
    Story("mor-crashes-9", Kind.MOR, CRASHES, {**KEYS, **AVRO_LOGS}, version=9),
)
