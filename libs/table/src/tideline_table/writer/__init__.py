"""Writing of rows: preparation of the input, routing to file groups, writing of one file group.

Publishing, that is, which files become visible and when, does not belong here; see `tideline_table.action`.
"""

from tideline_table.writer.file_group import write_file_group
from tideline_table.writer.input import PreparedInput, check_indexed_keys, prepare_input, refuse_duplicates, with_marked_purges
from tideline_table.writer.routing import SAMPLE_ROWS, FilePlacement, RoutedTask, measured_row_bytes, route_input, route_to_buckets
from tideline_table.writer.task import (
    ROW_OPERATIONS,
    FileGroupResult,
    FileGroupTask,
    Operation,
    WriteContext,
    minds_known_keys,
    promises_unique_keys,
)
