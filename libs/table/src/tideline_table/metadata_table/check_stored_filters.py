"""Compare the partition `bloom_filters` of a shared table's metadata table with the footers of the base files."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

from tideline_table.errors import CorruptMetadata, ObjectNotFound
from tideline_table.log.metadata import BLOOM_FILTERS
from tideline_table.log.state import TableState
from tideline_table.metadata_table.bloom_filters import decode_filter
from tideline_table.metadata_table.file_keys import file_key
from tideline_table.metadata_table.finding import Finding, FindingKind
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.reader.base_file import read_filter_text
from tideline_table.storage import Storage

_FOOTERS_AT_ONCE = 16


def filter_findings(storage: Storage, state: TableState, valid: AbstractSet[str]) -> Iterator[Finding]:
    """Yield base files whose filter has no record, or another one than their footer.

    `valid` are the instants whose log blocks count. Reads the footers of all base files. Records of files that are gone are left
    alone. Raises `CorruptMetadata`, `ObjectNotFound` if the partition cannot be read.
    """
    held = StoredPartition.read(storage, BLOOM_FILTERS).live_records(storage, valid)
    paths = sorted(s.path for s in state.every_slice() if s.base_file)

    def compared(path: str) -> list[Finding]:
        try:
            wanted = read_filter_text(storage, path)
        except (ObjectNotFound, CorruptMetadata):
            return []  # a data file that is gone or damaged: its filter is not the problem
        found = held.get(file_key(path).encode())
        if wanted is None:
            return []
        if found is None:
            return [Finding(FindingKind.NOT_LISTED, path, f"no record in {BLOOM_FILTERS}")]
        known = decode_filter(*found)
        if (known.form, known.text) == wanted:
            return []
        return [Finding(FindingKind.WRONG_RECORD, path, "another Bloom filter than in the footer of the file")]

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        for findings in pool.map(compared, paths):
            yield from findings
