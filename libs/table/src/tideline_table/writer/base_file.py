"""Writing of Parquet base files (format reference 8.2)."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.bloom import BloomFilter, BloomType, KeyBytes
from tideline_table.config import (
    BLOOM_ENTRIES,
    BLOOM_FALSE_POSITIVES,
    BLOOM_FILTER_TYPE,
    BLOOM_FILTERS,
    BLOOM_MAX_ENTRIES,
    COMPRESSION_CODEC,
    ROW_GROUP_ROWS,
    Options,
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
from tideline_table.schema.meta_fields import MetaField
from tideline_table.statistics import FileStatistics, StatisticsCollector
from tideline_table.storage import Storage
from tideline_table.writer.column_statistics import collector_of
from tideline_table.writer.dictionary_choice import dictionary_columns
from tideline_table.writer.recording_sink import RecordingSink

_ZSTD_LEVEL = 1
"""Level 1 encodes nearly as fast as snappy into smaller files; higher levels cost writers more than readers gain."""
_SAMPLE_KEYS = 256
"""Keys of a file, evenly spread, that a Bloom filter must hold to be copied into it."""


class BaseFileRows:
    """The rows of a base file that is being written."""

    def __init__(self, writer: pq.ParquetWriter, row_group_rows: int, collector: StatisticsCollector | None) -> None:
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
        rows = trimmed(rows)
        self._writer.write_table(rows, row_group_size=self._row_group_rows)
        if self._collector is not None:
            whole = [field.name for field in rows.schema if field.type == DICTIONARY] if rows.num_rows else []
            self._collector.add(rows, whole)

    def keys(self) -> pa.ChunkedArray:
        """Return the record keys of all rows that were written."""
        return pa.chunked_array(self._keys, pa.string())

    def complete(self, footer: pq.FileMetaData, pairs: Mapping[bytes, bytes]) -> None:
        """Take rows and sizes of columns in the footer, the statistics of all rows, and the Bloom filter among the `pairs`."""
        self.rows = footer.num_rows
        self.bloom = footer_filter(pairs)
        if self._collector is not None:
            self.statistics = self._collector.result(footer)


@contextmanager
def open_base_file(
    storage: Storage, path: str, first: pa.Table, avro_schema: str, options: Options, known: Mapping[bytes, bytes] | None = None
) -> Iterator[BaseFileRows]:
    """Open a base file that appears at the end of the context, or not at all if the context ends with an error.

    `first`: the first rows to be written, which give the schema and choose the encodings. `known`: as of `key_pairs`.
    """
    schema = first.schema
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
    rows.complete(writer.writer.metadata, pairs)


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
    with open_base_file(storage, path, rows, avro_schema, options, known) as file:
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
