from . import errors, events
from .engine_results import Cancelled, DataFile, MaintenanceStep, Savepoint, SkippedPartition, SkipReason
from .inspection import Inspection
from .maintenance import Maintenance
from .merge import Merge
from .opening import BloomIndex, BucketIndex, RecordIndex, create, open
from .progress import Progress
from .query import Query
from .results import Archival, Clean, Clustering, Commit, Compaction, Resize, Restoration, ServiceResult
from .statements import sql
from .table import Table

__all__ = [
    "Archival",
    "BloomIndex",
    "BucketIndex",
    "Cancelled",
    "Clean",
    "Clustering",
    "Commit",
    "Compaction",
    "DataFile",
    "Inspection",
    "Maintenance",
    "MaintenanceStep",
    "Merge",
    "Progress",
    "Query",
    "RecordIndex",
    "Resize",
    "Restoration",
    "Savepoint",
    "ServiceResult",
    "SkipReason",
    "SkippedPartition",
    "Table",
    "create",
    "errors",
    "events",
    "open",
    "sql",
]
