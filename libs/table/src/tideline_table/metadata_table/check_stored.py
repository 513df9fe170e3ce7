"""Compare the metadata table of a shared table with the table and with the files on storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

from tideline_table.errors import CorruptMetadata, ObjectNotFound, TidelineError
from tideline_table.file_group.slice import join_path
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.properties import METADATA_FOLDER, read_properties
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.metadata_table.bloom_filters import decode_filter
from tideline_table.metadata_table.check_stored_statistics import statistics_findings
from tideline_table.metadata_table.file_keys import file_key
from tideline_table.metadata_table.files import files_of
from tideline_table.metadata_table.finding import Finding, FindingKind, gone, without_leaving
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.reading import live
from tideline_table.metadata_table.record_index import RecordIndexPartition, decode_location, encode_location
from tideline_table.metadata_table.records import FilesRecords
from tideline_table.metadata_table.stored import StoredMetadata
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.reader.base_file import read_filter_text
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Storage


def check_stored(storage: Storage, form: TableFormat, state: TableState, pending: AbstractSet[str], rule: LogRule) -> list[Finding]:
    """Return what Apache Hudi's readers would find in the metadata table that is not so; none if they are told to list folders.

    `state` includes all steps of the timeline, and `pending` names the instants that it shows as pending. Files without a
    committed write may be listed as long as they are on storage: Apache Hudi lists voided log files. Files that an unfinished
    clean deletes may be gone. Concurrent writers may make it report files of the last step: repeat it then.
    """
    properties = read_properties(storage)
    made = properties.get(p.METADATA_PARTITIONS, "").split(",")
    if FILES not in made:
        return []
    try:
        stored = StoredMetadata.read(storage, form)
        listed = stored.read_files(storage, pending)
        valid, further = stored.valid(pending), list[Finding]()
        if COLUMN_STATS in made:
            further += statistics_findings(storage, state, properties, stored, valid)
        if BLOOM_FILTERS in made:
            further += filter_findings(storage, state, stored.partition(storage, BLOOM_FILTERS), valid)
        if RECORD_INDEX in made:
            further += record_index_findings(Source(storage, form, state, rule), stored.partition(storage, RECORD_INDEX), valid)
    except ObjectNotFound as error:
        return [Finding(FindingKind.MISSING_FILE, error.path, "a file of the metadata table")]
    except TidelineError as error:
        return [Finding(FindingKind.DAMAGED_FILE, METADATA_FOLDER, f"{error.found}, expected {error.expected}")]
    return [*without_leaving(_compared(storage, files_of(state), listed), state), *further]


def _compared(storage: Storage, expected: FilesRecords, listed: FilesRecords) -> Iterator[Finding]:
    partitions = live(listed.partitions)
    for partition in sorted({*expected.files, *listed.files}):
        wanted = expected.files.get(partition, {})
        found = {name: size for name, size in live(listed.files.get(partition)).items() if _is_data(name)}
        stored = {o.path.rpartition("/")[2]: o.size_bytes for o in storage.list_folder(partition).objects}
        if wanted and partition not in partitions:
            yield Finding(FindingKind.NOT_LISTED, partition or ".", "a partition with files that the list of partitions lacks")
        for name in sorted({*wanted, *found}):
            path, size = join_path(partition, name), stored.get(name)
            if name in wanted and size is None:
                yield Finding(FindingKind.GONE, path, f"{wanted[name]} bytes in the log, none on storage")
            elif name not in found:
                yield Finding(FindingKind.NOT_LISTED, path, f"a committed file of {wanted[name]} bytes")
            elif size is None:
                yield Finding(FindingKind.LISTED_IN_VAIN, path, f"{found[name]} bytes; not on storage")
            elif found[name] != (right := wanted.get(name, size)):
                # A committed file of another size on storage is a finding of the comparison of data files.
                yield Finding(FindingKind.WRONG_SIZE, path, f"{found[name]} bytes listed, expected {right}")


def _is_data(name: str) -> bool:
    """Return whether readers take a name for a data file.

    Apache Hudi's rollback lists the folder of the table (format reference 15.5).
    """
    return parse_base_file_name(name) is not None or parse_log_file_name(name) is not None


def record_index_findings(source: Source, index: StoredPartition, valid: AbstractSet[str]) -> Iterable[Finding]:
    """Return keys that the index lacks, has in vain, or has in another file group than the table. Reads the keys of all files.

    `valid` are the instants whose log blocks count. Raises `CorruptMetadata`, `ObjectNotFound` if the partition cannot be read.
    """
    held = index.live_records(source.storage, valid)
    located = {key: encode_location(decode_location(*found)) for key, found in held.items()}
    try:
        return list(RecordIndexPartition().differences(source, located))
    except ObjectNotFound as error:
        return [gone(error)]


_FOOTERS_AT_ONCE = 16


def filter_findings(storage: Storage, state: TableState, filters: StoredPartition, valid: AbstractSet[str]) -> Iterator[Finding]:
    """Yield base files whose filter has no record, or another one than their footer.

    `valid` are the instants whose log blocks count. Reads the footers of all base files. Records of files that are gone are left
    alone. Raises `CorruptMetadata`, `ObjectNotFound` if the partition cannot be read.
    """
    held = filters.live_records(storage, valid)
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
