"""What Apache Hudi's readers find in the metadata table, from what is on storage alone (format reference 15.9): no log is asked."""

from __future__ import annotations

import functools
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.unit.table.hudi_metadata import TIMELINE_FOLDER

from tideline_table.clock import ManualClock
from tideline_table.coordination.shared.adoption import seen_through
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.checkpoint import read_opening
from tideline_table.log.metadata import COLUMN_STATS, RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.log.table_log import TableLog
from tideline_table.log.timeline_files import timeline_paths
from tideline_table.log_format import BlockType, read_deletes, scan_log
from tideline_table.log_format.block import read_content
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.column_records import decode_column_stats
from tideline_table.metadata_table.column_stats import record_key
from tideline_table.metadata_table.layout import FILES_FOLDER, INDEX_DEFINITIONS_PATH, folder_of
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.reading import live
from tideline_table.metadata_table.record_index import decode_location, live_keys
from tideline_table.metadata_table.records import FilesRecords, decode_records, record_schema_json
from tideline_table.storage import Storage, exists

_SCHEMA = record_schema_json(with_meta_fields=True)
_WRITES = (Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT)


def states(storage: Storage, folder: str) -> dict[str, set[State]]:
    """Instant → the states of its files in a timeline folder."""
    found: dict[str, set[State]] = {}
    for o in storage.list_folder(folder).objects:
        instant = parse_timeline_file_name(o.path.rpartition("/")[2])
        if instant is not None and instant.action is not Action.SAVEPOINT:
            found.setdefault(instant.time, set()).add(instant.state)
    return found


def is_used(storage: Storage) -> bool:
    """Whether readers take files from it."""
    return "files" in read_properties(storage).get(METADATA_PARTITIONS, "").split(",")


def files_for_readers(storage: Storage) -> FilesRecords:
    """The newest slice with a completed instant; its blocks, except those of instants that are pending in the table's timeline."""
    done = {at for at, known in states(storage, TIMELINE_FOLDER).items() if State.COMPLETED in known}
    pending = {at for at, known in states(storage, ".hoodie").items() if State.COMPLETED not in known}
    names = [o.path for o in storage.list_folder(FILES_FOLDER).objects]
    bases = {parsed.instant: path for path in names if (parsed := parse_base_file_name(path.rpartition("/")[2])) is not None}
    base = max(at for at in bases if at in done)
    merged = _decoded(storage.read(bases[base]), bases[base])
    logs = {}
    for path in names:
        parsed = parse_log_file_name(path.rpartition("/")[2])
        # Logs of a slice whose compaction is pending follow those of the slice before it (11.2).
        if parsed is not None and parsed.instant >= base:
            logs[parsed.instant, parsed.version] = path
    for _, path in sorted(logs.items()):
        for block in scan_log(storage, path).blocks:
            if block.instant not in done - pending:
                continue
            if block.type is BlockType.HFILE:
                merged.merge(_decoded(read_content(storage, block, BlockType.HFILE), path))
            else:
                merged.remove(read_deletes(storage, block).column("_hoodie_record_key").to_pylist())
    return merged


def _decoded(content: bytes, path: str) -> FilesRecords:
    hfile = HFile(content)
    entries = ((row["key"], row["value"]) for row in hfile.read().to_pylist())
    return decode_records(entries, hfile.file_info["schema"].decode(), path)


def check_readers_miss_nothing(storage: Storage) -> None:
    """At any moment: each file of a completed write that is on storage is listed, if readers use the metadata table."""
    if not is_used(storage):
        return
    check_index_for_readers(storage)
    check_statistics_for_readers(storage)
    listed = {partition: live(names) for partition, names in files_for_readers(storage).files.items()}
    there = {o.path for o in storage.list_objects("")}
    for o in storage.list_folder(".hoodie").objects:
        instant = parse_timeline_file_name(o.path.rpartition("/")[2])
        if instant is None or instant.state is not State.COMPLETED or instant.action not in _WRITES:
            continue
        for stat in CommitMetadata.from_bytes(storage.read(o.path), o.path).stats:
            name = stat.path.rpartition("/")[2]
            if stat.path in there:
                assert name in listed.get(stat.partition_path, {}), f"{stat.path} of the completed {instant.time} is not listed"


def check_index_for_readers(storage: Storage) -> None:
    """At any moment: the record index names the file group of each row that the timeline shows, if readers use it."""
    if RECORD_INDEX not in read_properties(storage).get(METADATA_PARTITIONS, "").split(","):
        return
    found = index_for_readers(storage)
    state = shown(storage)
    source = Source(storage, WRITTEN, state)
    for file_slice in state.latest_slices():
        for key in live_keys(source, file_slice).to_pylist():
            assert found.get(key) == file_slice.group, f"{key!r} is in {file_slice.group}, the record index says {found.get(key)}"


def check_statistics_for_readers(storage: Storage) -> None:
    """At any moment: no statistics exclude a value of a data file. A file has a record of each indexed column, or none at all."""
    if COLUMN_STATS not in read_properties(storage).get(METADATA_PARTITIONS, "").split(",") or not exists(
        storage, INDEX_DEFINITIONS_PATH
    ):
        return
    columns = json.loads(storage.read(INDEX_DEFINITIONS_PATH))["indexDefinitions"][COLUMN_STATS]["sourceFields"]
    held = data_for_readers(storage, COLUMN_STATS)
    for path in (o.path for o in storage.list_objects("") if o.path.endswith(".parquet")):
        records = {c: held[key] for c in columns if (key := record_key(c, path).encode()) in held}
        if not records:
            continue
        for column, (rows, nulls, low, high) in _columns_in(storage.read(path)).items():
            if column in columns:
                assert column in records, f"{path} has no record of {column}, but of other columns"
                found = decode_column_stats([(b"", records[column])], _SCHEMA)[""]
                assert found["minValue"]["value"] <= low <= high <= found["maxValue"]["value"], (path, column)
                assert (found["valueCount"], found["nullCount"]) == (rows, nulls), (path, column)


@functools.cache
def _columns_in(base_file: bytes) -> dict[str, tuple[int, int, Any, Any]]:
    """Column → number of rows, of nulls, least and greatest value."""
    rows = pq.read_table(pa.BufferReader(base_file))
    ends = {name: pc.min_max(rows.column(name)) for name in rows.column_names}
    return {name: (len(rows), rows.column(name).null_count, e["min"].as_py(), e["max"].as_py()) for name, e in ends.items()}


def shown(storage: Storage) -> TableState:
    """The state that the timeline shows: that of the log, without a last entry whose files are not as it says yet."""
    log = TableLog(storage, ManualClock(), "reader", WRITTEN)
    opening = read_opening(storage).state
    entries = list(log.after(opening.sequence))
    for entry in entries[:-1]:
        opening.apply(entry)
    for entry in entries[-1:]:
        files = timeline_paths(entry, WRITTEN)
        created = entry.begins_restore or all(exists(storage, path) for path in files.create)
        if created and not any(exists(storage, path) for path in files.delete):
            opening.apply(entry)
    # In a shared table, the timeline is ahead of the log.
    return opening if opening.sharing is None else seen_through(storage, WRITTEN, opening, ManualClock().now())


def index_for_readers(storage: Storage) -> dict[bytes, FileGroupId]:
    """Key → file group."""
    return {key: decode_location(datum).group for key, datum in data_for_readers(storage, RECORD_INDEX).items()}


def data_for_readers(storage: Storage, partition: str) -> dict[bytes, bytes]:
    """Key → datum in the newest slices with a completed instant; without blocks of instants that are pending in the table."""
    done = {at for at, known in states(storage, TIMELINE_FOLDER).items() if State.COMPLETED in known}
    pending = {at for at, known in states(storage, ".hoodie").items() if State.COMPLETED not in known}
    names = [o.path for o in storage.list_folder(folder_of(partition)).objects]
    groups: dict[str, tuple[str, str]] = {}
    for path in names:
        base, log = parse_base_file_name(path.rpartition("/")[2]), parse_log_file_name(path.rpartition("/")[2])
        if base is not None and base.instant in done:
            groups[base.file_id] = max(groups.get(base.file_id, ("", "")), (base.instant, path))
        elif log is not None and log.version == 1 and log.instant in done:
            groups[log.file_id] = max(groups.get(log.file_id, ("", "")), (log.instant, ""))
    records: dict[bytes, bytes] = {}
    for file_id, (begun, path) in groups.items():
        if path:
            records |= _data_of(HFile(storage.read(path)))
        logs = [(parsed, name) for name in names if (parsed := parse_log_file_name(name.rpartition("/")[2])) is not None]
        for _, _, name in sorted((p.instant, p.version, n) for p, n in logs if p.file_id == file_id and p.instant >= begun):
            for block in scan_log(storage, name).blocks:
                if block.instant not in done - pending:
                    continue
                if block.type is BlockType.DELETE:
                    for key in read_deletes(storage, block).column("_hoodie_record_key").to_pylist():
                        records.pop(key.encode(), None)
                else:
                    records |= _data_of(HFile(read_content(storage, block, BlockType.HFILE)))
    return records


def _data_of(hfile: HFile) -> dict[bytes, bytes]:
    return {row["key"]: row["value"] for row in hfile.read().to_pylist()}
