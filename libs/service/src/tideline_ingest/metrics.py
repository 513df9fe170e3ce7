"""Metrics of `tideline-ingest`."""

from tideline_service.metrics import Counter, Gauge, Histogram

COMMITS = Counter("tideline_ingest_commits_total", unit="commits", doc="Batches committed to the table.")
RECORDS = Counter(
    "tideline_ingest_records_total",
    unit="records",
    doc="Records committed, by kind: row, tombstone, superseded (removed again in the same batch) or dead_letter.",
    labels=("kind",),
)
VALUE_BYTES = Counter("tideline_ingest_value_bytes_total", unit="bytes", doc="Bytes of the values of committed records.")
BATCH_TIME = Histogram(
    "tideline_ingest_batch_seconds", unit="seconds", doc="From the first record of a batch to its commit, waiting included."
)
WRITE_TIME = Histogram("tideline_ingest_write_seconds", unit="seconds", doc="Decoding and writing one batch.")
LAG = Gauge(
    "tideline_ingest_lag_records", unit="records", doc="Records behind the committed offset.", labels=("topic", "partition")
)
MOVED = Counter(
    "tideline_ingest_moved_total",
    unit="batches",
    doc="Batches given up because another instance of this application committed first.",
)
GAPS = Counter(
    "tideline_ingest_gaps_total", unit="partitions", doc="Gaps passed over: records gone from the topic before they were taken in."
)
