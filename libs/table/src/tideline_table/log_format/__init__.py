"""Log files: framing, scanning and the contents of their blocks (format reference 9).

Not here: which blocks are valid by the timeline, how their rows are merged (10), and the names of log files.
"""

from tideline_table.log_format.avro import decode_datums, parse_schema, row_schema
from tideline_table.log_format.block import BlockType, HeaderKey, LogBlock, ScannedLog
from tideline_table.log_format.data_block import avro_block, parquet_block, read_rows
from tideline_table.log_format.delete_block import delete_block, has_nulls, read_deletes, reads_as_none
from tideline_table.log_format.framing import block_header, command_block
from tideline_table.log_format.scan import read_block, scan_log
