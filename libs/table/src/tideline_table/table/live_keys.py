"""Which keys of a base file its log deleted: look-ups read base files only, and a deleted key stands there until a compaction takes it away.

Two cases need more than the base file. While a compaction is pending, a key that the planned logs delete will not be in the new base file:
appended to the log again, no later look-up would find it, and the next upsert would add it a second time. And an insert that keeps what the
table holds has to know what it still holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import WriteConflict
from tideline_table.file_group.names import parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.index.simple import Location, one_chunk
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.table.facade import Table
from tideline_table.timeline.write_stats import WriteStat


def planned_part(file_slice: FileSlice) -> FileSlice:
    """What a pending compaction of the visible slice `file_slice` reads: its base file and the log files of the slice before."""
    logs = tuple(log for log in file_slice.log_files if _base_instant(log) != file_slice.base_instant)
    return replace(file_slice, log_files=logs)


def _base_instant(log: LogFile) -> str:
    name = parse_log_file_name(log.name)
    return name.base_instant if name is not None else ""


def deleted_keys(table: Table, file_slice: FileSlice, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """True for each of `keys`, which stand in the base file, that the log of `file_slice` takes away."""
    if not file_slice.log_files or not len(keys):
        return np.zeros(len(keys), dtype=bool)
    wanted = one_chunk(keys) if isinstance(keys, pa.ChunkedArray) else keys
    schema = with_meta_fields(table.schema)
    rows = read_slice(table.storage, file_slice, schema, table.log_rule(), [MetaField.RECORD_KEY], keys=wanted)
    held: np.ndarray = np.asarray(pc.is_in(wanted, value_set=one_chunk(rows.column(0))))
    return ~held


def _dropped_keys(table: Table, file_slice: FileSlice, keys: pa.ChunkedArray) -> np.ndarray:
    """True for each of `keys` that will be neither in the base file of the pending compaction nor in a log file that look-ups search."""
    later = tuple(log for log in file_slice.log_files if _base_instant(log) == file_slice.base_instant)
    added = table.index.log_keys(replace(file_slice, base_file="", log_files=later))
    stays: np.ndarray = np.asarray(pc.is_in(keys, value_set=one_chunk(added)))
    dropped = deleted_keys(table, planned_part(file_slice), keys)
    dropped[stays] = False
    return dropped


def without_deleted(table: Table, location: Location, keys: pa.ChunkedArray, compacting: Mapping[FileGroupId, str]) -> Location:
    """`location` of `keys` as a write may use it.

    Without keys that a pending compaction takes out of their base file, and of keys found several times without those deleted in a log.
    """
    found = np.zeros(len(keys), dtype=np.int64)
    for hits in location.hits:
        found[hits] += 1
    slices: list[FileSlice] = []
    kept: list[np.ndarray] = []
    for file_slice, hits in zip(location.slices, location.hits, strict=True):
        gone = np.zeros(len(hits), dtype=bool)
        if file_slice.group in compacting:
            gone = _dropped_keys(table, file_slice, keys.take(pa.array(hits)))
        several = np.flatnonzero((found[hits] > 1) & ~gone)
        gone[several] = deleted_keys(table, file_slice, keys.take(pa.array(hits[several])))
        if not gone.all():
            slices.append(file_slice)
            kept.append(hits[~gone])
    return Location(tuple(slices), tuple(kept), location.keys)


def split_by_life(table: Table, location: Location, keys: pa.ChunkedArray) -> tuple[np.ndarray, Location]:
    """Which of `keys` the table holds, and the places of those that only base files hold, deleted by their logs."""
    live = np.zeros(len(keys), dtype=bool)
    dead: list[tuple[FileSlice, np.ndarray]] = []
    for file_slice, hits in zip(location.slices, location.hits, strict=True):
        gone = deleted_keys(table, file_slice, keys.take(pa.array(hits)))
        live[hits[~gone]] = True
        dead.append((file_slice, hits[gone]))
    revived = [(file_slice, hits[~live[hits]]) for file_slice, hits in dead]
    revived = [(file_slice, hits) for file_slice, hits in revived if len(hits)]
    return live, Location(tuple(s for s, _ in revived), tuple(h for _, h in revived), location.keys)


def check_appended(table: Table, stats: list[WriteStat]) -> None:
    """For writers that look keys up in base files alone: raise `WriteConflict` where a log file revives keys that a pending compaction drops."""
    compacting = table.state.groups_under_compaction()
    for stat in stats:
        group = FileGroupId(stat.partition_path, stat.file_id)
        # Look-ups search log files that add keys.
        is_looked_up = not stat.is_log or stat.num_inserts > 0
        visible = table.state.latest_slice(group) if group in compacting and not is_looked_up else None
        if visible is None or not visible.base_file:
            continue
        name = stat.path.rsplit("/", 1)[-1]
        written = replace(visible, base_file="", log_files=(LogFile(name, stat.file_size_bytes, "", stat.log_version),))
        schema = with_meta_fields(table.schema)
        rows = read_slice(table.storage, written, schema, table.log_rule(), [MetaField.RECORD_KEY])
        gone = deleted_keys(table, planned_part(visible), rows.column(0))
        if gone.any():
            raise WriteConflict(
                f"{int(gone.sum())} record key(s) in {group.partition_path!r} that compaction {compacting[group]} drops as deleted",
                with_instant=compacting[group],
                remedy="retry when the compaction is done",
            )
