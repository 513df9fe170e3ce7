"""Writing of base files (format reference 8.2): which columns have statistics and dictionaries, the digests, the footer."""

from __future__ import annotations

import base64
import contextlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tideline_table.bloom import BloomFilter, BloomType, KeyBytes
from tideline_table.config import (
    BLOOM_ENTRIES,
    BLOOM_FALSE_POSITIVES,
    BLOOM_FILTER_TYPE,
    BLOOM_FILTERS,
    BLOOM_MAX_ENTRIES,
    COLUMN_STATISTICS,
    COLUMN_STATISTICS_LIST,
    COLUMN_STATISTICS_MOST,
    COMPRESSION_CODEC,
    ROW_GROUP_ROWS,
    Options,
    column_list,
)
from tideline_table.errors import CorruptMetadata
from tideline_table.reader.base_file import DICTIONARY
from tideline_table.reader.encoded_slice import trimmed
from tideline_table.reader.key_footer import (
    BLOOM_FILTER,
    BLOOM_TYPE,
    MAX_KEY,
    MIN_KEY,
    footer_filter,
    is_ordered_alike,
    parsed_filter,
)
from tideline_table.reader.orc_file import AVRO_SCHEMA, ORC, OrcWriter, rows_of
from tideline_table.schema.arrow import field_of, field_path
from tideline_table.schema.evolution import settled
from tideline_table.schema.meta_fields import META_FIELDS, OPERATION_FIELD, MetaField
from tideline_table.statistics import FileStatistics, StatisticsCollector, is_supported
from tideline_table.storage import ByteRange, Storage, digest_of, record_text

META_COLUMNS = (MetaField.COMMIT_TIME.value, MetaField.PARTITION_PATH.value, MetaField.RECORD_KEY.value)
"""The meta fields that always have statistics, as in Apache Hudi."""


def statistics_columns(schema: pa.Schema, options: Options) -> tuple[str, ...]:
    """Return the columns of `schema` that have statistics; none if the options switch them off.

    Fields of structs, by their dotted paths, have some only if the options name them, as in Apache Hudi.
    """
    if not options[COLUMN_STATISTICS]:
        return ()
    named = column_list(options[COLUMN_STATISTICS_LIST]) or schema.names
    most = len(named) if column_list(options[COLUMN_STATISTICS_LIST]) else options[COLUMN_STATISTICS_MOST]
    paths = {name: field_path(schema, name) for name in named if name not in (*META_FIELDS, OPERATION_FIELD)}
    chosen = [name for name, path in paths.items() if path and is_supported(field_of(schema, path).type)][:most]
    return (*(name for name in META_COLUMNS if name in schema.names), *chosen)


def collector_of(schema: pa.Schema, options: Options) -> StatisticsCollector | None:
    """Return a collector of the statistics of a file with `schema`; None if the options switch them off."""
    columns = statistics_columns(schema, options)
    return StatisticsCollector(columns) if columns else None


def statistics_of(tables: Sequence[pa.Table], schema: pa.Schema, options: Options) -> FileStatistics | None:
    """Return the statistics of a file with `schema` that has the rows of `tables`; None if the options switch them off."""
    collector = collector_of(schema, options)
    if collector is None:
        return None
    for rows in tables:
        if rows.num_rows:
            collector.add(rows)
    return collector.result()


_UNIQUE_COLUMNS = (MetaField.COMMIT_SEQNO.value, MetaField.RECORD_KEY.value)
_BLOCKS = 8
_BLOCK_ROWS = 256
_LEAST_ROWS = 8 * _BLOCKS * _BLOCK_ROWS
"""Fewer rows are encoded in the time that the choice takes."""
_CLEARLY_REPEATED = 0.75
_LENGTH_BYTES = 4
"""Bytes that Parquet adds to a text."""


def dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the columns to encode with a dictionary in a base file that begins with `rows`, which include the meta fields."""
    names = [name for name in rows.schema.names if name not in _UNIQUE_COLUMNS]
    if rows.num_rows < _LEAST_ROWS:
        return names
    gap = (rows.num_rows - _BLOCK_ROWS) // (_BLOCKS - 1)
    return [name for name in names if _is_shorter(rows.column(name), gap)]


def _is_shorter(column: pa.ChunkedArray, gap: int) -> bool:
    """Return whether a dictionary shortens the column, by blocks that begin `gap` rows apart.

    It stays where the sample cannot tell.
    """
    width = _width(column.type)
    if width is None or _is_repeated(column.slice(len(column) // 2, _BLOCK_ROWS)):
        return True
    blocks = [column.slice(at * gap, _BLOCK_ROWS) for at in range(_BLOCKS)]
    sample = pa.chunked_array([chunk for block in blocks for chunk in block.chunks], column.type)
    if _is_repeated(sample):
        return True
    filled, different = len(sample) - sample.null_count, _distinct(sample)
    if width == 0:
        width = _LENGTH_BYTES + sample.nbytes / len(sample)
    # Repetitions among neighbours, as in rows that are sorted by another column, and repetitions all over the rows.
    near = filled if different == filled else sum(map(_distinct, blocks))
    repeated = near - different
    count = len(column) * filled / len(sample)
    distinct = count * near / filled
    if repeated:
        # Pairs of blocks show so many repetitions if all rows have about this number of equally frequent values.
        values = near**2 * (1 - 1 / _BLOCKS) / (2 * repeated)
        distinct = values * -math.expm1(-distinct / values)
    number_bits = math.ceil(math.log2(max(2.0, distinct)))
    return bool(distinct * width + count * number_bits / 8 < count * width)


def _is_repeated(values: pa.ChunkedArray) -> bool:
    return bool(_distinct(values) <= _CLEARLY_REPEATED * (len(values) - values.null_count))


def _distinct(values: pa.ChunkedArray) -> int:
    return int(pc.count_distinct(values).as_py())


def _width(kind: pa.DataType) -> float | None:
    """Return the bytes of a plain value in Parquet; 0 where they depend on the value, None for types that are not examined."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 0
    if pa.types.is_decimal(kind):
        return math.ceil((int(kind.precision) * math.log2(10) + 1) / 8)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)):
        return None
    return max(4, int(kind.bit_width) // 8)


def footer_statistics(rows: pa.Table, *, is_whole: bool) -> bool | list[str]:
    """Return the paths of the leaf columns that have statistics in a file that begins with `rows`; true for all.

    Floating columns have none if they hold a NaN, or if more rows follow (not `is_whole`), of which nothing is known yet. Arrow
    leaves NaN out of the bounds that it writes. To Spark, NaN is greater than all numbers and equals itself: Spark and Apache Hudi
    on it would pass over a row group without opening it, although a NaN in it fits the condition.
    """
    without = {name for name in rows.schema.names if _may_hold_nan(rows, name, is_whole=is_whole)}
    if not without:
        return True
    sink = pa.BufferOutputStream()
    pq.write_metadata(rows.schema, sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(at) for at in range(len(leaves))]
    return [leaf.path for leaf in columns if leaf.path.partition(".")[0] not in without or not _is_floating(leaf)]


def _may_hold_nan(rows: pa.Table, name: str, *, is_whole: bool) -> bool:
    column = rows.column(name)
    if not _has_floats(column.type):
        return False
    return not is_whole or any(_holds_nan(chunk) for chunk in column.chunks)


def _has_floats(kind: pa.DataType) -> bool:
    if not kind.num_fields:
        return bool(pa.types.is_floating(kind))
    return any(_has_floats(kind.field(at).type) for at in range(kind.num_fields))


def _holds_nan(values: pa.Array) -> bool:
    """Return whether one of `values`, or of the values in them, is NaN; also if it is behind a null."""
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_nan(values)).as_py())
    if pa.types.is_struct(values.type):
        return any(_holds_nan(values.field(at)) for at in range(values.type.num_fields))
    if pa.types.is_map(values.type):
        return _holds_nan(values.keys) or _holds_nan(values.items)
    return values.type.num_fields > 0 and _holds_nan(values.values)


def _is_floating(leaf: Any) -> bool:
    return leaf.physical_type in ("FLOAT", "DOUBLE") or str(leaf.logical_type) == "Float16"


_TRAILER = struct.Struct("<I4s")


class RecordingSink:
    """Passes bytes on to another sink. Closes nothing: the context of that sink publishes the object or discards it."""

    closed = False

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._body = xxhash.xxh3_64()
        self._tail: list[bytes] | None = None
        self.size_bytes = 0
        """The number of bytes written."""

    def write(self, data: bytes | memoryview) -> int:
        """Write bytes."""
        self._sink.write(data)
        self.size_bytes += len(data)
        if self._tail is None:
            self._body.update(data)
        else:
            self._tail.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing, as `close`."""

    def close(self) -> None:
        """Do nothing: the object is published when the context of its sink ends."""

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size_bytes

    def begin_end(self) -> None:
        """Say that only the end of the file follows: page indexes and the footer."""
        self._tail = []

    def record(self) -> str:
        """Return the record of the complete file: what is before its footer, then the footer with its length and magic."""
        tail = b"".join(self._tail or ())
        footer_bytes = _TRAILER.unpack(tail[-_TRAILER.size :])[0] + _TRAILER.size
        self._body.update(tail[:-footer_bytes])
        start = self.size_bytes - footer_bytes
        footer = ByteRange(start, footer_bytes, digest_of(tail[-footer_bytes:]))
        return record_text([ByteRange(0, start, self._body.hexdigest()), footer])


_ZSTD_LEVEL = 1
"""Level 1 encodes nearly as fast as snappy into smaller files; higher levels cost writers more than readers gain."""
_SAMPLE_KEYS = 256
"""Keys of a file, evenly spread, that a Bloom filter must hold to be copied into it."""


class BaseFileRows:
    """The rows of a base file that is being written."""

    def __init__(self, writer: pq.ParquetWriter | OrcWriter, row_group_rows: int, collector: StatisticsCollector | None) -> None:
        self._writer = writer
        self._row_group_rows = row_group_rows
        self._keys: list[pa.Array] = []
        self._collector = collector
        self.rows = 0
        """Rows by the footer, once the file is complete."""
        self.statistics: FileStatistics | None = None
        """Statistics of the columns, once the file is complete; None if the options want none."""
        self.bloom: tuple[str, bytes] | None = None
        """The form of the Bloom filter in the footer, and the filter in Base64, once the file is complete."""
        self.size_bytes = 0
        self.record = ""
        """The size of the file and the record of its bytes for the commit, once it is complete."""

    def write(self, rows: pa.Table) -> None:
        """Write rows in row groups of their own."""
        self._keys += rows.column(MetaField.RECORD_KEY).chunks
        rows = settled(trimmed(rows))
        self._writer.write_table(rows, self._row_group_rows)
        if self._collector is not None:
            whole = [field.name for field in rows.schema if field.type == DICTIONARY] if rows.num_rows else []
            self._collector.add(rows, whole)

    def keys(self) -> pa.ChunkedArray:
        """Return the record keys of all rows that were written."""
        return pa.chunked_array(self._keys, pa.string())

    def complete(self, rows: int, footer: pq.FileMetaData | None, pairs: Mapping[bytes, bytes]) -> None:
        """Take `rows` and sizes of columns by the footer, the statistics of all rows, and the Bloom filter among the `pairs`."""
        self.rows = rows
        self.bloom = footer_filter(pairs)
        if self._collector is not None:
            self.statistics = self._collector.result(footer)


@contextmanager
def open_base_file(
    storage: Storage,
    path: str,
    first: pa.Table,
    avro_schema: str,
    options: Options,
    known: Mapping[bytes, bytes] | None = None,
    *,
    is_whole: bool = False,
) -> Iterator[BaseFileRows]:
    """Open a base file that appears at the end of the context, or not at all if the context ends with an error.

    `first`: the first rows to be written, which give the schema and choose the encodings. `known`: as of `key_pairs`.
    `is_whole`: no other rows follow, so that floating columns without a NaN have statistics in the footer.
    """
    schema = first.schema
    if path.endswith(ORC):
        with _open_orc_file(storage, path, schema, avro_schema, options, known) as rows:
            yield rows
        return
    codec = options[COMPRESSION_CODEC]
    with (
        storage.open_output(path) as stored,
        contextlib.nullcontext(RecordingSink(stored)) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression=codec,
            compression_level=_ZSTD_LEVEL if codec == "zstd" else None,
            use_dictionary=dictionary_columns(first),
            write_statistics=footer_statistics(first, is_whole=is_whole),
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
        ) as writer,
    ):
        rows = BaseFileRows(writer, options[ROW_GROUP_ROWS], collector_of(schema, options))
        yield rows
        pairs = key_pairs(rows.keys(), options, known)
        # Without `store_schema`, metadata of the Arrow schema would not reach the footer.
        writer.add_key_value_metadata({b"parquet.avro.schema": avro_schema.encode(), b"writer.model.name": b"avro", **pairs})
        sink.begin_end()
    rows.size_bytes, rows.record = sink.size_bytes, sink.record()
    # Not by `metadata_collector`: after a failed close, the destructor of the writer would raise for want of metadata.
    rows.complete(writer.writer.metadata.num_rows, writer.writer.metadata, pairs)


@contextmanager
def _open_orc_file(
    storage: Storage, path: str, schema: pa.Schema, avro_schema: str, options: Options, known: Mapping[bytes, bytes] | None
) -> Iterator[BaseFileRows]:
    with storage.open_output(path) as stored:
        writer = OrcWriter(schema, options[COMPRESSION_CODEC])
        rows = BaseFileRows(writer, options[ROW_GROUP_ROWS], collector_of(schema, options))
        yield rows
        pairs = key_pairs(rows.keys(), options, known)
        content, footer = writer.content({AVRO_SCHEMA: avro_schema.encode(), **pairs})
        stored.write(content)
    parts = [ByteRange(at, len(part), digest_of(part)) for at, part in ((0, content[:footer]), (footer, content[footer:]))]
    rows.size_bytes, rows.record = len(content), record_text(parts)
    rows.complete(rows_of(content), None, pairs)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A base file that was written."""

    size_bytes: int
    statistics: FileStatistics | None
    bloom: tuple[str, bytes] | None
    """The form of the Bloom filter in the footer, and the filter in Base64; None without one."""
    record: str
    """The record of its bytes for the commit."""


def write_base_file(
    storage: Storage, path: str, rows: pa.Table, avro_schema: str, options: Options, known: Mapping[bytes, bytes] | None = None
) -> WrittenFile:
    """Write `rows` (meta fields first) as a base file that appears as a whole or not at all. `known`: as of `key_pairs`."""
    with open_base_file(storage, path, rows, avro_schema, options, known, is_whole=True) as file:
        file.write(rows)
    return WrittenFile(file.size_bytes, file.statistics, file.bloom, file.record)


def key_pairs(keys: pa.ChunkedArray, options: Options, known: Mapping[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    """Return what the footer of a base file with these record keys says about them: their range and a Bloom filter.

    `known`: the key-value metadata of a file with exactly these keys. Its filter is copied if it has the form and the size of
    the one that would be made, because filling one takes about a tenth of the time of a rewrite. The range is left out for a
    file without rows and where Java's order of text may differ from Arrow's. A file without rows has a filter without keys:
    Apache Hudi's Bloom index fails on a file without a filter.
    """
    low, high = pc.min_max(keys).as_py().values()
    if keys.null_count:
        return {}
    pairs = {MIN_KEY: low.encode(), MAX_KEY: high.encode()} if low is not None and is_ordered_alike(low, high) else {}
    if not options[BLOOM_FILTERS]:
        return pairs
    is_dynamic = options[BLOOM_FILTER_TYPE] == BloomType.DYNAMIC_V0
    most_keys = max(options[BLOOM_ENTRIES], options[BLOOM_MAX_ENTRIES]) if is_dynamic else options[BLOOM_ENTRIES]
    empty = BloomFilter.bounded(max(1, len(keys)), most_keys, options[BLOOM_FALSE_POSITIVES])
    if known is not None and (text := _same_filter(known, empty, options[BLOOM_FILTER_TYPE], keys)):
        pairs[BLOOM_FILTER] = text
    else:
        filled = empty.with_keys(KeyBytes(keys))
        content = filled.to_dynamic_bytes(len(keys), len(keys)) if is_dynamic else filled.to_bytes()
        pairs[BLOOM_FILTER] = base64.b64encode(content)
    # Apache Hudi writes no code for SIMPLE, and takes a missing one for it.
    return pairs | ({BLOOM_TYPE: BloomType.DYNAMIC_V0.encode()} if is_dynamic else {})


def _same_filter(known: Mapping[bytes, bytes], empty: BloomFilter, form: str, keys: pa.ChunkedArray) -> bytes | None:
    """Return the filter among these pairs in Base64; None if it has another form or size, or lacks one of a sample of the keys.

    Any writer of Hudi tables may have written it, wrongly too.
    """
    if BLOOM_FILTER not in known:
        return None
    try:
        kind, found = parsed_filter(known)
    except (CorruptMetadata, ValueError):
        return None
    if kind != form or not found.has_size_of(empty):
        return None
    sample = keys.take(pa.array(np.linspace(0, len(keys) - 1, _SAMPLE_KEYS, dtype=np.int64))) if len(keys) else keys
    return known[BLOOM_FILTER] if found.may_hold(KeyBytes(sample)).all() else None
