"""Create the files of the metadata table that an entry of the table log calls for: only if absent, and before its timeline files.

Names and contents follow from the entry, the state after it and the files that they name, so that every process that heals an entry
creates the same files. What a partition holds is its kind's affair (`partition`). A kind that reads older slices of the
metadata table to compact them falls back to the table itself, so damage to the metadata table stops no writer, and the next
compaction repairs most of it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from tideline_table.clock import Clock
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State, time_from_instant
from tideline_table.hudi.plans import COMPACTION_PLAN, encode_document
from tideline_table.hudi.properties import change_properties, format_properties, read_properties
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, CommitMetadata, WriteStat
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import (
    COLUMN_STATS,
    MetadataPartition,
    MetadataTable,
    delta_instant,
    metadata_after,
)
from tideline_table.log.state import TableState
from tideline_table.log.table_log import HEAL_DEADLINE_S, TableLog
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.delta_commit import add_delta
from tideline_table.metadata_table.index_definitions import index_definitions
from tideline_table.metadata_table.instant_files import (
    UNREADABLE,
    at_once,
    begin_instant,
    complete_instant,
    epoch_ms,
    extra_metadata,
    file_ids,
    file_info,
    lost_files,
    put_once,
)
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import (
    INDEX_DEFINITIONS_PATH,
    PROPERTIES_PATH,
    base_name,
    file_id_of,
    file_path,
    first_log_name,
    folder_of,
    instant_of,
    log_name,
    metadata_properties,
    timeline_folder,
    timeline_path,
)
from tideline_table.metadata_table.log_file import EMPTY_DELETES
from tideline_table.metadata_table.log_records import LogRecords
from tideline_table.metadata_table.partition import Source, by_group
from tideline_table.metadata_table.prepared_delta import PreparedDelta
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Storage, holds

_LOGGER = logging.getLogger(__name__)


def publish_metadata(
    storage: Storage,
    log: TableLog,
    clock: Clock,
    entry: Entry,
    state: TableState,
    rule: LogRule | None = None,
    records: LogRecords | None = None,
    prepared: PreparedDelta | None = None,
) -> None:
    """Create what `entry` adds to the metadata table, which there is; `state` is the state after the entry.

    `rule` merges the log files of the table, for partitions that depend on its rows. `records` takes those of the record index.
    `prepared` has log files that need not be made anew.
    """
    assert state.sequence == entry.sequence
    known = state.metadata
    assert known is not None
    source = Source(storage, log.format, state, rule or LogRule())
    if entry.created_index is not None:
        _create(source, clock, known, [part for part in known.partitions if part.created == entry.instant])
        _advertise(storage, log, clock, entry, known)
    elif delta_instant(entry):
        begun = [part for part in known.partitions if part.began == entry.sequence]
        if begun:
            _begin_slices(source, clock, begun)
        add_delta(source, entry, known, records or LogRecords(storage, log.format), prepared)
        if entry.begins_restore:
            _advertise(storage, log, clock, entry, known)
        if begun:
            _clean(source, known, begun)


def hide_records(storage: Storage, state: TableState) -> None:
    """Let readers do without partitions other than `files` until `publish_metadata` names them again.

    A restore takes writes back by deleting their timeline files, one after the other. Until the records follow, they would say
    where keys were after these writes.
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
        properties = metadata_properties(source.form, read_properties(storage))
        put_once(storage, PROPERTIES_PATH, format_properties(properties, "Created by Tideline"))
    metafile = format_properties({"commitTime": base, "partitionDepth": "1"}, "partition metadata")
    for part in parts:
        put_once(storage, file_path(PARTITION_METAFILE, part.name), metafile)
        if part.columns:
            _define(storage, index_definitions(source.form, part.columns))
    begin_instant(storage, source.form, base, Action.DELTA_COMMIT)
    _wait_for(source, clock, base)
    stats: list[WriteStat] = []
    for part in parts:
        kind = kind_of(part.name)
        at_once(functools.partial(_put_first_log, source, part), [(file_id,) for file_id in file_ids(part)])
        try:
            whole = by_group(kind.whole(source), part.file_groups)
            made = [(group, records.updates) for group, records in enumerate(whole) if records.updates.num_rows]
            stats += at_once(functools.partial(_put_base, storage, part), made)
        except UNREADABLE as error:
            stats += lost_files(part, [base_name(part.base, file_id) for file_id in file_ids(part)], error)
    metadata = CommitMetadata("BULK_INSERT_PREPPED", tuple(stats), extra_metadata())
    complete_instant(storage, source.form, base, Action.DELTA_COMMIT, metadata, parts[0].completion)


def _define(storage: Storage, content: bytes) -> None:
    put_once(storage, INDEX_DEFINITIONS_PATH, content)
    if not holds(storage, INDEX_DEFINITIONS_PATH, content):
        storage.put(INDEX_DEFINITIONS_PATH, content)


def _put_first_log(source: Source, part: MetadataPartition, file_id: str) -> None:
    """Begin the slice of a file group: without it, a group without records would not be there, or show its older slice."""
    first = frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: part.base}, EMPTY_DELETES)
    put_once(source.storage, file_path(first_log_name(source.form, part.base, file_id), part.name), first)


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
    """Name these partitions in `hoodie.properties`."""
    text = ",".join(sorted(known.names)) if known else ""
    defined = {p.INDEX_DEFINITIONS: INDEX_DEFINITIONS_PATH} if known and known.partition(COLUMN_STATS) else {}

    def named(found: Mapping[str, str]) -> Mapping[str, str]:
        if found.get(p.METADATA_PARTITIONS, "") == text and not found.get(p.METADATA_PARTITIONS_INFLIGHT, ""):
            return found
        return {**found, **defined, p.METADATA_PARTITIONS: text, p.METADATA_PARTITIONS_INFLIGHT: ""}

    change_properties(storage, named)


# --- compaction --------------------------------------------------------------------------------------------------------------


def _begin_slices(source: Source, clock: Clock, parts: Sequence[MetadataPartition]) -> None:
    """Compact partitions of the metadata table: the base files of the new slices hold what the table holds now.

    Readers may find files of the entry in `files` whose timeline file does not exist yet. The timeline hides them, as it hides
    files that a listing of the folders finds.
    """
    storage, base = source.storage, parts[0].base
    operations = [_operation(source.form, part, group) for part in parts for group in range(part.file_groups)]
    document = {"operations": operations, "extraMetadata": {}, "version": 2, "strategy": None, "preserveHoodieMetadata": True}
    plan = encode_document(COMPACTION_PLAN, document)
    put_once(storage, timeline_path(source.form, Instant(base, Action.COMPACTION, State.REQUESTED)), plan)
    put_once(storage, timeline_path(source.form, Instant(base, Action.COMPACTION, State.INFLIGHT)), b"")
    _wait_for(source, clock, base, Action.COMPACTION)
    stats: list[WriteStat] = []
    for part in parts:
        try:
            stats += _compacted(source, part)
        except UNREADABLE as error:
            stats += lost_files(part, [base_name(base, file_id) for file_id in file_ids(part)], error)
    metadata = CommitMetadata("COMPACT", tuple(stats), extra_metadata(), compacted=True)
    complete_instant(storage, source.form, base, Action.COMPACTION, metadata, parts[0].completion)


def _compacted(source: Source, part: MetadataPartition) -> list[WriteStat]:
    kind = kind_of(part.name)

    def put(group: int, updates: pa.RecordBatch) -> list[WriteStat]:
        if updates.num_rows:
            return [_put_base(source.storage, part, group, updates)]
        _put_first_log(source, part, file_id_of(part.name, group))
        return []

    def carry(group: int) -> list[WriteStat] | None:
        updates = kind.compacted(source, part, group)
        return None if updates is None else put(group, updates)

    found = at_once(carry, ((group,) for group in range(part.file_groups)))
    if None in found:
        whole = by_group(kind.whole(source), part.file_groups)
        found = [put(group, whole[group].updates) if stats is None else stats for group, stats in enumerate(found)]
    return [stat for stats in found for stat in stats or ()]


def _operation(form: TableFormat, part: MetadataPartition, group: int) -> dict[str, object]:
    kind = kind_of(part.name)
    file_id = file_id_of(part.name, group)
    every = part.older_deltas if kind.writes_every_delta else ()
    logs = [log_name(form, part.older_base, delta, file_id) for delta in every if delta.version]
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
    content = hfile_bytes(updates, file_info(updates), created_ms=epoch_ms(part.base))
    name = base_name(part.base, file_id)
    put_once(storage, file_path(name, part.name), content)
    previous = part.older_base or NO_PREVIOUS_COMMIT
    return WriteStat(file_id, part.name, f"{part.name}/{name}", previous, count, len(content), num_inserts=count)


def _clean(source: Source, known: MetadataTable, begun: Sequence[MetadataPartition]) -> None:
    """Delete the files and instants of slices older than the newest two: a reader may still be using the second newest.

    No reader needs history of the metadata table, so its instants are deleted, not archived. What is pending stays: the process may
    come late, after entries by which writes that began before these slices completed.
    """
    storage, gone = source.storage, list[str]()
    pending = frozenset(action.instant for action in source.state.pending())
    for part in begun:
        for found in storage.list_folder(folder_of(part.name)).objects:
            name = found.path.rpartition("/")[2]
            log, base = parse_log_file_name(name), parse_base_file_name(name)
            at = log.instant if log else base.instant if base else ""
            if at and at not in part.instants and at not in pending and at < part.older_base:
                gone.append(found.path)
    instants = known.instants
    timeline = [
        (instant.state is State.COMPLETED, instant.time, found.path)
        for found in storage.list_folder(timeline_folder(source.form)).objects
        if (instant := instant_of(source.form, found.path)) is not None
        and instant.time not in instants
        and instant.time not in pending
        and instant.time < known.files.older_base
    ]
    # An instant without its completed file would look pending, so these go last, oldest first.
    for path in (*gone, *(path for _, _, path in sorted(timeline))):
        storage.delete(path)


def _wait_for(source: Source, clock: Clock, base: str, action: Action = Action.DELTA_COMMIT) -> None:
    """Wait until the store's time has reached the base instant of a slice.

    Apache Hudi attaches log files to slices by the modification time of the completed file of this instant (format reference 11.3):
    a file dated before its own instant would leave the slice without its log files. Where names have completion times, they say it.
    """
    if source.form.has_completion_times:
        return
    modified = source.storage.stat(timeline_path(source.form, Instant(base, action, State.INFLIGHT))).modified
    behind_s = (time_from_instant(base) - modified).total_seconds()
    if behind_s > 0:
        level = logging.WARNING if behind_s > 1 else logging.DEBUG
        _LOGGER.log(level, "waiting %.3f s until the time of the store reaches instant %s of the metadata table", behind_s, base)
        clock.sleep(behind_s if modified.microsecond else behind_s + 1)  # object stores date files in whole seconds
