"""From rows to base files: preparing input, routing it to file groups, writing one file group.

What becomes visible when does not belong here; see `transaction`.
"""

from tideline_table.writer.file_group import FileGroupResult, FileGroupTask, WriteContext, write_file_group
from tideline_table.writer.input import PreparedInput, prepare_input
from tideline_table.writer.operation import Operation
from tideline_table.writer.routing import RoutedTask, route_input

__all__ = [
    "FileGroupResult",
    "FileGroupTask",
    "Operation",
    "PreparedInput",
    "RoutedTask",
    "WriteContext",
    "prepare_input",
    "route_input",
    "write_file_group",
]
