"""File ids, base and log file names, file slices, and the state of a table: which slices exist and which are visible.

Reading or writing rows does not belong here.
"""

from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.names import BaseFileName, base_file_name, parse_base_file_name, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion
from tideline_table.file_group.state import TableState

__all__ = [
    "ActionRecord",
    "BaseFileName",
    "FileGroupId",
    "FileSlice",
    "LogFile",
    "SliceVersion",
    "TableState",
    "base_file_name",
    "parse_base_file_name",
    "parse_log_file_name",
]
