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
from tideline_table.log_format.block import BlockType, LogBlock, damaged, read_content
from tideline_table.log_format.framing import BLOCK_VERSION, block_header, frame_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.record_spans import record_spans
from tideline_table.schema.evolution import conform, settled
from tideline_table.storage import Storage

_PREFIX = struct.Struct(">ii")
_EMPTIED_FIELD = "key"
_LEAST_BLOCK_ROWS = 10_000
_MOST_ROWS_PER_BYTE = 16
_BATCH_ROWS = 16_384
"""Number of records decoded at a time, chosen so that their positions fit into the processor cache."""
_BATCH_BYTES = 64 * 1024 * 1024
_ALONE_BYTES = 1024 * 1024
"""Up to this block size, the caller's thread decodes: threads of a pool that have to wake up take up to twice its processor
time."""


def read_rows(storage: Storage, block: LogBlock, columns: Sequence[str] | None = None, schema_json: str | None = None) -> pa.Table:
    """Read the rows of an Avro, Parquet, HFile or change data block, with the Arrow types of the block's Avro schema.

    Meta fields are strings. `columns` selects and orders columns. With `schema_json`, a later Avro schema of the table, rows have
    that schema: columns that the block lacks are null, and types are widened. Raises `CorruptMetadata` for content that contradicts
    the header, `SchemaMismatch` for columns that are unknown or do not fit, `UnsupportedTable` for other block types.
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
    # Without columns, `select` keeps the row count; a new table would have no rows.
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
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
            _check_rows(file.metadata, len(content))
            stored = file.schema_arrow.names
            columns = [name for name in read if name in stored]
            found = file.read(columns=columns, use_threads=len(content) > _ALONE_BYTES)
            # Arrow does not check that the bytes of a string are UTF-8.
            found.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise CorruptMetadata(f"a Parquet file that cannot be read ({reason})", expected="Parquet") from None
    present = pa.schema([own.field(name) for name in read if name in found.column_names])
    return conform(found, present) if present.names else found.select([])


def _check_rows(metadata: pq.FileMetaData, size_bytes: int) -> None:
    """Raise `CorruptMetadata` if the footer claims too many rows for the size, so that a small file cannot exhaust memory."""
    rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    most = _LEAST_BLOCK_ROWS + _MOST_ROWS_PER_BYTE * size_bytes
    if not 0 <= max(rows, metadata.num_rows) <= most:
        raise CorruptMetadata(f"{rows} rows in {size_bytes} bytes", expected=f"at most {most}")


def _avro_rows(content: bytes, node: Node, own: pa.Schema, read: Collection[str]) -> pa.Table:
    if len(content) < _PREFIX.size:
        raise CorruptMetadata("fewer bytes than a block version and a record count", expected="Avro records")
    version, count = _PREFIX.unpack_from(content)
    if not 1 <= version <= BLOCK_VERSION:
        raise UnsupportedTable(f"data block version {version}", expected=f"version {BLOCK_VERSION} or earlier")
    begins, ends = record_spans(content, _PREFIX.size, count)
    if not read:
        return _no_columns(count)
    batches = [
        _decoded(memoryview(content)[first:last], begins[rows] - first, ends[rows] - first, node, own, read)
        for rows, first, last in _batches(begins, ends)
    ]
    return pa.Table.from_batches(batches, _part(own, read))


def _no_columns(rows: int) -> pa.Table:
    return pa.table({"": pa.nulls(rows)}).select([])


def _part(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])


def _decoded(datums: memoryview, begins: Ints, ends: Ints, node: Node, own: pa.Schema, read: Collection[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(decode_datums(datums, begins, ends, node, own, read), schema=_part(own, read))


def _hfile_rows(content: bytes, node: Node, own: pa.Schema, read: Collection[str]) -> pa.Table:
    """Read an HFile, whose values are Avro records and whose keys are record keys."""
    count, batches = 0, []
    for entries in HFile(content).entries():
        count += entries.num_rows
        if read:
            keys, values = entries.columns
            _, offsets, datums = values.buffers()
            places = np.frombuffer(offsets, dtype=np.int32, count=len(values) + 1).astype(np.int64)
            rows = _decoded(memoryview(datums or b""), places[:-1], places[1:], node, own, read)
            batches.append(_with_keys(keys, rows))
    return pa.Table.from_batches(batches, _part(own, read)) if read else _no_columns(count)


def _with_keys(keys: pa.BinaryArray, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Fill the empty field `key` from the keys of the entries: Hudi leaves it empty because it equals the key of the entry."""
    at = rows.schema.get_field_index(_EMPTIED_FIELD)
    if at < 0 or not pa.types.is_string(rows.schema.field(at).type):
        return rows
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise CorruptMetadata("a key that is not UTF-8", expected="text") from None
    column = rows.column(at)
    return rows.set_column(at, rows.schema.field(at), pc.if_else(pc.equal(column, pa.scalar("")), texts, column))


def _batches(begins: Ints, ends: Ints) -> Iterator[tuple[slice, int, int]]:
    """Yield batches of records, each with the offsets of its begin and end."""
    first = 0
    while first < len(begins):
        last = min(first + _BATCH_ROWS, len(begins))
        if ends[last - 1] - begins[first] > _BATCH_BYTES:
            last = max(first + 1, int(np.searchsorted(ends, begins[first] + _BATCH_BYTES, side="right")))
        yield slice(first, last), int(begins[first]), int(ends[last - 1])
        first = last


def avro_block(
    rows: pa.Table,
    avro_schema_json: str,
    instant: str,
    merged: Sequence[str] = (),
    kind: BlockType = BlockType.AVRO,
    *,
    partial: bool = False,
) -> bytes:
    """Return an Avro data block (or one of change data) of `rows`, written by `instant`.

    `merged` are the instants whose blocks a log compaction merged into this one; `partial` as for `block_header`. Raises
    `SchemaMismatch` unless `rows` have exactly the columns of the schema, with fitting types.
    """
    records = encode_datums(exactly(rows, row_schema(avro_schema_json)), parse_schema(avro_schema_json))
    content = b"".join((_PREFIX.pack(BLOCK_VERSION, rows.num_rows), *records))
    return frame_block(kind, block_header(instant, merged, avro_schema_json, partial=partial), content)


def parquet_block(
    rows: pa.Table, avro_schema_json: str, instant: str, merged: Sequence[str] = (), *, partial: bool = False
) -> bytes:
    """Like `avro_block`, with a Parquet file as content."""
    fitted = settled(exactly(rows, row_schema(avro_schema_json)))
    sink = pa.BufferOutputStream()
    codec = COMPRESSION_CODEC.default
    with pq.ParquetWriter(sink, fitted.schema, compression=codec, store_schema=False, write_page_checksum=True) as writer:
        writer.write_table(fitted)
        writer.add_key_value_metadata({b"parquet.avro.schema": avro_schema_json.encode(), b"writer.model.name": b"avro"})
    header = block_header(instant, merged, avro_schema_json, partial=partial)
    return frame_block(BlockType.PARQUET, header, sink.getvalue().to_pybytes())


def exactly(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` in the column order and types of `schema`. Raises `SchemaMismatch` for missing or additional columns."""
    if sorted(rows.column_names) != sorted(schema.names):
        raise SchemaMismatch(f"columns {', '.join(rows.column_names)}", expected=f"exactly {', '.join(schema.names)}")
    return conform(rows, schema)
