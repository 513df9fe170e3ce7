"""Log files: framing, scanning and the contents of their blocks (format reference 9).

Which blocks count and how their rows merge (10) is decided above this package; so are names of log files and what a table's
timeline says about the instants in the headers.
"""

from tideline_table.log_format.block import BlockType, CorruptGap, HeaderKey, LogBlock, ScannedLog
from tideline_table.log_format.data_block import avro_block, parquet_block, read_rows
from tideline_table.log_format.delete_block import delete_block, read_deletes
from tideline_table.log_format.framing import command_block
from tideline_table.log_format.scan import read_block, scan_log

__all__ = [
    "BlockType",
    "CorruptGap",
    "HeaderKey",
    "LogBlock",
    "ScannedLog",
    "avro_block",
    "command_block",
    "delete_block",
    "parquet_block",
    "read_block",
    "read_deletes",
    "read_rows",
    "scan_log",
]
