"""Writing of rows: preparation of the input, routing to file groups, writing of one file group.

Publishing, that is, which files become visible and when, does not belong here; see `tideline_table.action`.
"""

from tideline_table.writer.file_group import write_file_group
from tideline_table.writer.input import (
    SAMPLE_ROWS,
    SIZE_SAMPLE,
    FilePlacement,
    PreparedInput,
    RoutedTask,
    check_indexed_keys,
    key_rows,
    measured_row_bytes,
    prepare_input,
    refuse_duplicates,
    route_input,
    route_to_buckets,
    with_marked_purges,
)
from tideline_table.writer.task import (
    ROW_OPERATIONS,
    FileGroupResult,
    FileGroupTask,
    Operation,
    WriteContext,
    minds_known_keys,
    promises_unique_keys,
)
