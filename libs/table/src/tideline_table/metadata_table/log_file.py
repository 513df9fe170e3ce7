"""The content of a log file of the metadata table (format reference 15.2)."""

from __future__ import annotations

from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.delete_block import delete_block
from tideline_table.log_format.framing import BLOCK_VERSION, frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.instant_files import epoch_ms, file_info
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.partition import Records
from tideline_table.metadata_table.records import record_schema_json

EMPTY_DELETES = BLOCK_VERSION.to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0"
"""The content of a delete block without deletions: its version, and the length of an empty Avro list."""


def log_file_bytes(partition: str, instant: str, records: Records) -> bytes:
    """Return a log file of `partition` with these records of the delta commit `instant`: a block of updates, then one of deletions."""
    blocks, schema = b"", record_schema_json(with_meta_fields=True)
    if records.updates.num_rows:
        entries = records.updates if records.joined is None else records.joined
        created_ms, repeats = epoch_ms(instant), kind_of(partition).has_repeats
        content = hfile_bytes(entries, file_info(records.updates), created_ms=created_ms, repeats=repeats)
        header = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: schema}
        blocks += frame_block(BlockType.HFILE, header, content)
    if len(records.deletes):
        blocks += delete_block(records.deletes, partition, None, schema, instant)
    return blocks
