"""Compare the partition `record_index` of a shared table's metadata table with the keys in the data files."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from tideline_table.errors import ObjectNotFound
from tideline_table.hudi.format import TableFormat
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.metadata_table.finding import Finding, gone
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.record_index import RecordIndexPartition, decode_location, encode_location
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.storage import Storage


def record_index_findings(storage: Storage, form: TableFormat, state: TableState, valid: AbstractSet[str]) -> Iterable[Finding]:
    """Return keys that the index lacks, has in vain, or has in another file group than the table. Reads the keys of all files.

    `valid` are the instants whose log blocks count. Raises `CorruptMetadata`, `ObjectNotFound` if the partition cannot be read.
    """
    held = StoredPartition.read(storage, RECORD_INDEX).live_records(storage, valid)
    located = {key: encode_location(decode_location(*found)) for key, found in held.items()}
    try:
        return list(RecordIndexPartition().differences(Source(storage, form, state), located))
    except ObjectNotFound as error:
        return [gone(error)]
