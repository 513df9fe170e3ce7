"""File ids, names of base and log files, and file slices.

Reading and writing of rows does not belong here.
"""

from tideline_table.file_group.names import in_bucket, log_file_name, new_bucket_file_id, new_file_id, parse_base_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion

__all__ = [
    "FileGroupId",
    "FileSlice",
    "LogFile",
    "SliceVersion",
    "in_bucket",
    "log_file_name",
    "new_bucket_file_id",
    "new_file_id",
    "parse_base_file_name",
]
