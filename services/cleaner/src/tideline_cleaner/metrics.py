"""Metrics of the cleaner."""

from tideline_runtime.metrics import Counter, Gauge

FILES_DELETED = Counter(
    "tideline_cleaner_files_deleted_total", unit="files", doc="Base and log files deleted by cleaning.", labels=("table",)
)
ROLLBACKS = Counter(
    "tideline_cleaner_rollbacks_total", unit="instants", doc="Instants of dead writers rolled back.", labels=("table",)
)
ARCHIVED = Counter(
    "tideline_cleaner_instants_archived_total",
    unit="instants",
    doc="Instants moved from the active to the archived timeline.",
    labels=("table",),
)
HALF_WRITTEN = Counter(
    "tideline_cleaner_half_written_files_deleted_total",
    unit="files",
    doc="Incomplete files of killed writers, deleted when no task can still write them.",
    labels=("table",),
)
LATE_FILES = Counter(
    "tideline_cleaner_late_files_deleted_total",
    unit="files",
    doc="Files that tasks of rolled-back writes created after the rollback, deleted before archival.",
    labels=("table",),
)
LEASES = Gauge(
    "tideline_cleaner_reader_leases",
    unit="leases",
    doc="Live reader leases, behind which cleaning and archival stay.",
    labels=("table",),
)
EXPIRED = Counter(
    "tideline_cleaner_expired_partitions_total",
    unit="partitions",
    doc="Partitions deleted because no write changed them for `hoodie.partition.ttl.strategy.days.retain` days, by table.",
    labels=("table",),
)
EXPIRED_ROWS = Counter(
    "tideline_cleaner_expired_rows_total",
    unit="rows",
    doc="Rows deleted because `tideline.row.ttl.column` says that they are older than `tideline.row.ttl.days`, by table.",
    labels=("table",),
)
