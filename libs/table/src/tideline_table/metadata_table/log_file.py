"""The content of a log file of the metadata table (format reference 15.2)."""

from __future__ import annotations

from typing import NamedTuple

from tideline_table.log.entry import Entry
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.delete_block import delete_block
from tideline_table.log_format.framing import BLOCK_VERSION, frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.instant_files import epoch_ms, file_info
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.partition import Records, Source, by_group
from tideline_table.metadata_table.records import record_schema_json

EMPTY_DELETES = BLOCK_VERSION.to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0"
"""The content of a delete block without deletions: its version, and the length of an empty Avro list."""


class LogFile(NamedTuple):
    """The log file of one file group in a delta commit."""

    group: int
    records: Records
    content: bytes


def changes_of(source: Source, entry: Entry, part: MetadataPartition) -> list[tuple[int, Records]]:
    """Return what `entry` changes in each file group of a partition that gets a log file.

    Raises what `PartitionKind.changed_by` raises.
    """
    kind = kind_of(part.name)
    changed = by_group(kind.changed_by(source, entry), part.file_groups)
    return [(group, records) for group, records in enumerate(changed) if records or kind.writes_every_delta]


def log_file_of(partition: str, instant: str, group: int, records: Records) -> LogFile:
    """Return the log file of a file group of `partition` in the delta commit `instant`."""
    return LogFile(group, records, log_file_bytes(partition, instant, records))


def log_file_bytes(partition: str, instant: str, records: Records) -> bytes:
    """Return a log file of `partition` with these records of the delta commit `instant`.

    A block of updates, then one of deletions.
    """
    blocks, schema = b"", record_schema_json(with_meta_fields=True)
    if records.updates.num_rows:
        entries = records.updates if records.joined is None else records.joined
        content = hfile_bytes(entries, file_info(records.updates), created_ms=epoch_ms(instant))
        header = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: schema}
        blocks += frame_block(BlockType.HFILE, header, content)
    if len(records.deletes):
        blocks += delete_block(records.deletes, partition, None, schema, instant)
    return blocks
