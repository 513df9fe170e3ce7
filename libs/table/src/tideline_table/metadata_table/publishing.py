"""Create the files of the metadata table that an entry of the table log calls for: only if absent, and before its timeline files.

Names and contents follow from the entry, the state after it and the files that they name, so that every process that heals an entry
creates the same files. What a partition holds is its kind's affair (`partition`). A kind that reads older slices of the metadata table
to compact them falls back to the table itself, so damage to the metadata table stops no writer, and the next compaction repairs most of it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import pyarrow as pa

from tideline_table.clock import Clock
from tideline_table.errors import (
    MALFORMED,
    CorruptMetadata,
    ObjectExists,
    ObjectNotFound,
    SchemaMismatch,
    UnsupportedTable,
)
from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import Action, Instant, State, completed_as, parse_timeline_file_name, time_from_instant
from tideline_table.hudi.plans import COMPACTION_PLAN, encode_document
from tideline_table.hudi.properties import change_properties, format_properties, read_properties
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import COLUMN_STATS, Delta, MetadataPartition, MetadataTable, delta_instant, metadata_after
from tideline_table.log.state import TableState
from tideline_table.log.table_log import HEAL_DEADLINE_S, TableLog
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.delete_block import delete_block
from tideline_table.log_format.framing import BLOCK_VERSION, frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.column_stats import index_definitions
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import (
    FIRST_LOG_VERSION,
    INDEX_DEFINITIONS_PATH,
    PROPERTIES_PATH,
    TIMELINE_FOLDER,
    base_name,
    file_id_of,
    file_path,
    folder_of,
    log_name,
    metadata_properties,
    timeline_path,
)
from tideline_table.metadata_table.partition import PartitionKind, Records, Source, by_group
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Storage, holds

Result = TypeVar("Result")
_LOGGER = logging.getLogger(__name__)
_AT_ONCE = 8
"""Files of one partition that are encoded and written at the same time."""
_OPERATION = "UPSERT_PREPPED"
_UNREADABLE = (CorruptMetadata, ObjectNotFound, SchemaMismatch, UnsupportedTable, *MALFORMED, pa.ArrowException)
"""Errors for data files that stay unreadable, other than those of the storage."""
_EMPTY_DELETES = BLOCK_VERSION.to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0"
"""The content of a delete block without deletions: its version, and the length of an empty Avro list."""


def publish_metadata(
    storage: Storage, log: TableLog, clock: Clock, entry: Entry, state: TableState, rule: LogRule | None = None
) -> None:
    """Create what `entry` adds to the metadata table, if there is one; `state` is the state after the entry.

    `rule` merges the log files of the table, for partitions that depend on its rows.
    """
    assert state.sequence == entry.sequence
    known = state.metadata
    if known is None:
        return
    source = Source(storage, state, rule or LogRule())
    if entry.created_index is not None:
        _create(source, clock, known, [part for part in known.partitions if part.created == entry.instant])
        _advertise(storage, log, clock, entry, known)
    elif delta_instant(entry):
        begun = [part for part in known.partitions if part.began == entry.sequence]
        if begun:
            _begin_slices(source, clock, begun)
        _add_delta(source, entry, known)
        if entry.begins_restore:
            _advertise(storage, log, clock, entry, known)
        if begun:
            _clean(storage, known, begun)


def hide_records(storage: Storage, state: TableState) -> None:
    """Let readers do without partitions other than `files` until `publish_metadata` names them again.

    A restore takes writes back by deleting their timeline files, one after the other. Until the records follow, they would say where
    keys were after these writes.
    """
    if state.metadata is not None and len(state.metadata.partitions) > 1:
        _set_partitions(storage, replace(state.metadata, partitions=state.metadata.partitions[:1]))


def unpublish_metadata(storage: Storage, log: TableLog, clock: Clock, entry: Entry, state: TableState) -> None:
    """Remove dropped partitions from the properties, so that readers do without them; `state` is the state after the entry."""
    _advertise(storage, log, clock, entry, state.metadata)


# --- creation ----------------------------------------------------------------------------------------------------------------


def _create(source: Source, clock: Clock, known: MetadataTable, parts: Sequence[MetadataPartition]) -> None:
    storage, base = source.storage, parts[0].base
    if known.files in parts:
        properties = metadata_properties(read_properties(storage))
        _put(storage, PROPERTIES_PATH, format_properties(properties, "Created by Tideline"))
    metafile = format_properties({"commitTime": base, "partitionDepth": "1"}, "partition metadata")
    for part in parts:
        _put(storage, file_path(PARTITION_METAFILE, part.name), metafile)
        if part.columns:
            _define(storage, index_definitions(part.columns))
    _begin(storage, base, Action.DELTA_COMMIT)
    _wait_for(storage, clock, base)
    stats: list[WriteStat] = []
    for part in parts:
        kind = kind_of(part.name)
        _at_once(functools.partial(_put_first_log, storage, part), [(file_id,) for file_id in _file_ids(part)])
        try:
            whole = by_group(kind.whole(source), part.file_groups)
        except _UNREADABLE as error:
            stats += _lost(part, [base_name(part.base, file_id) for file_id in _file_ids(part)], error)
            continue
        made = [(group, records.updates) for group, records in enumerate(whole) if records.updates.num_rows]
        stats += _at_once(functools.partial(_put_base, storage, part), made)
    _complete(storage, base, Action.DELTA_COMMIT, CommitMetadata("BULK_INSERT_PREPPED", tuple(stats), _extra()))


def _define(storage: Storage, content: bytes) -> None:
    _put(storage, INDEX_DEFINITIONS_PATH, content)
    if not holds(storage, INDEX_DEFINITIONS_PATH, content):
        storage.put(INDEX_DEFINITIONS_PATH, content)


def _file_ids(part: MetadataPartition) -> list[str]:
    return [file_id_of(part.name, group) for group in range(part.file_groups)]


def _lost(part: MetadataPartition, names: Sequence[str], error: Exception) -> list[WriteStat]:
    """Record files that cannot be made, because a data file of the table is gone or damaged.

    So the instant completes, and writers of the table go on. A reader of the partition finds that files are missing.
    """
    _LOGGER.error("%s of the metadata table lacks records until it is repaired (tideline check --repair): %s", part.name, error)
    found = ((parse_base_file_name(name) or parse_log_file_name(name), name) for name in names)
    return [
        WriteStat(named.file_id, part.name, f"{part.name}/{name}", part.base, 0, 0) for named, name in found if named is not None
    ]


def _put_first_log(storage: Storage, part: MetadataPartition, file_id: str) -> None:
    """Begin the slice of a file group: without it, a group without records would not be there, or show its older slice."""
    first = frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: part.base}, _EMPTY_DELETES)
    _put(storage, file_path(log_name(part.base, FIRST_LOG_VERSION, file_id), part.name), first)


def _advertise(storage: Storage, log: TableLog, clock: Clock, entry: Entry, known: MetadataTable | None) -> None:
    """Name the partitions in `hoodie.properties`, from where readers take them.

    A process that was suspended here may come after a later entry that created or dropped partitions: then that one decides.
    """
    _set_partitions(storage, known)
    if abs((clock.now() - datetime.fromisoformat(entry.recorded)).total_seconds()) <= HEAL_DEADLINE_S:
        return
    done = entry.sequence
    while later := [found for found in log.after(done) if found.action is Action.INDEXING]:
        for found in later:
            known = metadata_after(known, found)
        done = later[-1].sequence
        _set_partitions(storage, known)


def _set_partitions(storage: Storage, known: MetadataTable | None) -> None:
    properties, text = read_properties(storage), ",".join(sorted(known.names)) if known else ""
    if properties.get(p.METADATA_PARTITIONS, "") != text or properties.get(p.METADATA_PARTITIONS_INFLIGHT, ""):
        defined = {p.INDEX_DEFINITIONS: INDEX_DEFINITIONS_PATH} if known and known.partition(COLUMN_STATS) else {}
        change_properties(storage, {**properties, **defined, p.METADATA_PARTITIONS: text, p.METADATA_PARTITIONS_INFLIGHT: ""})


# --- delta commits -----------------------------------------------------------------------------------------------------------


def _add_delta(source: Source, entry: Entry, known: MetadataTable) -> None:
    """Add the delta commit of `entry`. Its log files need not wait for its instant: readers ignore both until it is completed."""
    storage, delta = source.storage, known.files.deltas[-1]

    def begin() -> list[WriteStat]:
        _begin(storage, delta.instant, Action.DELTA_COMMIT)
        return []

    parts = known.partitions if delta.version else ()
    steps = [begin, *(functools.partial(_put_changes, source, entry, part, delta) for part in parts)]
    stats = [stat for found in _at_once(lambda step: step(), ((step,) for step in steps)) for stat in found]
    _complete(storage, delta.instant, Action.DELTA_COMMIT, CommitMetadata(_OPERATION, tuple(stats), _extra()))


def _put_changes(source: Source, entry: Entry, part: MetadataPartition, delta: Delta) -> list[WriteStat]:
    """Write what `entry` changes in one partition."""
    kind = kind_of(part.name)
    try:
        changed = by_group(kind.changed_by(source, entry), part.file_groups)
    except _UNREADABLE as error:
        return _lost(part, [log_name(part.base, delta.version, file_id) for file_id in _file_ids(part)], error)
    wanted = [(kind, part, at, records) for at, records in enumerate(changed) if records or kind.writes_every_delta]
    return _at_once(functools.partial(_put_log, source.storage, delta), wanted)


def _put_log(
    storage: Storage, delta: Delta, kind: PartitionKind, part: MetadataPartition, group: int, records: Records
) -> WriteStat:
    file_id = file_id_of(part.name, group)
    blocks, schema = b"", record_schema_json(with_meta_fields=True)
    if records.updates.num_rows:
        content = hfile_bytes(records.updates, _info(records.updates), created_ms=_epoch_ms(delta.instant))
        header = {HeaderKey.INSTANT_TIME: delta.instant, HeaderKey.SCHEMA: schema}
        blocks += frame_block(BlockType.HFILE, header, content)
    if len(records.deletes):
        blocks += delete_block(records.deletes, part.name, None, schema, delta.instant)
    name = log_name(part.base, delta.version, file_id)
    _put(storage, file_path(name, part.name), blocks)
    logs = tuple(log_name(part.base, d.version, file_id) for d in part.deltas if d.version) if kind.writes_every_delta else (name,)
    return WriteStat(
        file_id=file_id,
        partition_path=part.name,
        path=f"{part.name}/{name}",
        prev_commit=part.base,
        num_writes=records.updates.num_rows,
        file_size_bytes=len(blocks),
        num_updates=records.updates.num_rows,
        num_deletes=len(records.deletes),
        base_file=base_name(part.base, file_id),
        log_files=logs,
        log_version=delta.version,
    )


# --- compaction --------------------------------------------------------------------------------------------------------------


def _begin_slices(source: Source, clock: Clock, parts: Sequence[MetadataPartition]) -> None:
    """Compact partitions of the metadata table: the base files of the new slices hold what the table holds now.

    Readers may find files of the entry in `files` whose timeline file does not exist yet. The timeline hides them, as it hides files
    that a listing of the folders finds.
    """
    storage, base = source.storage, parts[0].base
    operations = [_operation(part, group) for part in parts for group in range(part.file_groups)]
    document = {"operations": operations, "extraMetadata": {}, "version": 2, "strategy": None, "preserveHoodieMetadata": True}
    plan = encode_document(COMPACTION_PLAN, document)
    _put(storage, timeline_path(Instant(base, Action.COMPACTION, State.REQUESTED)), plan)
    _put(storage, timeline_path(Instant(base, Action.COMPACTION, State.INFLIGHT)), b"")
    _wait_for(storage, clock, base, Action.COMPACTION)
    stats: list[WriteStat] = []
    for part in parts:
        try:
            stats += _compacted(source, part)
        except _UNREADABLE as error:
            stats += _lost(part, [base_name(base, file_id) for file_id in _file_ids(part)], error)
    _complete(storage, base, Action.COMPACTION, CommitMetadata("COMPACT", tuple(stats), _extra(), compacted=True))


def _compacted(source: Source, part: MetadataPartition) -> list[WriteStat]:
    kind = kind_of(part.name)

    def put(group: int, updates: pa.RecordBatch) -> list[WriteStat]:
        if updates.num_rows:
            return [_put_base(source.storage, part, group, updates)]
        _put_first_log(source.storage, part, file_id_of(part.name, group))
        return []

    def carry(group: int) -> list[WriteStat] | None:
        updates = kind.compacted(source, part, group)
        return None if updates is None else put(group, updates)

    found = _at_once(carry, ((group,) for group in range(part.file_groups)))
    if None in found:
        whole = by_group(kind.whole(source), part.file_groups)
        found = [put(group, whole[group].updates) if stats is None else stats for group, stats in enumerate(found)]
    return [stat for stats in found for stat in stats or ()]


def _operation(part: MetadataPartition, group: int) -> dict[str, object]:
    kind = kind_of(part.name)
    file_id = file_id_of(part.name, group)
    every = part.older_deltas if kind.writes_every_delta else ()
    logs = [log_name(part.older_base, delta.version, file_id) for delta in every if delta.version]
    return {
        "baseInstantTime": part.older_base,
        "deltaFilePaths": logs,
        "dataFilePath": base_name(part.older_base, file_id),
        "fileId": file_id,
        "partitionPath": part.name,
        "metrics": {"TOTAL_LOG_FILES": float(len(logs)), "TOTAL_LOG_FILES_SIZE": 0.0},
        "bootstrapFilePath": None,
    }


def _put_base(storage: Storage, part: MetadataPartition, group: int, updates: pa.RecordBatch) -> WriteStat:
    file_id, count = file_id_of(part.name, group), updates.num_rows
    content = hfile_bytes(updates, _info(updates), created_ms=_epoch_ms(part.base))
    name = base_name(part.base, file_id)
    _put(storage, file_path(name, part.name), content)
    previous = part.older_base or NO_PREVIOUS_COMMIT
    return WriteStat(file_id, part.name, f"{part.name}/{name}", previous, count, len(content), num_inserts=count)


def _clean(storage: Storage, known: MetadataTable, begun: Sequence[MetadataPartition]) -> None:
    """Delete the files and instants of slices older than the newest two: a reader may still be using the second newest.

    No reader needs history of the metadata table, so its instants are deleted, not archived.
    """
    gone = []
    for part in begun:
        for found in storage.list_folder(folder_of(part.name)).objects:
            name = found.path.rpartition("/")[2]
            log, base = parse_log_file_name(name), parse_base_file_name(name)
            at = log.base_instant if log else base.instant if base else ""
            if at and at not in (part.base, part.older_base) and at < part.older_base:
                gone.append(found.path)
    instants = known.instants
    timeline = [
        (instant.state is State.COMPLETED, instant.time, found.path)
        for found in storage.list_folder(TIMELINE_FOLDER).objects
        if (instant := parse_timeline_file_name(found.path.rpartition("/")[2])) is not None
        and instant.time not in instants
        and instant.time < known.files.older_base
    ]
    # An instant without its completed file would look pending, so these go last, oldest first.
    for path in (*gone, *(path for _, _, path in sorted(timeline))):
        storage.delete(path)


# --- files -------------------------------------------------------------------------------------------------------------------


def _at_once(do: Callable[..., Result], arguments: Iterable[tuple[object, ...]]) -> list[Result]:
    """Call `do` with each of the arguments in some threads, and return the results in order. Raises what the first failing call raises."""
    calls = list(arguments)
    if len(calls) < 2:
        return [do(*call) for call in calls]
    with ThreadPoolExecutor(min(_AT_ONCE, len(calls)), thread_name_prefix="metadata") as pool:
        return list(pool.map(lambda call: do(*call), calls))


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


def _info(records: pa.RecordBatch) -> dict[str, bytes]:
    schema, keys = record_schema_json(with_meta_fields=True).encode(), records.column("key")
    return {"schema": schema, "minRecordKey": keys[0].as_py(), "maxRecordKey": keys[-1].as_py()}


def _epoch_ms(instant: str) -> int:
    return round(time_from_instant(instant).timestamp() * 1000)


def _put(storage: Storage, path: str, content: bytes) -> None:
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(path, content)
