"""Column statistics of data files: what they are, how they are taken from rows and footers, and their form in JSON."""

from tideline_table.statistics.bounds import ColumnArrays, ColumnBounds, bounds_of
from tideline_table.statistics.column import (
    ColumnStatistics,
    FileStatistics,
    StatisticsCollector,
    Stored,
    array_of,
    is_supported,
    of_footer,
    statistics_from,
    statistics_json,
    stored_value,
    type_of,
)
from tideline_table.statistics.partitions import PARTS, PartitionBounds, by_partition
