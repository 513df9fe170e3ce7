"""Metrics of the cleaner."""

from tideline_service.metrics import Counter

FILES_DELETED = Counter(
    "tideline_cleaner_files_deleted_total", unit="files", doc="Base and log files deleted by cleaning.", labels=("table",)
)
ROLLBACKS = Counter(
    "tideline_cleaner_rollbacks_total", unit="instants", doc="Instants of dead writers rolled back.", labels=("table",)
)
