"""The record keys that log files change or delete, read without their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.log_format import BlockType, LogBlock, read_deletes, read_rows, scan_log
from tideline_table.log_format.block import HeaderKey
from tideline_table.log_format.key_index import read_index, read_keys
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_DATA = (BlockType.AVRO, BlockType.PARQUET, BlockType.HFILE)


def log_keys(storage: Storage, paths: Iterable[str], counts: Callable[[LogBlock], bool] = lambda _: True) -> pa.Array:
    """Return the distinct record keys in the data and delete blocks of these log files that count. Errors as `scan_log`."""
    return _distinct(keys for path in paths for _, keys in _by_block(storage, path, counts))


def log_keys_and_chosen(storage: Storage, paths: Iterable[str], chosen: Callable[[LogBlock], bool]) -> tuple[pa.Array, pa.Array]:
    """Return the `log_keys` of all blocks, and those of the chosen ones."""
    found = [held for path in paths for held in _by_block(storage, path)]
    return _distinct(keys for _, keys in found), _distinct(keys for block, keys in found if chosen(block))


def _distinct(found: Iterable[pa.ChunkedArray]) -> pa.Array:
    chunks = [chunk.cast(pa.string()) for keys in found for chunk in keys.chunks]
    return pc.unique(pa.concat_arrays([pa.array([], pa.string()), *chunks]))


def held_keys(storage: Storage, path: str) -> pa.ChunkedArray:
    """Return the record keys that a log file holds.

    Keys may repeat: those in its data blocks, and those that a log compaction merged.

    The merged files may be the only ones that hold a key which the log compaction has as deleted. A later row with that key
    must be found in this file group, where it is compared with the deletion.
    """
    found = [keys for block, keys in _by_block(storage, path) if holds_keys(block)]
    return pa.chunked_array([chunk.cast(pa.string()) for keys in found for chunk in keys.chunks], pa.string())


def holds_keys(block: LogBlock) -> bool:
    """Return whether a look-up finds the keys of a block in its file group.

    Of a data block, or of any block of a log compaction.
    """
    return block.type is not BlockType.DELETE or bool(block.header.get(HeaderKey.COMPACTED_BLOCK_TIMES))


def _by_block(
    storage: Storage, path: str, counts: Callable[[LogBlock], bool] = lambda _: True
) -> list[tuple[LogBlock, pa.ChunkedArray]]:
    """Return keys by block, from the key index if there is one."""
    index = read_index(storage, path)
    keys = read_keys(storage, index) if index is not None else None
    if index is not None and keys is not None:
        pairs = zip(index.logs[-1].blocks, keys, strict=True)
        return [(found.block, pa.chunked_array([names])) for found, names in pairs if counts(found.block)]
    blocks = filter(counts, scan_log(storage, path).blocks)
    return [(b, block_keys(storage, b)) for b in blocks if b.type is BlockType.DELETE or b.type in _DATA]


def block_keys(storage: Storage, block: LogBlock) -> pa.ChunkedArray:
    """Return the record keys in a data or delete block."""
    if block.type is BlockType.DELETE:
        return read_deletes(storage, block).column(MetaField.RECORD_KEY)
    return read_rows(storage, block, [MetaField.RECORD_KEY]).column(0)
