"""Blocks of rows: Avro, parquet, HFile and change data (format reference 9.6)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.config import COMPRESSION_CODEC
from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable
from tideline_table.log_format.avro import Node, decode_datums, encode_datums, parse_schema, row_schema
from tideline_table.log_format.avro.cursor import Ints
from tideline_table.log_format.block import BlockType, HeaderKey, LogBlock, damaged, read_content
from tideline_table.log_format.framing import BLOCK_VERSION, frame_block
from tideline_table.log_format.hfile import read_hfile
from tideline_table.log_format.record_spans import record_spans
from tideline_table.schema.evolution import conform
from tideline_table.storage import Storage

_PREFIX = struct.Struct(">ii")
_EMPTIED_FIELD = "key"
_LEAST_BLOCK_ROWS = 10_000
_MOST_ROWS_PER_BYTE = 16
_BATCH_ROWS = 16_384
"""Records decoded at a time: as many as keep their positions in the processor's cache."""
_BATCH_BYTES = 64 * 1024 * 1024
_ALONE_BYTES = 256 * 1024
"""Blocks up to this size are decoded faster by one thread than with helpers that have to be woken up."""


def read_rows(storage: Storage, block: LogBlock, columns: Sequence[str] | None = None, schema_json: str | None = None) -> pa.Table:
    """The rows of an Avro, parquet, HFile or change data block, typed as `tideline_table.schema` types the block's Avro schema.

    Meta fields are strings. `columns` selects and orders columns. With `schema_json`, a later Avro schema of the table, rows come
    in that schema: columns that the block lacks are null, types are widened. Raises `CorruptMetadata` for content that is not
    what the header says, `SchemaMismatch` for columns that are not there or do not fit, `UnsupportedTable` for other blocks.
    """
    content = read_content(storage, block, BlockType.AVRO, BlockType.CDC, BlockType.PARQUET, BlockType.HFILE)
    text = block.schema_json or schema_json
    if text is None:
        raise damaged(block, "has no schema in its header")
    own = row_schema(text)
    wanted = row_schema(schema_json) if schema_json is not None else own
    wanted = _selected(wanted, columns)
    read = [field.name for field in own if field.name in wanted.names]
    try:
        if block.type is BlockType.PARQUET:
            rows = _parquet_rows(content, own, read)
        elif block.type is BlockType.HFILE:
            rows = _hfile_rows(content, parse_schema(text), own, read)
        else:
            rows = _avro_rows(content, parse_schema(text), own, read)
    except CorruptMetadata as error:
        raise damaged(block, f"holds {error.found}") from error
    # A table without columns still has rows, which a new one would not.
    return conform(rows, wanted) if wanted.names else rows.select([])


def _selected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise SchemaMismatch(f"no column(s) {', '.join(map(repr, unknown))}", expected=f"columns among {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


def _parquet_rows(content: bytes, own: pa.Schema, read: Sequence[str]) -> pa.Table:
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            _check_rows(file.metadata, len(content))
            columns = [name for name in read if name in file.schema_arrow.names]
            found = file.read(columns=columns, use_threads=len(content) > _ALONE_BYTES)
            # Arrow takes the bytes of a text for UTF-8 without looking.
            found.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise CorruptMetadata(f"no readable parquet file ({reason})", expected="a parquet file") from None
    present = pa.schema([own.field(name) for name in read if name in found.column_names])
    return conform(found, present) if present.names else found.select([])


def _check_rows(metadata: pq.FileMetaData, size_bytes: int) -> None:
    """Records have a key each, so a block does not hold many more of them than bytes, whatever compression makes of it."""
    rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    most = _LEAST_BLOCK_ROWS + _MOST_ROWS_PER_BYTE * size_bytes
    if not 0 <= max(rows, metadata.num_rows) <= most:
        raise CorruptMetadata(f"{rows} rows in {size_bytes} bytes", expected=f"at most {most}")


def _avro_rows(content: bytes, node: Node, own: pa.Schema, read: Collection[str]) -> pa.Table:
    if len(content) < _PREFIX.size:
        raise CorruptMetadata("less than a block version and a count", expected="Avro records")
    version, count = _PREFIX.unpack_from(content)
    if not 1 <= version <= BLOCK_VERSION:
        raise UnsupportedTable(f"data block version {version}", expected=f"version {BLOCK_VERSION} or earlier")
    begins, ends = record_spans(content, _PREFIX.size, count)
    schema = pa.schema([field for field in own if field.name in read])
    batches = [
        pa.RecordBatch.from_arrays(
            decode_datums(memoryview(content)[origin:end], begins[rows] - origin, ends[rows] - origin, node, own, read),
            schema=schema,
        )
        for rows, origin, end in _stretches(begins, ends)
        if read
    ]
    return pa.Table.from_batches(batches, schema) if read else pa.table({"": pa.nulls(count)}).select([])


def _hfile_rows(content: bytes, node: Node, own: pa.Schema, read: Collection[str]) -> pa.Table:
    """Avro records again, each behind its record key."""
    schema = pa.schema([field for field in own if field.name in read])
    count, batches = 0, []
    for entries in read_hfile(content).entries():
        count += entries.num_rows
        if read:
            batches.append(_with_keys(entries.column(0), _hfile_batch(entries.column(1), node, own, schema)))
    return pa.Table.from_batches(batches, schema) if read else pa.table({"": pa.nulls(count)}).select([])


def _hfile_batch(values: pa.BinaryArray, node: Node, own: pa.Schema, schema: pa.Schema) -> pa.RecordBatch:
    _, offsets, datums = values.buffers()
    places = np.frombuffer(offsets, dtype=np.int32, count=len(values) + 1).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        decode_datums(memoryview(datums or b""), places[:-1], places[1:], node, own, schema.names), schema=schema
    )


def _with_keys(keys: pa.BinaryArray, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Hudi empties a field of this name where the key of the entry says the same."""
    at = rows.schema.get_field_index(_EMPTIED_FIELD)
    if at < 0 or not pa.types.is_string(rows.schema.field(at).type):
        return rows
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise CorruptMetadata("a key that is no text", expected="UTF-8") from None
    column = rows.column(at)
    return rows.set_column(at, rows.schema.field(at), pc.if_else(pc.equal(column, pa.scalar("")), texts, column))


def _stretches(begins: Ints, ends: Ints) -> Iterator[tuple[slice, int, int]]:
    """Batches of records, with the first and last byte of each."""
    first = 0
    while first < len(begins):
        last = min(first + _BATCH_ROWS, len(begins))
        if ends[last - 1] - begins[first] > _BATCH_BYTES:
            last = max(first + 1, int(np.searchsorted(ends, begins[first] + _BATCH_BYTES, side="right")))
        yield slice(first, last), int(begins[first]), int(ends[last - 1])
        first = last


def avro_block(rows: pa.Table, avro_schema_json: str, instant: str) -> bytes:
    """A block of `rows`, which have exactly the columns and types of the schema, written by `instant`.

    Raises `SchemaMismatch` where they do not.
    """
    records = encode_datums(exactly(rows, row_schema(avro_schema_json)), parse_schema(avro_schema_json))
    content = b"".join((_PREFIX.pack(BLOCK_VERSION, rows.num_rows), *records))
    return frame_block(BlockType.AVRO, _header(avro_schema_json, instant), content)


def parquet_block(rows: pa.Table, avro_schema_json: str, instant: str, compression: str = COMPRESSION_CODEC.default) -> bytes:
    """The same as a parquet file inside a block; `compression` is a choice of `hoodie.parquet.compression.codec`."""
    fitted = exactly(rows, row_schema(avro_schema_json))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, fitted.schema, compression=compression, store_schema=False) as writer:
        writer.write_table(fitted)
        writer.add_key_value_metadata({b"parquet.avro.schema": avro_schema_json.encode(), b"writer.model.name": b"avro"})
    return frame_block(BlockType.PARQUET, _header(avro_schema_json, instant), sink.getvalue().to_pybytes())


def _header(avro_schema_json: str, instant: str) -> dict[HeaderKey, str]:
    return {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: avro_schema_json}


def exactly(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` under `schema`, of which they have every column and no other, in any order."""
    if sorted(rows.column_names) != sorted(schema.names):
        raise SchemaMismatch(f"columns {', '.join(rows.column_names)}", expected=f"exactly {', '.join(schema.names)}")
    return conform(rows, schema)
