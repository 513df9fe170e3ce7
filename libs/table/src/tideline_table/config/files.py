"""Options of files: their sizes and formats, Bloom filters and statistics of columns."""

from __future__ import annotations

from tideline_table.option import Option

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
PARTIAL_UPDATES = Option(
    "hoodie.spark.sql.merge.into.partial.updates",
    False,
    "Updates and merges append the columns that they assign, in place of whole rows, to the log files of a merge-on-read table of "
    "version 8 or 9 that merges by commit time. Others ignore it (docs/design/row-statements.md). Apache Hudi's default is true.",
)
INSERT_TO_LOG = Option(
    "tideline.insert.to.log",
    False,
    "Write the rows that an upsert or insert adds to a merge-on-read table to log files. Small file groups are filled without "
    "rewriting their base files, and new groups begin with a log file until compaction writes their base file. Blind inserts "
    "(without key look-up) open new groups only, and write base files if the input contains a key twice. bulk_insert always writes "
    "base files.",
)
COLUMN_STATISTICS = Option(
    "tideline.column.stats.enable",
    True,
    "Writers and table services record statistics of the columns of each file in the table log; queries use them to leave out "
    "files (docs/design/data-skipping.md).",
)
COLUMN_STATISTICS_LIST = Option(
    "hoodie.metadata.index.column.stats.column.list",
    "",
    "Comma-separated columns with statistics, fields of structs by their dotted paths; empty: the first columns of the table. The "
    "meta fields of commit time, record key and partition path are always among them.",
)
COLUMN_STATISTICS_MOST = Option(
    "hoodie.metadata.index.column.stats.max.columns.to.index",
    32,
    "How many columns have statistics if none are named: the first ones whose type is supported.",
    minimum=1,
)
RECORD_SIZE_ESTIMATE = Option(
    "hoodie.copyonwrite.record.size.estimate",
    256,
    "Assumed bytes per row of a table without files. If it is not given, a sample of the rows is measured.",
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
