"""Which keys of a file slice its log files deleted: index look-ups still find a deleted key in its file until a compaction.

An insert that drops or refuses keys of the table must know which keys are live. And a blind insert of a deleted key leaves the key
in two file groups, of which a later update must change only one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.write.transaction import LookUp
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.scope import KeyScope
from tideline_table.index.simple import Location, SimpleIndex, partition_rows
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.table.facade import Table
from tideline_table.table.query import Snapshot
from tideline_table.writer import PreparedInput


def deleted_keys(table: Table, file_slice: FileSlice, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return True for each of `keys`, all present in the base file, that the log files of `file_slice` delete."""
    if not may_delete(file_slice) or not len(keys):
        return np.zeros(len(keys), dtype=bool)
    wanted = one_chunk(keys)
    schema = with_meta_fields(table.schema)
    rows = read_slice(table.storage, file_slice, schema, table.log_rule(), [MetaField.RECORD_KEY], keys=wanted)
    held: np.ndarray = np.asarray(pc.is_in(wanted, value_set=one_chunk(rows.column(0))))
    return ~held


def may_delete(file_slice: FileSlice) -> bool:
    """Return whether the log files of a slice may delete keys."""
    return any(log.deletes_keys for log in file_slice.applied.log_files)


def all_deleted_keys(snapshot: Snapshot, file_slice: FileSlice) -> pa.Array:
    """Return all keys that files of `file_slice` hold and its log files delete, each once."""
    held = pc.unique(SimpleIndex(snapshot.storage).keys(file_slice))
    rows = read_slice(snapshot.storage, file_slice, snapshot.schema, snapshot.rule, [MetaField.RECORD_KEY])
    return held.filter(pc.invert(pc.is_in(held, value_set=one_chunk(rows.column(0)))))


def without_deleted(table: Table, location: Location, keys: pa.ChunkedArray) -> Location:
    """Return `location` for a write: a key found in several file groups is dropped from those whose log files deleted it."""
    found = np.zeros(len(keys), dtype=np.int64)
    for hits in location.hits:
        found[hits] += 1
    if not (found > 1).any():
        return location
    slices: list[FileSlice] = []
    kept: list[np.ndarray] = []
    for file_slice, hits in zip(location.slices, location.hits, strict=True):
        gone = np.zeros(len(hits), dtype=bool)
        several = np.flatnonzero(found[hits] > 1)
        gone[several] = deleted_keys(table, file_slice, keys.take(pa.array(hits[several])))
        if not gone.all():
            slices.append(file_slice)
            kept.append(hits[~gone])
    return Location(tuple(slices), tuple(kept), location.keys)


def split_by_life(table: Table, location: Location, keys: pa.ChunkedArray) -> tuple[np.ndarray, Location]:
    """Return which of `keys` the table holds, and the base-file locations of the keys that log files deleted."""
    live = np.zeros(len(keys), dtype=bool)
    dead: list[tuple[FileSlice, np.ndarray]] = []
    for file_slice, hits in zip(location.slices, location.hits, strict=True):
        gone = deleted_keys(table, file_slice, keys.take(pa.array(hits)))
        live[hits[~gone]] = True
        dead.append((file_slice, hits[gone]))
    revived = [(file_slice, hits[~live[hits]]) for file_slice, hits in dead]
    revived = [(file_slice, hits) for file_slice, hits in revived if len(hits)]
    return live, Location(tuple(s for s, _ in revived), tuple(h for _, h in revived), location.keys)


def key_look_up(table: Table, prepared: PreparedInput) -> LookUp:
    """Return a look-up of the keys of `prepared` in slices that another write added."""

    def find(written: Sequence[FileSlice]) -> str | None:
        rows = partition_rows(prepared.partition_paths)
        for file_slice in written:
            partition = file_slice.group.partition_path
            if prepared.scope is KeyScope.TABLE:
                keys = prepared.keys
            elif partition in rows:
                keys = prepared.keys.take(pa.array(rows[partition]))
            else:
                continue
            if table.index.locate(keys, [file_slice]).slices:
                return partition
        return None

    return LookUp(prepared.scope, find)
