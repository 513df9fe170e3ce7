"""ORC base files (format reference 8.2), which a table has that declares `hoodie.table.base.file.format=ORC`.

Such a file is decoded as a whole when it is opened, so that everything behind it reads Parquet from memory: columns, filters and
statistics are those of any base file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable
from tideline_table.log_format.protobuf import bytes_field, number_field, read_fields
from tideline_table.schema.avro import arrow_from_avro

if TYPE_CHECKING:
    from pyarrow import orc

ORC = ".orc"
"""The end of the names of ORC files."""
AVRO_SCHEMA = b"orc.avro.schema"
"""The schema of the rows in the user metadata: ORC has one type for timestamps of any unit, and none for times of day."""
_FOOTER_LENGTH, _COMPRESSION, _USER_METADATA = 1, 2, 5
_YEARS = "timestamps from 1677 to 2262"
_BLOCK_BYTES = 256 * 1024
"""Bytes that are compressed together, as by Apache Hudi."""


def as_parquet(content: pa.Buffer) -> pa.BufferReader:
    """Return the rows and the user metadata of an ORC file as a Parquet file. Raises Arrow's errors for a damaged one."""
    from pyarrow import orc

    file = orc.ORCFile(pa.BufferReader(content))
    pairs, stored = dict(file.metadata or {}), file.schema.remove_metadata()
    declared = arrow_from_avro(pairs[AVRO_SCHEMA].decode()) if AVRO_SCHEMA in pairs else pa.schema([])
    schema = pa.schema([_optional(declared.field(f.name)) if f.name in declared.names else f for f in stored])
    # As in Tideline's own files, no statistics of floating numbers, which do not tell of a NaN.
    plain = [f.name for f in schema if not pa.types.is_nested(f.type) and not pa.types.is_floating(f.type)]
    sink, rows = pa.BufferOutputStream(), 0
    with pq.ParquetWriter(sink, schema, compression="none", store_schema=False, write_statistics=plain) as writer:
        for number in range(file.nstripes):
            stripe = pa.Table.from_batches([_stripe(file, number)]).replace_schema_metadata()
            rows += stripe.num_rows
            writer.write_table(stripe.cast(schema))
        writer.add_key_value_metadata({key: value for key, value in pairs.items() if key != AVRO_SCHEMA})
    if rows != file.nrows:
        raise CorruptMetadata(f"an ORC file with {rows} rows", expected=f"{file.nrows}, as its footer says")
    return pa.BufferReader(sink.getvalue())


def _optional(field: pa.Field) -> pa.Field:
    """Return `field` with optional members only: ORC requires none, so Arrow reads nulls in all members behind a null struct."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(member) for member in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _optional(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_optional(kind.value_field))
    return pa.field(field.name, kind)


def _stripe(file: orc.ORCFile, number: int) -> pa.RecordBatch:
    try:
        return file.read_stripe(number)
    except pa.ArrowInvalid as error:
        if "nanosecond" not in str(error):
            raise
        raise UnsupportedTable(f"an ORC file with a timestamp that Arrow cannot read ({error})", expected=_YEARS) from None


def orc_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types in which Apache Hudi stores the columns of `schema` in ORC. Raises `SchemaMismatch` for one without."""
    return pa.schema([pa.field(f.name, _stored(f.type, f.name)) for f in schema])


def _stored(kind: pa.DataType, name: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise SchemaMismatch(
                f"column {name!r} of type {kind} in a table of ORC files",
                expected="timestamps with a zone: Apache Hudi has no type of ORC for local ones",
                remedy="give the column the zone UTC, or create a table of Parquet files",
            )
        return pa.timestamp("ns")
    if pa.types.is_time(kind):
        return pa.int32() if kind == pa.time32("ms") else pa.int64()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_stored(f.type, f"{name}.{f.name}")) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _stored(kind.item_type, f"{name}.value"))
    return pa.list_(_stored(kind.value_type, f"{name}.array")) if pa.types.is_list(kind) else kind


class OrcWriter:
    """Writes an ORC file in memory, because its footer is completed afterwards: Arrow's writer takes no user metadata."""

    def __init__(self, schema: pa.Schema, codec: str) -> None:
        from pyarrow import orc

        self._schema, self._sink = orc_schema(schema), pa.BufferOutputStream()
        compression = {"none": "uncompressed", "gzip": "zlib"}.get(codec, codec)
        self._writer = orc.ORCWriter(self._sink, compression=compression, compression_block_size=_BLOCK_BYTES)

    def write_table(self, rows: pa.Table, _row_group_size: int) -> None:
        """Write rows. Raises `SchemaMismatch` for a timestamp that no reader by Arrow can read."""
        try:
            self._writer.write(rows.cast(self._schema).replace_schema_metadata())
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(f"rows that ORC cannot hold ({error})", expected=_YEARS) from None

    def content(self, pairs: Mapping[bytes, bytes]) -> tuple[bytes, int]:
        """Return the file with the user metadata `pairs`, and where its footer begins.

        A message of protobuf is continued by what is appended to it, and a compressed stream by parts that are stored as they are.
        """
        self._writer.close()
        content = self._sink.getvalue().to_pybytes()
        end = len(content) - 1 - content[-1]
        fields = list(read_fields(memoryview(content)[end:-1]))
        numbers = dict(fields)
        items = b"".join(bytes_field(_USER_METADATA, bytes_field(1, key) + bytes_field(2, value)) for key, value in pairs.items())
        if numbers.get(_COMPRESSION):
            parts = [items[at : at + _BLOCK_BYTES] for at in range(0, len(items), _BLOCK_BYTES)]
            items = b"".join((len(part) << 1 | 1).to_bytes(3, "little") + part for part in parts)
        length = numbers[_FOOTER_LENGTH]
        assert isinstance(length, int)
        postscript = number_field(_FOOTER_LENGTH, length + len(items))
        for number, value in fields:
            if number != _FOOTER_LENGTH:
                postscript += number_field(number, value) if isinstance(value, int) else bytes_field(number, bytes(value))
        return content[:end] + items + postscript + bytes([len(postscript)]), end - length


def rows_of(content: bytes) -> int:
    """Return the number of rows by the footer of an ORC file."""
    from pyarrow import orc

    return int(orc.ORCFile(pa.BufferReader(content)).nrows)
