"""Reading of file slices as Arrow rows: column and filter pushdown into base files, merging of log files."""

from tideline_table.reader.base_file import BaseFileScan, may_hold_nulls, read_column_ranges, read_footer
from tideline_table.reader.file_slice import read_slice, scan_log_part, scan_slice, superseded_rows
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.reader.log_index import LogIndexes
from tideline_table.reader.orc_file import ORC
from tideline_table.reader.read_plan import LogRule
from tideline_table.reader.where import parse_where
