"""The record keys that log files change or delete, read without their rows."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.log_format import BlockType, read_deletes, read_rows, scan_log
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_DATA = (BlockType.AVRO, BlockType.PARQUET, BlockType.HFILE)


def log_keys(storage: Storage, paths: Iterable[str]) -> pa.Array:
    """All record keys in the data and delete blocks of these log files, each once. Errors as `scan_log`."""
    found: list[pa.Array] = [pa.array([], pa.string())]
    for path in paths:
        for block in scan_log(storage, path).blocks:
            if block.type is BlockType.DELETE:
                found += read_deletes(storage, block).column(MetaField.RECORD_KEY).chunks
            elif block.type in _DATA:
                found += read_rows(storage, block, [MetaField.RECORD_KEY]).column(0).chunks
    return pc.unique(pa.concat_arrays([keys.cast(pa.string()) for keys in found]))
