"""Metrics of the mirror."""

from tideline_service.metrics import Counter, Histogram

ENTRIES = Counter("tideline_mirror_entries_total", unit="entries", doc="Table log entries published as events.", labels=("table",))
HEALED = Counter(
    "tideline_mirror_healed_total", unit="entries", doc="Log heads whose timeline files had to be created by the mirror."
)
LAG = Histogram("tideline_mirror_lag_seconds", unit="seconds", doc="From the append of a log entry to its publication.")
