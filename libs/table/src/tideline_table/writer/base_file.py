"""Writing of Parquet base files (format reference 8.2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


class BaseFileRows:
    """The rows of a base file that is being written."""

    def __init__(self, writer: pq.ParquetWriter, row_group_rows: int) -> None:
        self._writer = writer
        self._row_group_rows = row_group_rows
        self._min: str | None = None
        self._max: str | None = None

    def write(self, rows: pa.Table) -> None:
        """Write rows in row groups of their own."""
        span = pc.min_max(rows.column(MetaField.RECORD_KEY)).as_py()
        if span["min"] is not None:
            self._min = span["min"] if self._min is None else min(self._min, span["min"])
            self._max = span["max"] if self._max is None else max(self._max, span["max"])
        self._writer.write_table(rows, row_group_size=self._row_group_rows)

    def key_range(self) -> dict[bytes, bytes]:
        """Return the pairs of the footer for the range of record keys."""
        # Arrow orders strings by bytes, Java by UTF-16 units. The orders may differ from U+D800 on, so the range is left out there.
        if self._min is None or self._max is None or max(self._min + self._max, default="") >= "\ud800":
            return {}
        return {MIN_KEY: self._min.encode(), MAX_KEY: self._max.encode()}


@contextmanager
def open_base_file(storage: Storage, path: str, schema: pa.Schema, avro_schema: str, options: Options) -> Iterator[BaseFileRows]:
    """Open a base file that appears at the end of the context, or not at all if the context ends with an error."""
    codec = options[COMPRESSION_CODEC]
    with (
        storage.open_output(path) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression=codec,
            compression_level=_ZSTD_LEVEL if codec == "zstd" else None,
            use_dictionary=[f.name for f in schema if f.name not in _UNIQUE_COLUMNS],
            store_schema=False,
            write_page_index=True,
        ) as writer,
    ):
        rows = BaseFileRows(writer, options[ROW_GROUP_ROWS])
        yield rows
        # Without `store_schema`, metadata of the Arrow schema would not reach the footer.
        writer.add_key_value_metadata(
            {b"parquet.avro.schema": avro_schema.encode(), b"writer.model.name": b"avro", **rows.key_range()}
        )


def write_base_file(storage: Storage, path: str, rows: pa.Table, avro_schema: str, options: Options) -> int:
    """Write `rows` (meta fields first) as a base file that appears as a whole or not at all; return its size in bytes."""
    with open_base_file(storage, path, rows.schema, avro_schema, options) as file:
        file.write(rows)
    return storage.stat(path).size_bytes
