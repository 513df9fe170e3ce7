"""The partitions of the metadata table that Tideline writes, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_table.errors import UnsupportedTable
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.metadata_table.bloom_filters import BloomFiltersPartition
from tideline_table.metadata_table.column_stats import ColumnStatsPartition
from tideline_table.metadata_table.files import FilesPartition
from tideline_table.metadata_table.partition import PartitionKind
from tideline_table.metadata_table.record_index import RecordIndexPartition

KINDS: Mapping[str, PartitionKind] = {
    FILES: FilesPartition(),
    COLUMN_STATS: ColumnStatsPartition(),
    BLOOM_FILTERS: BloomFiltersPartition(),
    RECORD_INDEX: RecordIndexPartition(),
}


def kind_of(name: str) -> PartitionKind:
    """Return the kind of a partition that the table log names. Raises `UnsupportedTable` for one of a later release."""
    kind = KINDS.get(name)
    if kind is None:
        raise UnsupportedTable(
            f"a metadata table with the partition {name!r}", expected=", ".join(KINDS), remedy="upgrade Tideline"
        )
    return kind
