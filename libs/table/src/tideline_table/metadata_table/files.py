"""What an entry of the table log changes in the partition `files` (format reference 15.5). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.file_names import change_file_name, parse_base_file_name, parse_log_file_name
from tideline_table.hudi.properties import CHANGES, read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.body import Cleaned, Published, RestoreBegun
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import FILES, MetadataPartition
from tideline_table.log.plan import LogMove, RestorePlanned
from tideline_table.log.state import TableState
from tideline_table.metadata_table.finding import Finding
from tideline_table.metadata_table.partition import Records, Source
from tideline_table.metadata_table.records import DELETED, FilesRecords, encode_records, files_key
from tideline_table.storage import Storage


class FilesPartition:
    """The partition `files`. Its records follow from the table log alone."""

    name = FILES
    writes_every_delta = True

    def changed_by(self, source: Source, entry: Entry) -> Records:
        """See `PartitionKind`. An entry without changes has an empty list of partitions, as in Apache Hudi."""
        changed = files_changed_by(entry, source.state)
        ended = [partition for partition, there in (changed.partitions or {}).items() if there == DELETED]
        for partition in ended:
            del changed.files[partition]
        return Records.of(encode_records(changed) or encode_records(FilesRecords({})), deletes=map(files_key, ended))

    def whole(self, source: Source) -> Records:
        """See `PartitionKind`."""
        return Records.of(encode_records(with_change_files(files_of(source.state), source.storage)))

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> pa.RecordBatch | None:  # noqa: ARG002 - the port's
        """See `PartitionKind`: the log knows all files, so nothing of the metadata table is read and damage to it ends here."""
        return None

    def differences(self, source: Source, held: Mapping[bytes, bytes]) -> Iterable[Finding]:  # noqa: ARG002 - the port's
        """See `PartitionKind`: `check_metadata` compares this partition itself, with the folders of the table."""
        return ()


def files_changed_by(entry: Entry, state: TableState) -> FilesRecords:
    """Return what `entry` changes; `state` is the state after it, or, for entries other than those of a restore, before it.

    A completed write, clustering or compaction lists its files and their partitions; replaced file groups stay until a clean
    deletes them. A clean deletes the files of its plan, and partitions of which no file is left. A restore deletes the files of
    the writes that it undoes. A cancelled compaction gives its log files other names.
    """
    body = entry.body
    if isinstance(body, Published):
        return _published(body.metadata)
    if isinstance(body, Cleaned):
        return _cleaned(body, state)
    found = FilesRecords()
    for move in entry.moved_logs:
        found.files.setdefault(move.partition_path, {})[move.old_name] = DELETED
        size_bytes = _size_of(state, move)
        if size_bytes is not None:
            found.list_file(move.partition_path, move.new_name, size_bytes)
    plan = state.plans.get(entry.instant)
    if isinstance(body, RestoreBegun) and isinstance(plan, RestorePlanned):
        for paths in plan.files.values():
            for path in paths:
                partition, _, name = path.rpartition("/")
                found.files.setdefault(partition, {})[name] = DELETED
    return found


def _size_of(state: TableState, move: LogMove) -> int | None:
    """Return the size of a moved log file, None if it is no longer in the table: a clean of its replaced file group came first."""
    named = parse_log_file_name(move.new_name)
    slices = state.slices.get(FileGroupId(move.partition_path, named.file_id), {}) if named is not None else {}
    return next((log.size_bytes for held in slices.values() for log in held.log_files if log.name == move.new_name), None)


def _published(metadata: CommitMetadata) -> FilesRecords:
    written = [stat for stat in metadata.stats if stat.path]
    found = FilesRecords(dict.fromkeys((stat.partition_path for stat in written), 0))
    for stat in written:
        for path, size_bytes in ((stat.path, stat.file_size_bytes), *(stat.changes or {}).items()):
            found.list_file(stat.partition_path, path.rpartition("/")[2], size_bytes)
    return found


def _cleaned(body: Cleaned, state: TableState) -> FilesRecords:
    found = FilesRecords()
    for partition, part in body.metadata["partitionMetadata"].items():
        if part["deletePathPatterns"]:
            found.files[partition] = {str(path).rpartition("/")[2]: DELETED for path in part["deletePathPatterns"]}
    # Apache Hudi names such partitions in the plan. A write may have begun them anew since the plan, so the state at the clean
    # decides.
    ended = sorted(found.files.keys() - _partitions_left(found.files, state) - {""})
    found.partitions = dict.fromkeys(ended, DELETED) or None
    return found


def _partitions_left(gone: Mapping[str, Mapping[str, int]], state: TableState) -> set[str]:
    """Return those of the partitions that have files which are not in `gone`."""
    touched = ((found.group.partition_path, found) for found in state.every_slice() if found.group.partition_path in gone)
    return {at for at, found in touched if any(path.rpartition("/")[2] not in gone[at] for path in found.paths)}


def files_of(state: TableState) -> FilesRecords:
    """Return the files of all completed writes that no clean and no restore has deleted, with their partitions."""
    found = FilesRecords({})
    assert found.partitions is not None
    for file_slice in state.every_slice():
        partition = file_slice.group.partition_path
        found.partitions[partition] = 0
        if file_slice.base_file:
            found.list_file(partition, file_slice.base_file, file_slice.size_bytes)
        for log in file_slice.log_files:
            found.list_file(partition, log.name, log.size_bytes)
    return found


def with_change_files(found: FilesRecords, storage: Storage) -> FilesRecords:
    """Add the change files of the base files in `found`, which no state holds. Lists the partitions of a table that has some."""
    if CHANGES in read_properties(storage):
        for partition, files in found.files.items():
            expected = {change_file_name(name) for name in files if parse_base_file_name(name) is not None}
            for there in storage.list_folder(partition).objects:
                if (name := there.path.rpartition("/")[2]) in expected:
                    files[name] = there.size_bytes
    return found
