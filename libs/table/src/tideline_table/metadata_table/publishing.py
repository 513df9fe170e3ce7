"""Create the files of the metadata table that an entry of the table log calls for: only if absent, and before its timeline files.

Names and contents follow from the entry and the state after it, so that every process that heals an entry creates the same files. Nothing here
reads the metadata table: a base file lists what the log lists, so damage to the metadata table stops no writer, and the next compaction
repairs most of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from datetime import datetime

from tideline_table.clock import Clock
from tideline_table.errors import ObjectExists
from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import Action, Instant, State, completed_as, parse_timeline_file_name, time_from_instant
from tideline_table.hudi.plans import COMPACTION_PLAN, encode_document
from tideline_table.hudi.properties import change_properties, format_properties, read_properties
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import FILES, Delta, MetadataTable, delta_instant, metadata_after
from tideline_table.log.state import TableState
from tideline_table.log.table_log import HEAL_DEADLINE_S, TableLog
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.framing import BLOCK_VERSION, frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.changes import files_changed_by, files_of
from tideline_table.metadata_table.layout import (
    FILES_FOLDER,
    FILES_ID,
    FIRST_LOG_VERSION,
    PROPERTIES_PATH,
    TIMELINE_FOLDER,
    base_name,
    file_path,
    log_name,
    metadata_properties,
    timeline_path,
)
from tideline_table.metadata_table.records import FilesRecords, encode_records, record_schema_json
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_OPERATION = "UPSERT_PREPPED"
_EMPTY_DELETES = BLOCK_VERSION.to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0"
"""The content of a delete block without deletions: its version, and the length of an empty Avro list."""


def publish_metadata(storage: Storage, log: TableLog, clock: Clock, entry: Entry, state: TableState) -> None:
    """Create what `entry` adds to the metadata table, if there is one; `state` is the state after the entry."""
    assert state.sequence == entry.sequence
    known = state.metadata
    if known is None:
        return
    if entry.created_index is not None:
        _create(storage, clock, state, known)
        _advertise(storage, log, clock, entry, known.partitions)
    elif delta_instant(entry):
        if known.began == entry.sequence:
            _begin_slice(storage, clock, state, known)
        _add_delta(storage, entry, state, known)
        if known.began == entry.sequence:
            _clean(storage, known)


def unpublish_metadata(storage: Storage, log: TableLog, clock: Clock, entry: Entry) -> None:
    """Remove a dropped metadata table from the properties, so that readers list the folders of the table again."""
    _advertise(storage, log, clock, entry, ())


# --- creation ----------------------------------------------------------------------------------------------------------------


def _create(storage: Storage, clock: Clock, state: TableState, known: MetadataTable) -> None:
    properties = metadata_properties(read_properties(storage))
    _put(storage, PROPERTIES_PATH, format_properties(properties, "Created by Tideline"))
    metafile = {"commitTime": known.base, "partitionDepth": "1"}
    _put(storage, f"{FILES_FOLDER}/{PARTITION_METAFILE}", format_properties(metafile, "partition metadata"))
    _begin(storage, known.base, Action.DELTA_COMMIT)
    _wait_for(storage, clock, known.base)
    first = frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: known.base}, _EMPTY_DELETES)
    _put(storage, file_path(log_name(known.base, FIRST_LOG_VERSION)), first)
    stat = _put_base(storage, state, known.base, NO_PREVIOUS_COMMIT)
    _complete(storage, known.base, Action.DELTA_COMMIT, CommitMetadata("BULK_INSERT_PREPPED", (stat,), _extra()))


def _advertise(storage: Storage, log: TableLog, clock: Clock, entry: Entry, partitions: Sequence[str]) -> None:
    """Name the partitions in `hoodie.properties`, from where readers take them.

    A process that was suspended here may come after a later entry that created or dropped a metadata table: then that one decides.
    """
    _set_partitions(storage, partitions)
    if abs((clock.now() - datetime.fromisoformat(entry.recorded)).total_seconds()) <= HEAL_DEADLINE_S:
        return
    done = entry.sequence
    while (latest := _latest_indexing(log, done)) is not None:
        done = latest.sequence
        later = metadata_after(None, latest)
        _set_partitions(storage, later.partitions if later is not None else ())


def _latest_indexing(log: TableLog, sequence: int) -> Entry | None:
    found = None
    for later in log.after(sequence):
        found = later if later.action is Action.INDEXING else found
    return found


def _set_partitions(storage: Storage, partitions: Sequence[str]) -> None:
    properties, text = read_properties(storage), ",".join(sorted(partitions))
    if properties.get(p.METADATA_PARTITIONS, "") != text or properties.get(p.METADATA_PARTITIONS_INFLIGHT, ""):
        change_properties(storage, {**properties, p.METADATA_PARTITIONS: text, p.METADATA_PARTITIONS_INFLIGHT: ""})


# --- delta commits -----------------------------------------------------------------------------------------------------------


def _add_delta(storage: Storage, entry: Entry, state: TableState, known: MetadataTable) -> None:
    delta = known.deltas[-1]
    _begin(storage, delta.instant, Action.DELTA_COMMIT)
    stats: tuple[WriteStat, ...] = ()
    if delta.version:
        stats = (_put_log(storage, files_changed_by(entry, state), known, delta),)
    _complete(storage, delta.instant, Action.DELTA_COMMIT, CommitMetadata(_OPERATION, stats, _extra()))


def _put_log(storage: Storage, records: FilesRecords, known: MetadataTable, delta: Delta) -> WriteStat:
    encoded = encode_records(records) or encode_records(FilesRecords({}))
    content = hfile_bytes(encoded, _info(encoded), created_ms=_epoch_ms(delta.instant))
    header = {HeaderKey.INSTANT_TIME: delta.instant, HeaderKey.SCHEMA: record_schema_json(with_meta_fields=True)}
    block = frame_block(BlockType.HFILE, header, content)
    name = log_name(known.base, delta.version)
    _put(storage, file_path(name), block)
    return WriteStat(
        file_id=FILES_ID,
        partition_path=FILES,
        path=f"{FILES}/{name}",
        prev_commit=known.base,
        num_writes=len(encoded),
        file_size_bytes=len(block),
        num_updates=len(encoded),
        base_file=base_name(known.base),
        log_files=tuple(log_name(known.base, other.version) for other in known.deltas if other.version),
        log_version=delta.version,
    )


# --- compaction --------------------------------------------------------------------------------------------------------------


def _begin_slice(storage: Storage, clock: Clock, state: TableState, known: MetadataTable) -> None:
    """Compact the metadata table: the base file of the new slice lists what the log lists now.

    Readers may find files of the entry in it whose timeline file does not exist yet. The timeline hides them, as it hides files that
    a listing of the folders finds.
    """
    plan = encode_document(COMPACTION_PLAN, _compaction_plan(known))
    _put(storage, timeline_path(Instant(known.base, Action.COMPACTION, State.REQUESTED)), plan)
    _put(storage, timeline_path(Instant(known.base, Action.COMPACTION, State.INFLIGHT)), b"")
    _wait_for(storage, clock, known.base, Action.COMPACTION)
    stat = _put_base(storage, state, known.base, known.older_base)
    metadata = CommitMetadata("COMPACT", (stat,), _extra(), compacted=True)
    _complete(storage, known.base, Action.COMPACTION, metadata)


def _compaction_plan(known: MetadataTable) -> dict[str, object]:
    logs = [log_name(known.older_base, delta.version) for delta in known.older_deltas if delta.version]
    operation = {
        "baseInstantTime": known.older_base,
        "deltaFilePaths": logs,
        "dataFilePath": base_name(known.older_base),
        "fileId": FILES_ID,
        "partitionPath": FILES,
        "metrics": {"TOTAL_LOG_FILES": float(len(logs)), "TOTAL_LOG_FILES_SIZE": 0.0},
        "bootstrapFilePath": None,
    }
    return {"operations": [operation], "extraMetadata": {}, "version": 2, "strategy": None, "preserveHoodieMetadata": True}


def _put_base(storage: Storage, state: TableState, base: str, previous: str) -> WriteStat:
    records = encode_records(files_of(state))
    content = hfile_bytes(records, _info(records), created_ms=_epoch_ms(base))
    _put(storage, file_path(base_name(base)), content)
    return WriteStat(FILES_ID, FILES, f"{FILES}/{base_name(base)}", previous, len(records), len(content), num_inserts=len(records))


def _clean(storage: Storage, known: MetadataTable) -> None:
    """Delete the files and instants of slices older than the newest two: a reader may still be using the second newest.

    No reader needs history of the metadata table, so its instants are deleted, not archived.
    """
    bases, instants = {known.base, known.older_base}, known.instants
    gone = []
    for found in storage.list_folder(FILES_FOLDER).objects:
        name = found.path.rpartition("/")[2]
        log, base = parse_log_file_name(name), parse_base_file_name(name)
        begun = log.base_instant if log else base.instant if base else ""
        if begun and begun not in bases and begun < known.older_base:
            gone.append(found.path)
    timeline = [
        (instant.state is State.COMPLETED, instant.time, found.path)
        for found in storage.list_folder(TIMELINE_FOLDER).objects
        if (instant := parse_timeline_file_name(found.path.rpartition("/")[2])) is not None
        and instant.time not in instants
        and instant.time < known.older_base
    ]
    # An instant without its completed file would look pending, so these go last, oldest first.
    for path in (*gone, *(path for _, _, path in sorted(timeline))):
        storage.delete(path)


# --- files -------------------------------------------------------------------------------------------------------------------


def _begin(storage: Storage, instant: str, action: Action) -> None:
    for state in (State.REQUESTED, State.INFLIGHT):
        _put(storage, timeline_path(Instant(instant, action, state)), b"")


def _complete(storage: Storage, instant: str, action: Action, metadata: CommitMetadata) -> None:
    path = timeline_path(Instant(instant, completed_as(action), State.COMPLETED))
    _put(storage, path, metadata.to_bytes())


def _wait_for(storage: Storage, clock: Clock, base: str, action: Action = Action.DELTA_COMMIT) -> None:
    """Wait until the store's time has reached the base instant of a slice.

    Apache Hudi attaches log files to slices by the modification time of the completed file of this instant (format reference 11.3):
    a file dated before its own instant would leave the slice without its log files.
    """
    modified = storage.stat(timeline_path(Instant(base, action, State.INFLIGHT))).modified
    behind_s = (time_from_instant(base) - modified).total_seconds()
    if behind_s > 0:
        level = logging.WARNING if behind_s > 1 else logging.DEBUG
        _LOGGER.log(level, "waiting %.3f s until the time of the store reaches instant %s of the metadata table", behind_s, base)
        clock.sleep(behind_s if modified.microsecond else behind_s + 1)  # object stores date files in whole seconds


def _extra() -> dict[str, str]:
    return {SCHEMA_KEY: record_schema_json(with_meta_fields=False)}


def _info(records: Sequence[tuple[bytes, bytes]]) -> dict[str, bytes]:
    schema = record_schema_json(with_meta_fields=True).encode()
    return {"schema": schema, "minRecordKey": records[0][0], "maxRecordKey": records[-1][0]}


def _epoch_ms(instant: str) -> int:
    return round(time_from_instant(instant).timestamp() * 1000)


def _put(storage: Storage, path: str, content: bytes) -> None:
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(path, content)
