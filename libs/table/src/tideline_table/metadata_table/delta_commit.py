"""The delta commit that an entry of the table log makes in the metadata table."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tideline_table.hudi.format import TableFormat
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
from tideline_table.metadata_table.log_file import LogFile, changes_of, log_file_of
from tideline_table.metadata_table.log_records import LogRecords
from tideline_table.metadata_table.partition import Records, Source
from tideline_table.metadata_table.prepared_delta import PreparedDelta

_OPERATION = "UPSERT_PREPPED"
_AT_ONCE = 16
"""Files of one delta commit that are written at the same time."""


def add_delta(source: Source, entry: Entry, known: MetadataTable, logs: LogRecords, prepared: PreparedDelta | None = None) -> None:
    """Add the delta commit of `entry`. Its log files need not wait for its instant: readers ignore both until it is completed.

    Log files that were `prepared` are taken from there.
    """
    storage, delta = source.storage, known.files.deltas[-1]
    parts = known.partitions if delta.version else ()
    stats: list[WriteStat] = []
    written: list[LogFile] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="metadata") as pool:
        begun = pool.submit(begin_instant, storage, source.form, delta.instant, Action.DELTA_COMMIT)
        made = prepared.log_files(entry, parts) if prepared is not None else None
        puts: list[Future[list[WriteStat]]] = []
        for part, files in zip(parts, made or _log_files(source, entry, delta, parts, pool), strict=True):
            if isinstance(files, Exception):
                puts.append(pool.submit(_lost, source.form, part, delta, files))
                continue
            for file in files:
                puts.append(pool.submit(_put_log, source, delta, part, file))
                written += [file] if part.name == RECORD_INDEX else []
        for put in puts:
            stats += put.result()
        begun.result()
    metadata = CommitMetadata(_OPERATION, tuple(stats), extra_metadata())
    complete_instant(storage, source.form, delta.instant, Action.DELTA_COMMIT, metadata, delta.completion)
    index = known.partition(RECORD_INDEX)
    if index is not None and delta.version:
        for file in written:
            logs.add_written(index, file.group, delta.version, file.records)
        logs.add_recorded(index, delta, stats)


def _log_files(
    source: Source, entry: Entry, delta: Delta, parts: Sequence[MetadataPartition], pool: ThreadPoolExecutor
) -> Iterator[Iterable[LogFile] | Exception]:
    """Yield the log files of each partition, or why they cannot be known."""
    changes = functools.partial(_changes, source, entry)
    # Partitions whose records are made from memory would only wait for each other, and so would encoders of files.
    changed = pool.map(changes, parts) if _reads_files(entry) else map(changes, parts)
    for part, found in zip(parts, changed, strict=True):
        yield found if isinstance(found, Exception) else _encoded(delta, part, found)


def _encoded(delta: Delta, part: MetadataPartition, changes: Iterable[tuple[int, Records]]) -> list[LogFile] | Exception:
    try:
        return [log_file_of(part.name, delta.instant, group, records) for group, records in changes]
    except UNREADABLE as error:
        return error


def _reads_files(entry: Entry) -> bool:
    """Return whether records of the entry may be read in files of the table."""
    return not isinstance(entry.body, Published) or any(stat.path and stat.keys is None for stat in entry.body.metadata.stats)


def _changes(source: Source, entry: Entry, part: MetadataPartition) -> list[tuple[int, Records]] | Exception:
    try:
        return changes_of(source, entry, part)
    except UNREADABLE as error:
        return error


def _lost(form: TableFormat, part: MetadataPartition, delta: Delta, error: Exception) -> list[WriteStat]:
    return lost_files(part, [log_name(form, part.base, delta, file_id) for file_id in file_ids(part)], error)


def _put_log(source: Source, delta: Delta, part: MetadataPartition, file: LogFile) -> list[WriteStat]:
    file_id, kind, count = file_id_of(part.name, file.group), kind_of(part.name), file.records.updates.num_rows
    name = log_name(source.form, part.base, delta, file_id)
    put_once(source.storage, file_path(name, part.name), file.content)
    every = [d for d in part.deltas if d.version] if kind.writes_every_delta else [delta]
    stat = WriteStat(
        file_id=file_id,
        partition_path=part.name,
        path=f"{part.name}/{name}",
        prev_commit=part.base,
        num_writes=count,
        file_size_bytes=len(file.content),
        num_updates=count,
        num_deletes=len(file.records.deletes),
        base_file=base_name(part.base, file_id),
        log_files=tuple(log_name(source.form, part.base, d, file_id) for d in every),
        log_version=delta.version,
    )
    return [stat]
