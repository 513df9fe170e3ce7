"""The delta commit that an entry of the table log makes in the metadata table."""

from __future__ import annotations

import functools

from tideline_table.hudi.instant import Action
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import RECORD_INDEX, Delta, MetadataPartition, MetadataTable
from tideline_table.metadata_table.instant_files import (
    UNREADABLE,
    at_once,
    begin_instant,
    complete_instant,
    extra_metadata,
    file_ids,
    lost_files,
    put_once,
)
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import base_name, file_id_of, file_path, log_name
from tideline_table.metadata_table.log_file import log_file_bytes
from tideline_table.metadata_table.log_records import LogRecords
from tideline_table.metadata_table.partition import PartitionKind, Records, Source, by_group
from tideline_table.storage import Storage

_OPERATION = "UPSERT_PREPPED"


def add_delta(source: Source, entry: Entry, known: MetadataTable, logs: LogRecords) -> None:
    """Add the delta commit of `entry`. Its log files need not wait for its instant: readers ignore both until it is completed."""
    storage, delta = source.storage, known.files.deltas[-1]

    def begin() -> list[WriteStat]:
        begin_instant(storage, delta.instant, Action.DELTA_COMMIT)
        return []

    parts = known.partitions if delta.version else ()
    steps = [begin, *(functools.partial(_put_changes, source, entry, part, delta, logs) for part in parts)]
    stats = [stat for found in at_once(lambda step: step(), ((step,) for step in steps)) for stat in found]
    complete_instant(storage, delta.instant, Action.DELTA_COMMIT, CommitMetadata(_OPERATION, tuple(stats), extra_metadata()))


def _put_changes(source: Source, entry: Entry, part: MetadataPartition, delta: Delta, logs: LogRecords) -> list[WriteStat]:
    """Write what `entry` changes in one partition."""
    kind = kind_of(part.name)
    try:
        changed = by_group(kind.changed_by(source, entry), part.file_groups)
    except UNREADABLE as error:
        return lost_files(part, [log_name(part.base, delta.version, file_id) for file_id in file_ids(part)], error)
    wanted = [(at, records) for at, records in enumerate(changed) if records or kind.writes_every_delta]
    # This thread encodes one file after the other, while others wait for the storage: encoders would only wait for each other.
    encoded = ((at, records, log_file_bytes(part.name, delta.instant, records)) for at, records in wanted)
    stats = at_once(functools.partial(_put_log, source.storage, delta, kind, part), encoded, len(wanted))
    if part.name == RECORD_INDEX:
        for at, records in wanted:
            logs.add_written(part, at, delta.version, records)
    return stats


def _put_log(
    storage: Storage, delta: Delta, kind: PartitionKind, part: MetadataPartition, group: int, records: Records, blocks: bytes
) -> WriteStat:
    file_id = file_id_of(part.name, group)
    name = log_name(part.base, delta.version, file_id)
    put_once(storage, file_path(name, part.name), blocks)
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
