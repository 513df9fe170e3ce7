"""Metrics of the mirror."""

from tideline_runtime.metrics import Counter, Gauge, Histogram

ENTRIES = Counter("tideline_mirror_entries_total", unit="entries", doc="Table log entries published as events.", labels=("table",))
NAMES = Gauge(
    "tideline_mirror_table_info",
    unit="boolean",
    doc="1 for each table of which this mirror has published something: its uid, which other metrics have, and its name.",
    labels=("table", "name"),
)
HEALED = Counter(
    "tideline_mirror_healed_total",
    unit="entries",
    doc="Log entries whose timeline files the mirror created because the writer had not.",
)
LAG = Histogram("tideline_mirror_lag_seconds", unit="seconds", doc="Time from the append of a log entry to its publication.")
BEHIND = Gauge(
    "tideline_mirror_behind_seconds",
    unit="seconds",
    doc="Age of the oldest log entry that the mirror read and has not published. It grows while the event log does not answer.",
)
BACKLOG = Gauge(
    "tideline_mirror_backlog_entries",
    unit="entries",
    doc="Log entries that are not published, as of the last visit of each table.",
)
DELETED = Counter("tideline_mirror_deleted_total", unit="tables", doc="Tables that the mirror removed from the event log.")
