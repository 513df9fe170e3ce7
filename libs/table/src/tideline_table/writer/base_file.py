"""Writing of Parquet base files (format reference 8.2)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.config import COMPRESSION_CODEC, ROW_GROUP_ROWS, Options
from tideline_table.reader.base_file import MAX_KEY, MIN_KEY
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_ZSTD_LEVEL = 1
"""Level 1 encodes nearly as fast as snappy into smaller files; higher levels cost writers more than readers gain."""
_UNIQUE_COLUMNS = (MetaField.COMMIT_SEQNO, MetaField.RECORD_KEY)


def write_base_file(storage: Storage, path: str, rows: pa.Table, avro_schema: str, options: Options) -> int:
    """Write `rows` (meta fields first) as a base file that appears as a whole or not at all; return its size in bytes."""
    pairs = {b"parquet.avro.schema": avro_schema.encode(), b"writer.model.name": b"avro"}
    span = pc.min_max(rows.column(MetaField.RECORD_KEY)).as_py()
    # Arrow orders strings by bytes, Java by UTF-16 units. The orders may differ from U+D800 on, so the range is left out there.
    if span["min"] is not None and max(span["min"] + span["max"]) < "\ud800":
        pairs |= {MIN_KEY: span["min"].encode(), MAX_KEY: span["max"].encode()}
    codec = options[COMPRESSION_CODEC]
    with (
        storage.open_output(path) as sink,
        pq.ParquetWriter(
            sink,
            rows.schema,
            compression=codec,
            compression_level=_ZSTD_LEVEL if codec == "zstd" else None,
            use_dictionary=[f.name for f in rows.schema if f.name not in _UNIQUE_COLUMNS],
            store_schema=False,
            write_page_index=True,
        ) as writer,
    ):
        writer.write_table(rows, row_group_size=options[ROW_GROUP_ROWS])
        # Without `store_schema`, metadata of the Arrow schema would not reach the footer.
        writer.add_key_value_metadata(pairs)
    return storage.stat(path).size_bytes
