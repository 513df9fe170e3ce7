"""Log files: framing, scanning and the contents of their blocks (format reference 9).

Not here: which blocks are valid by the timeline, how their rows are merged (10), and the names of log files.
"""

from tideline_table.log_format.avro import decode_datums, parse_schema, row_schema
from tideline_table.log_format.block import BlockType, CorruptGap, HeaderKey, LogBlock, ScannedLog
from tideline_table.log_format.data_block import avro_block, parquet_block, read_rows
from tideline_table.log_format.delete_block import delete_block, read_deletes, reads_as_none
from tideline_table.log_format.framing import block_header, command_block
from tideline_table.log_format.scan import read_block, scan_log

__all__ = [
    "BlockType",
    "CorruptGap",
    "HeaderKey",
    "LogBlock",
    "ScannedLog",
    "avro_block",
    "block_header",
    "command_block",
    "decode_datums",
    "delete_block",
    "parquet_block",
    "parse_schema",
    "read_block",
    "read_deletes",
    "read_rows",
    "reads_as_none",
    "row_schema",
    "scan_log",
]
