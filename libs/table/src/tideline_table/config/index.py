"""Options of indexes and the metadata table."""

from __future__ import annotations

from tideline_table.option import Option

METADATA_ENABLE = Option(
    "hoodie.metadata.enable",
    False,
    "`tideline.create` makes a metadata table with the new table (docs/design/metadata-table.md). For existing tables: `tideline "
    "metadata create`.",
)
METADATA_COMPACTION_DELTA_COMMITS = Option(
    "hoodie.metadata.compact.max.delta.commits",
    10,
    "The metadata table is compacted after this many delta commits. The value at its creation counts; in a table of version 8 or 9 "
    "that Apache Hudi also writes, that of each writer.",
    minimum=1,
)
METADATA_COLUMN_STATISTICS = Option(
    "hoodie.metadata.index.column.stats.enable",
    False,
    "`tideline.create` makes a metadata table with column statistics with the new table, for Apache Hudi's readers. For existing "
    "tables: `tideline metadata create --type column_stats`.",
)
SHARED_METADATA = Option(
    "tideline.shared.metadata",
    "off",
    "What Tideline's writers do with the metadata table of a table that Apache Hudi also writes: turn it off, or keep the "
    "partitions in this comma-separated list if the table is copy-on-write, or of version 8 or 9. `files` is always one of them. "
    "All of Tideline's writers of a table need the same value (docs/design/shared-metadata.md).",
    choices=("off", "files", "column_stats", "partition_stats", "bloom_filters", "record_index"),
    is_list=True,
)
INDEX_TYPE = Option(
    "hoodie.index.type",
    "SIMPLE",
    "Scope in which a record key is unique: its partition (SIMPLE, BLOOM) or the table (GLOBAL_SIMPLE, GLOBAL_BLOOM, "
    "RECORD_INDEX). With a global type, operations that look up keys search all partitions. SIMPLE reads the key columns of the "
    "base files whose key ranges fit, BLOOM only those whose Bloom filters may hold a key; both find the same rows. RECORD_INDEX "
    "asks the record index of the metadata table, and reads no data file. Hudi does not store the type with the table, so all "
    "writers of a table must set the same scope. A table that was created with an index (`tideline create --index "
    "bucket|bloom|global_bloom|record_index`) keeps it; writers of such a table need not set it.",
    choices=("SIMPLE", "GLOBAL_SIMPLE", "BLOOM", "GLOBAL_BLOOM", "RECORD_INDEX", "BUCKET"),
)
BUCKET_NUMBER = Option(
    "hoodie.bucket.index.num.buckets",
    0,
    "Number of buckets in each partition of a table with a bucket index. The table keeps it, and a writer that sets another number "
    "is refused; 0 stands for the table's.",
    unit="buckets",
    minimum=0,
)
BUCKET_PARTITION_RULES = Option(
    "hoodie.bucket.index.partition.expressions",
    "",
    "Numbers of buckets by partition path, `regex,n;regex,n`: the first regular expression that is found in the path decides, "
    "otherwise `hoodie.bucket.index.num.buckets`. The table keeps them, and a writer that sets others is refused.",
)
BUCKET_PARTITION_RULE_TYPE = Option(
    "hoodie.bucket.index.partition.rule.type",
    "regex",
    "How `hoodie.bucket.index.partition.expressions` are read. Apache Hudi has one way.",
    choices=("regex",),
)
BUCKET_ENGINE = Option(
    "hoodie.index.bucket.engine",
    "SIMPLE",
    "How a table with a bucket index assigns rows to buckets: by a fixed number (SIMPLE), or by a hash ring for each partition "
    "(CONSISTENT_HASHING, merge-on-read only). The table keeps it, and a writer that names another one is refused.",
    choices=("SIMPLE", "CONSISTENT_HASHING"),
)
BUCKET_MOST = Option(
    "hoodie.bucket.index.max.num.buckets",
    0,
    "With consistent hashing: `resize-buckets` splits buckets up to this number in a partition. 0, or less than the number of "
    "the table's creation, stands for that number.",
    unit="buckets",
    minimum=0,
)
BUCKET_LEAST = Option(
    "hoodie.bucket.index.min.num.buckets",
    0,
    "With consistent hashing: `resize-buckets` merges buckets down to this number in a partition. 0, or more than the number of "
    "the table's creation, stands for that number.",
    unit="buckets",
    minimum=0,
)
BUCKET_SPLIT_THRESHOLD = Option(
    "hoodie.bucket.index.split.threshold",
    2.0,
    "With consistent hashing: a bucket with more bytes than `hoodie.parquet.max.file.size` times this is split.",
    minimum=0.0,
)
BUCKET_MERGE_THRESHOLD = Option(
    "hoodie.bucket.index.merge.threshold",
    0.2,
    "With consistent hashing: neighbours with no more bytes than `hoodie.parquet.max.file.size` times this are merged.",
    minimum=0.0,
)
BUCKET_HASH_FIELD = Option(
    "hoodie.bucket.index.hash.field",
    "",
    "Comma-separated columns of the record key that decide the bucket. The table keeps them, and a writer that sets others is "
    "refused.",
)
SIMPLE_INDEX_UPDATE_PARTITION_PATH = Option(
    "hoodie.simple.index.update.partition.path",
    True,
    "With GLOBAL_SIMPLE, move a row whose key is in another partition: delete it there and insert it in its own partition, in "
    "one commit. "
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
