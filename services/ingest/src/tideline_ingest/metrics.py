"""Metrics of `tideline-ingest`."""

from tideline_runtime.metrics import Counter, Gauge, Histogram

COMMITS = Counter("tideline_ingest_commits_total", unit="commits", doc="Batches committed to the table.")
RECORDS = Counter(
    "tideline_ingest_records_total",
    unit="records",
    doc="Records committed, by kind: row, tombstone (a deletion), superseded (removed again in the same batch) or dead_letter.",
    labels=("kind",),
)
VALUE_BYTES = Counter("tideline_ingest_value_bytes_total", unit="bytes", doc="Bytes of the values of committed records.")
BATCH_TIME = Histogram(
    "tideline_ingest_batch_seconds", unit="seconds", doc="Time from the first record of a batch to its commit, including waits."
)
WRITE_TIME = Histogram("tideline_ingest_write_seconds", unit="seconds", doc="Time to decode and write one batch.")
LAG = Gauge("tideline_ingest_lag_records", unit="records", doc="Records after the committed offset.", labels=("topic", "partition"))
MOVED = Counter(
    "tideline_ingest_moved_total",
    unit="batches",
    doc="Batches abandoned because another instance of this application committed first.",
)
GAPS = Counter(
    "tideline_ingest_gaps_total",
    unit="partitions",
    doc="Gaps that were skipped: records that left the topic before they were ingested.",
)
TABLES = Gauge(
    "tideline_ingest_tables",
    unit="tables",
    doc="Tables of a process with several, by state: running, or set_aside after an error until it is tried again.",
    labels=("state",),
)
