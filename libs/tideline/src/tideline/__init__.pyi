from . import errors
from .engine_results import Cancelled, DataFile, MaintenanceStep, Savepoint, SkippedPartition, SkipReason
from .indexes import BloomIndex, BucketIndex, RecordIndex
from .inspection import Inspection
from .maintenance import Maintenance
from .opening import create, open
from .query import Query
from .results import Archival, Clean, Clustering, Commit, Compaction, Resize, Restoration, ServiceResult
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
    "open",
]
