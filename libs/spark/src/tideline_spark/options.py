"""Options of DataFrame writes and reads. The engine accepts them once `tideline_spark` is imported."""

from __future__ import annotations

from tideline_table.config import declare_options
from tideline_table.option import Option

SPARK_INSERT_PARALLELISM = Option(
    "tideline.spark.insert.parallelism",
    0,
    "Number of new file groups per partition over which a DataFrame write spreads its inserts; full ones are followed by more. 0 "
    "derives the number from Spark's estimate of the input size, up to the cores of the cluster.",
    unit="file groups",
    minimum=0,
)
SPARK_BROADCAST_KEYS = Option(
    "tideline.spark.broadcast.keys",
    500_000,
    "A DataFrame write that looks up keys broadcasts the record keys of a table of at most this many rows. Larger tables are "
    "joined by a shuffle.",
    unit="rows",
    minimum=0,
)
SPARK_COLLECT_BYTES = Option(
    "tideline.spark.collect.bytes",
    16 * 1024 * 1024,
    "The driver writes an upsert, deletion or blind insert of a DataFrame that Spark estimates at no more than this: no key of the "
    "table is shuffled or broadcast, and the source is evaluated once even if the write is repeated. 0 turns this off.",
    unit="bytes",
    minimum=0,
)
SPARK_SCAN_LOG_BYTES = Option(
    "tideline.spark.scan.log.bytes",
    128 * 1024 * 1024,
    "A snapshot query on Spark leaves base rows of slices with log files to Spark's own scan, as far as their log files together "
    "have at most this size: the positions of rows that these logs replace are broadcast. Python workers read the other slices. 0 "
    "turns this off.",
    unit="bytes",
    minimum=0,
)
SPARK_SCAN_BASE_BYTES = Option(
    "tideline.spark.scan.base.bytes",
    64 * 1024 * 1024,
    "Python workers read slices with log files as a whole if their base files together are smaller than this, because the two "
    "further jobs of the other way cost more than they save.",
    unit="bytes",
    minimum=0,
)
SPARK_SCAN_KEYS_BYTES = Option(
    "tideline.spark.scan.keys.bytes",
    2 * 1024 * 1024 * 1024,
    "The positions that such a query broadcasts come from a job that reads the record keys of base files. It reads base files of "
    "this size for each core of the cluster, in proportion less or more if `spark.sql.broadcastTimeout` is not 300 s, because "
    "Spark fails a query whose broadcast takes longer. Python workers read the other slices as a whole.",
    unit="bytes",
    minimum=0,
)
SPARK_BUCKET_MEMORY_BYTES = Option(
    "tideline.spark.bucket.memory.bytes",
    512 * 1024 * 1024,
    "A task of `bucket_join` holds the columns that the query needs of the smaller side of one bucket in memory, at most this size "
    "as Arrow arrays, and a task of `bucket_aggregate` the groups of one bucket. A larger one fails the query by name. Tables are "
    "read in portions of an eighth of it.",
    unit="bytes",
    minimum=1024,
)
SPARK_OPTIONS = (
    SPARK_INSERT_PARALLELISM,
    SPARK_BROADCAST_KEYS,
    SPARK_COLLECT_BYTES,
    SPARK_SCAN_LOG_BYTES,
    SPARK_SCAN_BASE_BYTES,
    SPARK_SCAN_KEYS_BYTES,
    SPARK_BUCKET_MEMORY_BYTES,
)

declare_options(*SPARK_OPTIONS)
