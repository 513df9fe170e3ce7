"""Metrics of `tideline-changes`."""

from tideline_runtime.metrics import Counter, Gauge

ROWS = Counter(
    "tideline_changes_rows_total",
    unit="rows",
    doc="Row changes published, by table and Debezium's `op`.",
    labels=("table", "op"),
)
SNAPSHOTS = Counter(
    "tideline_changes_snapshots_total", unit="snapshots", doc="Snapshots that were begun, by table.", labels=("table",)
)
OVERSIZED = Counter(
    "tideline_changes_oversized_total",
    unit="rows",
    doc="Row changes that are too large for a record, and are in the dead-letter topic in place of the table's topic.",
    labels=("table",),
)
BACKLOG = Gauge(
    "tideline_changes_backlog_commits",
    unit="commits",
    doc="Commits that change rows and are not published, as of the last visit of each table.",
)
