"""Create, open, write, read and query Apache Hudi tables from Python, and run their table services.

    import tideline

    table = tideline.create("/tmp/trips", schema=rows.schema, key="id", partition="day", ordering="updated_at")
    table.upsert(rows)
    table.read(columns=["id", "fare"], where="fare > 100")

Rows are passed in as any object with the Arrow PyCapsule interface and are returned as Arrow. This package only translates between
Python users and the engine (`tideline_table`). It makes no decisions about tables.
"""

from tideline import errors
from tideline.opening import create, open  # noqa: A004 - `tideline.open`, as `gzip.open`
from tideline.query import Query
from tideline.results import (
    Archival,
    Cancelled,
    Clean,
    Clustering,
    Commit,
    Compaction,
    DataFile,
    MaintenanceStep,
    Resize,
    Restoration,
    Savepoint,
    ServiceResult,
    SkippedPartition,
    SkipReason,
)
from tideline.table import Table

__all__ = [
    "Archival",
    "Cancelled",
    "Clean",
    "Clustering",
    "Commit",
    "Compaction",
    "DataFile",
    "MaintenanceStep",
    "Query",
    "Resize",
    "Restoration",
    "Savepoint",
    "ServiceResult",
    "SkipReason",
    "SkippedPartition",
    "Table",
    "create",
    "errors",
    "open",
]
