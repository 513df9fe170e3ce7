"""From file slices to Arrow rows: columns and filters pushed down into base files, logs merged in."""

from tideline_table.reader.base_file import BaseFileFooter, read_base_file, read_footer, scan_slices
from tideline_table.reader.file_slice import read_slice, scan_slice
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.reader.read_plan import LogRule

__all__ = [
    "BaseFileFooter",
    "LogRule",
    "VisibleInstants",
    "read_base_file",
    "read_footer",
    "read_slice",
    "scan_slice",
    "scan_slices",
]
