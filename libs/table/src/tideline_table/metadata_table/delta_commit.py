"""The delta commit that an entry of the table log makes in the metadata table."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor

from tideline_table.hudi.instant import Action
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import RECORD_INDEX, Delta, MetadataPartition, MetadataTable
from tideline_table.metadata_table.instant_files import (
    UNREADABLE,
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
from tideline_table.metadata_table.partition import Records, Source, by_group
from tideline_table.storage import Storage

_OPERATION = "UPSERT_PREPPED"
_AT_ONCE = 16
"""Files of one delta commit that are written at the same time."""


def add_delta(source: Source, entry: Entry, known: MetadataTable, logs: LogRecords) -> None:
    """Add the delta commit of `entry`. Its log files need not wait for its instant: readers ignore both until it is completed."""
    storage, delta = source.storage, known.files.deltas[-1]
    parts = known.partitions if delta.version else ()
    stats: list[WriteStat] = []
    written: list[tuple[int, Records]] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="metadata") as pool:
        begun = pool.submit(begin_instant, storage, delta.instant, Action.DELTA_COMMIT)
        changes = functools.partial(_changes, source, entry)
        # Partitions whose records are made from memory would only wait for each other, and so would encoders of files.
        changed = pool.map(changes, parts) if _reads_files(entry) else map(changes, parts)
        puts: list[Future[list[WriteStat]]] = []
        for part, found in zip(parts, changed, strict=True):
            if isinstance(found, Exception):
                puts.append(pool.submit(_lost, part, delta, found))
                continue
            for at, records in found:
                puts.append(
                    pool.submit(_put_log, storage, delta, part, at, records, log_file_bytes(part.name, delta.instant, records))
                )
            written += found if part.name == RECORD_INDEX else ()
        for put in puts:
            stats += put.result()
        begun.result()
    complete_instant(storage, delta.instant, Action.DELTA_COMMIT, CommitMetadata(_OPERATION, tuple(stats), extra_metadata()))
    index = known.partition(RECORD_INDEX)
    if index is not None and delta.version:
        for at, records in written:
            logs.add_written(index, at, delta.version, records)
        logs.add_recorded(index, delta, stats)


def _reads_files(entry: Entry) -> bool:
    """Return whether records of the entry may be read in files of the table."""
    return not isinstance(entry.body, Published) or any(stat.path and stat.keys is None for stat in entry.body.metadata.stats)


def _changes(source: Source, entry: Entry, part: MetadataPartition) -> list[tuple[int, Records]] | Exception:
    """Return what `entry` changes in each file group of one partition that gets a log file, or why that cannot be known."""
    kind = kind_of(part.name)
    try:
        changed = by_group(kind.changed_by(source, entry), part.file_groups)
    except UNREADABLE as error:
        return error
    return [(at, records) for at, records in enumerate(changed) if records or kind.writes_every_delta]


def _lost(part: MetadataPartition, delta: Delta, error: Exception) -> list[WriteStat]:
    return lost_files(part, [log_name(part.base, delta.version, file_id) for file_id in file_ids(part)], error)


def _put_log(
    storage: Storage, delta: Delta, part: MetadataPartition, group: int, records: Records, blocks: bytes
) -> list[WriteStat]:
    file_id, kind = file_id_of(part.name, group), kind_of(part.name)
    name = log_name(part.base, delta.version, file_id)
    put_once(storage, file_path(name, part.name), blocks)
    logs = tuple(log_name(part.base, d.version, file_id) for d in part.deltas if d.version) if kind.writes_every_delta else (name,)
    stat = WriteStat(
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
    return [stat]
