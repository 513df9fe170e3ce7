"""Options of Apache Hudi that change no rows here, and why each has no effect."""

from __future__ import annotations

from tideline_table.hudi_options.option import Effect, HudiOption


def _ignored(because: str, keys: str) -> tuple[HudiOption, ...]:
    """Return the options with these keys, which are given without the beginning `hoodie.`."""
    return tuple(HudiOption(f"hoodie.{key}", Effect.IGNORED, because) for key in keys.split())


IGNORED_OPTIONS = (
    *_ignored(
        "parallelism and memory are Spark's and the engine's own",
        "*.parallelism *.parallelism.* memory.* *.storage.level *.use.caching common.spillable.* common.diskmap.* "
        "write.buffer.* write.executor.* write.handle.* copyonwrite.insert.* bloom.index.keys.per.bucket "
        "bloom.index.bucketized.checking bloom.index.use.metadata bloom.index.prune.by.ranges "
        "bloom.index.use.treebased.filter bloom.index.input.storage.level simple.index.* global.simple.index.* "
        "record.index.* datasource.write.row.writer.enable embed.timeline.server embed.timeline.server.* filesystem.* "
        "storage.layout.* markers.* write.markers.* consistency.check.enabled fs.* optimized.log.blocks.scan.enable "
        "client.init.* timeline.* datasource.overwrite.mode datasource.write.streaming.* "
        "datasource.write.commitmeta.key.prefix spark.* base.path avro.schema* allow.empty.commit errortable.* "
        "fail.job.on.duplicate.data.file.detection partition.metafile.use.base.format table.timeline.timezone "
        "write.status.* skip.default.partition.validation avro.write.support.class merge.data.* merge.small.file.* "
        "merge.use.* merge.handle.*",
    ),
    *_ignored(
        "the engine sizes row groups, pages and blocks",
        "parquet.block.size parquet.page.size parquet.compression.ratio parquet.dictionary.enabled "
        "parquet.writelegacyformat.enabled parquet.outputtimestamptype parquet.field_id.write.enabled logfile.max.size "
        "logfile.to.parquet.compression.ratio logfile.data.block.* hfile.* orc.*",
    ),
    *_ignored(
        "the table log decides between writers; see docs/conflicts.md",
        "write.lock.* write.num.retries.on.conflict.failures write.conflict.* write.concurrency.* "
        "clean.failed.writes.policy cleaner.policy.failed.writes rollback.* rollback.using.markers",
    ),
    *_ignored(
        "table services plan and run by their own policy (docs/policies.md)",
        "clean.* cleaner.* archive.* commits.archival.* compact.* compaction.* clustering.* layout.optimize.* "
        "log.compaction.* datasource.compaction.async.enable datasource.clustering.* table.services.enabled "
        "partition.ttl.*",
    ),
    *_ignored(
        "a write syncs no catalog: sync it after the write",
        "datasource.hive_sync.* datasource.meta.sync.* datasource.meta_sync.* meta.sync.* meta_sync.* gcp.bigquery.sync.* "
        "aws.* datahub.*",
    ),
    *_ignored(
        "the metadata table is made by `tideline metadata create` and kept by every commit",
        "metadata.* expression.index.* secondary.index.* index.name datasource.write.secondarykey.column",
    ),
    *_ignored(
        "services publish metrics and events (docs/metrics.md, docs/webhooks.md)",
        "metrics.* write.commit.callback.*",
    ),
    *_ignored(
        "a write never changes the version of a table",
        "write.auto.upgrade",
    ),
    *_ignored(
        "readers always skip files and columns that a query does not need",
        "enable.data.skipping file.index.enable file.group.reader.enabled schema.on.read.enable "
        "datasource.read.file.index.* datasource.read.incr.fallback.fulltablescan.enable datasource.read.*.table.version "
        "read.* datasource.streaming.*",
    ),
)
