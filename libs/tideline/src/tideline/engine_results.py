"""Results that the engine returns as they are."""

from tideline_table.action import Cancelled, InlineService, SkippedPartition, SkipReason
from tideline_table.action import Step as MaintenanceStep
from tideline_table.table import DataFile, Savepoint

__all__ = ["Cancelled", "DataFile", "InlineService", "MaintenanceStep", "Savepoint", "SkipReason", "SkippedPartition"]
