"""The partition `column_stats`: the bounds and counts of each indexed column in each data file (format reference 15.2, 15.3, 15.7).

The statistics come from the table log, so no footer is read for a commit. What Apache Hudi's readers do with a record decides
what it says where its release 1.2.0 writes something else: see docs/design/data-skipping.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tideline_table.errors import ObjectNotFound
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import COLUMN_STATS, MetadataPartition
from tideline_table.log.statistics import files_in, merge_statistics
from tideline_table.log.table_log import LogReader
from tideline_table.metadata_table.column_records import decode_column_stats, has_records_of, statistics_datum
from tideline_table.metadata_table.file_keys import file_key, files_gone, hash_text
from tideline_table.metadata_table.finding import Finding, FindingKind
from tideline_table.metadata_table.index_definitions import index_definitions
from tideline_table.metadata_table.layout import INDEX_DEFINITIONS_PATH, folder_of
from tideline_table.metadata_table.partition import IndexedColumns, Records, Source, groups_of_keys, mapping_of, unless_gone
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.reader.base_file import read_statistics
from tideline_table.statistics import FileStatistics

COLUMN_STATS_GROUPS = 2
"""File groups of the partition, as in Apache Hudi."""
_FOOTERS_AT_ONCE = 16


class ColumnStatsPartition:
    """The partition `column_stats`. Its records follow from the statistics in the table log."""

    name = COLUMN_STATS
    writes_every_delta = False

    def changed_by(self, source: Source, entry: Entry) -> Records:
        """See `PartitionKind`. A file without statistics of all required columns has no records: readers do not leave it out."""
        indexed = _indexed(source)
        if isinstance(entry.body, Published):
            return Records.of(_records(source, written_files(source, entry.body, indexed), indexed))
        gone = files_gone(entry, source.state)
        return Records.of(deletes=(record_key(name, path) for path in gone for name in indexed.names))

    def whole(self, source: Source) -> Records:
        """See `PartitionKind`."""
        return Records.of(_records(source, _known(source, _part(source)), _indexed(source)))

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> pa.RecordBatch | None:
        """See `PartitionKind`: the statistics beside the log know all files, so nothing of the metadata table is read.

        Without the files of the last entry: readers add up the counts of two records of one file.
        """
        known = _known(source, part)
        for file_slice in source.state.every_slice():
            for path, instant in _written(file_slice):
                if instant == part.deltas[-1].instant:
                    known.pop(path, None)
        return Records.of(_records(source, known, IndexedColumns(part.columns), (part.file_groups, group))).updates

    def differences(self, source: Source, held: Mapping[bytes, bytes]) -> Iterable[Finding]:
        """See `PartitionKind`.

        A log file that only deletes rows may have no record at all: writers of earlier releases made none, and readers do not
        leave out a file without records.
        """
        known, indexed = _known(source, _part(source)), _indexed(source)
        recorded = {path: file for path, file in known.items() if file.rows or _has_record(path, indexed, held)}
        expected = mapping_of(Records.of(_records(source, recorded, indexed)).updates)
        yield from _index_definition(source)
        names = _indexed(source).names
        leaving = {record_key(name, path).encode() for path in source.state.under_clean() for name in names}
        for key in sorted((expected.keys() | held.keys()) - leaving):
            wanted, found = expected.get(key), held.get(key)
            if wanted == found:
                continue
            path = f"{folder_of(COLUMN_STATS)}/{key.decode(errors='replace')}"
            if found is None:
                yield Finding(FindingKind.NOT_LISTED, path, _shown(wanted))
            else:
                kind = FindingKind.LISTED_IN_VAIN if wanted is None else FindingKind.WRONG_RECORD
                yield Finding(kind, path, f"{_shown(found)}; in the table log {_shown(wanted)}")


def _has_record(path: str, indexed: IndexedColumns, held: Mapping[bytes, bytes]) -> bool:
    return any(record_key(name, path).encode() in held for name in indexed.required)


def _index_definition(source: Source) -> Iterator[Finding]:
    try:
        found = source.storage.read(INDEX_DEFINITIONS_PATH)
    except ObjectNotFound:
        yield Finding(FindingKind.MISSING_FILE, INDEX_DEFINITIONS_PATH, "no definition of the indexed columns")
        return
    if found != index_definitions(source.form, _part(source).columns):
        yield Finding(FindingKind.DAMAGED_FILE, INDEX_DEFINITIONS_PATH, "other columns than those of the table log")


def _shown(datum: bytes | None) -> str:
    if datum is None:
        return "nothing"
    try:
        (known,) = decode_column_stats([(b"", datum)], record_schema_json(with_meta_fields=True)).values()
        low, high = ((known[end] or {}).get("value") for end in ("minValue", "maxValue"))
        return f"{known['columnName']} of {known['fileName']}: {low!r} to {high!r}, {known['nullCount']} null"
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        return f"a record that cannot be read ({type(error).__name__})"


def _part(source: Source) -> MetadataPartition:
    known = source.state.metadata.partition(COLUMN_STATS) if source.state.metadata is not None else None
    assert known is not None, "a table with column statistics in its metadata table"
    return known


def _known(source: Source, part: MetadataPartition) -> dict[str, FileStatistics]:
    """Return the statistics of all files; from their footers those of base files that Tideline wrote before it took statistics.

    Without those that are gone because a pending clean deletes them.
    """
    known = files_in(merge_statistics(source.storage, LogReader(source.storage).read, source.state))
    older = [s.path for s in source.state.every_slice() if s.base_file and s.path not in known]
    leaving = source.state.under_clean()

    def read(path: str) -> FileStatistics | None:
        return unless_gone(path, leaving, lambda: read_statistics(source.storage, path, part.columns))

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        for path, found in zip(older, pool.map(read, older), strict=True):
            if found is not None:
                known[path] = found
    return known


def _indexed(source: Source) -> IndexedColumns:
    return source.indexed or IndexedColumns(_part(source).columns)


def written_files(source: Source, body: Published, indexed: IndexedColumns) -> Mapping[str, FileStatistics]:
    """Return the statistics of the files that an entry publishes; of columns that their writer left out, from their footers.

    Log files have no footers.
    """
    taken = body.file_statistics
    if source.indexed is None:
        return taken
    found = {stat.path: taken[stat.path] for stat in body.metadata.stats if stat.is_log and stat.path in taken}
    for path in sorted({stat.path for stat in body.metadata.stats if stat.path and not stat.is_log}):
        held = taken.get(path)
        missing = [name for name in indexed.required if held is None or name not in held.columns]
        footer = read_statistics(source.storage, path, missing) if missing else None
        if footer is not None:
            held = FileStatistics(footer.rows, {**(held.columns if held is not None else {}), **footer.columns})
        if held is not None:
            found[path] = held
    return found


def _written(file_slice: FileSlice) -> Iterator[tuple[str, str]]:
    """Yield the path of each file of a slice, with the instant of its write."""
    if file_slice.base_file:
        named = parse_base_file_name(file_slice.base_file)
        yield file_slice.path, named.instant if named is not None else ""
    yield from zip(file_slice.log_paths, (log.instant for log in file_slice.log_files), strict=True)


def record_key(column: str, path: str) -> str:
    """Return the key of the record of a column in the data file at `path` below the table."""
    return hash_text(column) + file_key(path)


# --- records -----------------------------------------------------------------------------------------------------------------


def _records(
    source: Source, files: Mapping[str, FileStatistics], indexed: IndexedColumns, group: tuple[int, int] | None = None
) -> list[tuple[bytes, bytes]]:
    """Return the records of these files, of all file groups, or of one: their number, and which one.

    A file has a record of every required column, or none at all: Apache Hudi takes a column without a record for one of nulls only.
    As there, a log file that only deletes rows has records without bounds, and a base file without rows has none.
    """
    named = {path: _columns_of(path, file, indexed) for path, file in files.items()}
    hashes = {name: hash_text(name) for name in {name for names in named.values() for name in names}}
    keys = ((path, names, file_key(path)) for path, names in named.items() if names)
    wanted = [(hashes[name] + key, path, name) for path, names, key in keys for name in names]
    if group is not None and wanted:
        of_group = groups_of_keys(pa.array([key for key, _, _ in wanted], pa.string()), group[0]) == group[1]
        wanted = [found for found, is_here in zip(wanted, of_group.tolist(), strict=True) if is_here]
    typed = source.form.has_typed_statistics
    return [(key.encode(), statistics_datum(path.rpartition("/")[2], name, files[path], typed=typed)) for key, path, name in wanted]


def _columns_of(path: str, file: FileStatistics, indexed: IndexedColumns) -> Sequence[str]:
    """Return the columns of which a file has records."""
    if not file.rows:
        return indexed.required if parse_log_file_name(path.rpartition("/")[2]) is not None else ()
    if not all(has_records_of(file, name) for name in indexed.required):
        return ()
    return [name for name in indexed.of_file(file.columns) if has_records_of(file, name)]
