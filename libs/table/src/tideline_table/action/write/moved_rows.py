"""Rows that a resize of buckets moves to other file groups, with their meta fields."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.file_group.slice import join_path
from tideline_table.hudi.file_names import base_file_name, write_token
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, WriteStat
from tideline_table.reader.base_file import read_footer
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import DataPath
from tideline_table.table.facade import Table
from tideline_table.writer import FileGroupResult
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.marker import MarkerType, create_marker


def write_moved(
    table: Table, begun: WriteTransaction, at: int, partition: str, rows: pa.Table, chosen: np.ndarray, file_id: str
) -> FileGroupResult:
    """Write the `chosen` rows (a mask) into a new file group. `at` numbers the file groups that are read, for the write token."""
    position = rows.schema.get_field_index(MetaField.FILE_NAME)
    name = base_file_name(file_id, write_token(at, 0), begun.instant, table.definition.extension)
    path = join_path(partition, name)
    part = rows.filter(pa.array(chosen))
    part = part.set_column(position, rows.schema.field(position), pa.repeat(pa.scalar(name), part.num_rows))
    create_marker(table.storage, begun.instant, path, MarkerType.CREATE)
    file = write_base_file(table.storage, path, part, table.footer_schema(), table.options)
    written = read_footer(table.storage, DataPath(path, file.size_bytes, file.record)).rows
    stat = WriteStat(
        file_id, partition, path, NO_PREVIOUS_COMMIT, written, file.size_bytes, record=file.record, statistics=file.statistics
    )
    result = FileGroupResult(stat, b"")
    begun.staged(result)
    return result
