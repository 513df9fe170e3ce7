"""What readers of layout 2 find in the metadata table, from names and files on storage alone: no log is asked.

Format reference of versions 8 and 9, 4.1, 4.2, 8.5.
"""

from __future__ import annotations

from typing import Any

from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.formats import UPGRADED
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.hudi.version8.history import read_history
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.metadata import FILES, RECORD_INDEX
from tideline_table.log_format import BlockType, read_deletes, scan_log
from tideline_table.log_format.block import read_content
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.layout import file_path, folder_of
from tideline_table.metadata_table.reading import entries_of, live
from tideline_table.metadata_table.record_index import decode_location
from tideline_table.metadata_table.records import FilesRecords, decode_records, record_schema_json
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table

TIMELINE = ".hoodie/timeline"
_OF_METADATA = ".hoodie/metadata/.hoodie/timeline"
_OWN = ".hoodie/.tideline/"
_WRITES = (Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT)


def times(storage: MemoryStorage, folder: str) -> tuple[dict[str, str], set[str]]:
    """Return instant → completion time of the completed instants in a timeline folder, and the pending instants."""
    done, seen = {}, set()
    for found in storage.list_folder(folder).objects:
        parsed = UPGRADED.parse_timeline_file_name(found.path.rpartition("/")[2])
        if parsed is not None:
            seen.add(parsed[0].time)
            if parsed[0].state is State.COMPLETED:
                assert parsed[1] > parsed[0].time, f"{found.path} names a completion time"
                done[parsed[0].time] = parsed[1]
    return done, seen - done.keys()


def blocks_for_readers(storage: MemoryStorage, partition: str) -> list[tuple[list[str], dict[bytes, bytes]]]:
    """Return deleted keys and records, the oldest first.

    Slices go by completion time, log files by the order of their instants. No block of an instant counts that is pending on the
    table's timeline.
    """
    done, pending = times(storage, _OF_METADATA)[0], times(storage, TIMELINE)[1]
    done = {i.time: i.completion for i in read_history(storage, f"{_OF_METADATA}/history")} | done
    bases: dict[str, dict[str, str]] = {}
    logs: dict[str, list[tuple[Any, str]]] = {}
    for found in storage.list_folder(folder_of(partition)).objects:
        name = found.path.rpartition("/")[2]
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        if base is not None and base.instant in done:
            bases.setdefault(base.file_id, {})[base.instant] = name
        elif log is not None and log.instant in done:
            logs.setdefault(log.file_id, []).append((log, name))
    found_blocks: list[tuple[list[str], dict[bytes, bytes]]] = []
    for file_id in sorted(bases.keys() | logs.keys()):
        held = sorted(logs.get(file_id, ()), key=lambda one: (one[0].instant, one[0].version, one[0].write_token))
        begun = set(bases.get(file_id, ()))
        placed: dict[str, list[str]] = {}
        for log, name in held:
            before = [at for at in begun if at <= done[log.instant]]
            begun.add(at := max(before, default=log.instant))
            placed.setdefault(at, []).append(name)
        newest = max(begun)
        if newest in bases.get(file_id, {}):
            hfile = HFile(storage.read(file_path(bases[file_id][newest], partition)))
            found_blocks.append(([], dict(entries_of(hfile))))
        for name in placed.get(newest, ()):
            for block in scan_log(storage, file_path(name, partition)).blocks:
                if block.instant not in done.keys() - pending:
                    continue
                if block.type is BlockType.HFILE:
                    content = HFile(read_content(storage, block, BlockType.HFILE))
                    found_blocks.append(([], dict(entries_of(content))))
                else:
                    found_blocks.append((read_deletes(storage, block).column("_hoodie_record_key").to_pylist(), {}))
    return found_blocks


def files_for_readers(storage: MemoryStorage) -> dict[str, dict[str, int]]:
    merged = FilesRecords()
    for gone, updates in blocks_for_readers(storage, FILES):
        merged.merge(decode_records(updates.items(), record_schema_json(with_meta_fields=True), FILES))
        merged.remove(gone)
    there = {partition for partition, size in (merged.partitions or {}).items() if size == 0}
    return {partition: live(names) for partition, names in merged.files.items() if partition in there and live(names)}


def keys_for_readers(storage: MemoryStorage) -> dict[str, str]:
    found: dict[str, str] = {}
    for gone, updates in blocks_for_readers(storage, RECORD_INDEX):
        for key in gone:
            found.pop(key, None)
        found |= {key.decode(): decode_location(datum).file_id for key, datum in updates.items()}
    return found


def advertised(storage: MemoryStorage) -> list[str]:
    """The partitions that readers use."""
    return read_properties(storage).get(METADATA_PARTITIONS, "").split(",")


def check_readers_miss_nothing(storage: MemoryStorage) -> None:
    """At any moment: each file of a completed write that is on storage is listed, and the index knows the place of each row."""
    if FILES in advertised(storage):
        listed, there = files_for_readers(storage), {o.path for o in storage.list_objects("")}
        for o in storage.list_folder(TIMELINE).objects:
            parsed = UPGRADED.parse_timeline_file_name(o.path.rpartition("/")[2])
            if parsed is None or parsed[0].state is not State.COMPLETED or parsed[0].action not in _WRITES:
                continue
            for stat in CommitMetadata.from_bytes(storage.read(o.path), o.path).stats:
                if stat.path in there:
                    name = stat.path.rpartition("/")[2]
                    assert name in listed.get(stat.partition_path, {}), f"{stat.path} of {parsed[0].time} is not listed"
    if RECORD_INDEX in advertised(storage):
        held = keys_for_readers(storage)
        for key, file_id in rows_by_timeline(storage).items():
            assert held.get(key, "")[:36] == file_id, f"key {key} is in {file_id}, the index says {held.get(key)}"


def rows_by_timeline(storage: MemoryStorage) -> dict[str, str]:
    """Return record key → the first part of the file id of each row that the timeline shows: of a copy without a log."""
    copy = MemoryStorage()
    for found in storage.list_objects(""):
        if not found.path.startswith(_OWN):
            copy.put(found.path, storage.read(found.path))
    rows = Table.open(copy.root, storage=copy).read(["_hoodie_record_key", "_hoodie_file_name"]).to_pylist()
    return {row["_hoodie_record_key"]: row["_hoodie_file_name"][:36] for row in rows}
