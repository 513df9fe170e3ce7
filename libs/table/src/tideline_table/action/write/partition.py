"""Partition metafiles (format reference 3.1): written once, before the first data file of a partition."""

from __future__ import annotations

import contextlib

from tideline_table.errors import ObjectExists
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.file_group.slice import join_path
from tideline_table.hudi.properties import format_properties
from tideline_table.storage import Storage
from tideline_table.table.facade import Table


def create_partition(table: Table, partition: str, instant: str) -> None:
    """Write the metafile of the partition unless this process knows that it exists."""
    if partition not in table.partitions_made:
        write_partition_metafile(table.storage, partition, instant)
        table.partitions_made.add(partition)


def write_partition_metafile(storage: Storage, partition: str, instant: str) -> None:
    """Write the metafile if it is absent. For tasks without an open table."""
    depth = partition.count("/") + 1 if partition else 0
    content = format_properties({"commitTime": instant, "partitionDepth": str(depth)}, "partition metadata")
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(join_path(partition, PARTITION_METAFILE), content)
