"""Metrics of the mirror."""

from tideline_runtime.metrics import Counter, Histogram

ENTRIES = Counter("tideline_mirror_entries_total", unit="entries", doc="Table log entries published as events.", labels=("table",))
HEALED = Counter(
    "tideline_mirror_healed_total",
    unit="entries",
    doc="Log entries whose timeline files the mirror created because the writer had not.",
)
LAG = Histogram("tideline_mirror_lag_seconds", unit="seconds", doc="Time from the append of a log entry to its publication.")
