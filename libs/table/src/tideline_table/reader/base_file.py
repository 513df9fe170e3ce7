"""Reading of base files (format reference 8.2): those of Parquet, and those of ORC as Parquet in memory (`orc_file`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.bloom import BloomFilter
from tideline_table.errors import RESTORE_FILE, CorruptMetadata, StorageError
from tideline_table.reader.expression import top_columns_in
from tideline_table.reader.key_footer import filter_text, is_ordered_alike, key_ends, key_filter, key_range
from tideline_table.reader.orc_file import ORC, as_parquet
from tideline_table.schema.arrow import is_numeric
from tideline_table.schema.evolution import conform, nulls
from tideline_table.schema.identity import FileNames
from tideline_table.schema.promotion import is_relabelled
from tideline_table.statistics import FileStatistics, of_footer
from tideline_table.storage import Storage, check_bytes, check_size, ranges_of

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_BROKEN = (pa.ArrowException, OSError, ValueError)
"""Exceptions that Arrow raises for bytes that are not a valid Parquet file."""
_FEW_ROWS, _FEW_BYTES = 10_000, 1 << 20
"""Up to so many rows, of so many bytes before compression, the caller's thread decodes: for a few rows, Arrow's scanner takes five
times as long."""
_DICTIONARY_BYTES = 64 * 1024
"""A column chunk with a larger dictionary, as stored, may have given up its dictionary: writers do so at 1 MiB before
compression."""
_ONE_REQUEST_BYTES = 32 << 20
"""Arrow reads more than so many bytes of an object store by several requests at once."""
_FEWEST_ROWS, _MOST_ROWS = 1024, 131_072
"""A scan with a limit decodes batches of so many rows, at least and at most."""


@dataclass(frozen=True, slots=True)
class BaseFileFooter:
    """The content of a base file's footer. Keys are empty if the writer left them out, or if the file contradicts them.

    `bloom` is the filter over the record keys if there is a usable one: up to 540 KB by the defaults of writers.
    """

    rows: int
    min_key: str
    max_key: str
    columns: frozenset[str] = frozenset()
    bloom: BloomFilter | None = None
    decoded_bytes: int = 0
    """The size of all values before compression, which is less than their size in memory where they are encoded by dictionary."""
    dictionaries: frozenset[str] = frozenset()
    """Top-level columns of texts of which all row groups have small dictionaries; empty unless asked for."""
    pairs: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    """The key-value metadata, unchecked; empty unless asked for."""

    def may_hold(self, low: str, high: str) -> bool:
        """Return whether the file can hold a key between `low` and `high` (both inclusive)."""
        bounds = self.bounds
        return bounds is None or (bounds[0] <= high and low <= bounds[1])

    @property
    def bounds(self) -> tuple[str, str] | None:
        """The least and the greatest key, None if the footer has no range that holds in Python's order of text."""
        if not self.max_key or not is_ordered_alike(self.min_key, self.max_key):
            return None
        return self.min_key, self.max_key


def read_footer(
    storage: Storage, path: str, *, with_bloom: bool = False, with_dictionaries: bool = False, with_pairs: bool = False
) -> BaseFileFooter:
    """Return the footer of a base file, with its Bloom filter, `dictionaries` and `pairs` only if asked for.

    Errors as `BaseFileScan`.

    Logs a warning for a key range or a filter that the file contradicts, and leaves it out.
    """
    with readable(path):
        file = _opened(storage, path)
        pairs, ends = file.metadata.metadata or {}, key_ends(file.metadata)
        low, high = key_range(pairs, ends, path)
        bloom = key_filter(pairs, [low, high] if high else [*(ends or ())], path) if with_bloom else None
        size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
        small = _dictionaries(file) if with_dictionaries else frozenset()
        names, kept = frozenset(file.schema_arrow.names), pairs if with_pairs else {}
        return BaseFileFooter(file.metadata.num_rows, low, high, names, bloom, size, small, kept)


def read_filter_text(storage: Storage, path: str) -> tuple[str, bytes] | None:
    """Return the form of the Bloom filter in the footer of a base file and the filter in Base64. Errors as `BaseFileScan`.

    None if the footer has none, or, with a warning, one that the file contradicts.
    """
    with readable(path):
        file = _opened(storage, path)
        pairs, ends = file.metadata.metadata or {}, key_ends(file.metadata)
        low, high = key_range(pairs, ends, path)
        return filter_text(pairs, [low, high] if high else [*(ends or ())], path)


def _dictionaries(file: pq.ParquetFile) -> frozenset[str]:
    texts = {f.name for f in file.schema_arrow if f.type == pa.string()}
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    paths = [file.metadata.schema.column(at).path for at in range(file.metadata.num_columns)]
    chunks = {path: [group.column(at) for group in groups] for at, path in enumerate(paths) if path in texts}
    return frozenset(path for path, found in chunks.items() if all(map(_has_small_dictionary, found)))


def _has_small_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    # Some writers leave the offset of the dictionary page out.
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return start is not None and 0 < chunk.data_page_offset - start <= _DICTIONARY_BYTES


def read_statistics(storage: Storage, path: str, columns: Collection[str]) -> FileStatistics | None:
    """Return the column statistics in the footer of a base file; None if Tideline did not write it. Errors as `BaseFileScan`."""
    with readable(path):
        file = _opened(storage, path)
        return of_footer(file.metadata, file.schema_arrow, columns)


@dataclass(frozen=True, slots=True)
class FooterRange:
    """The smallest and largest value of a column, by the statistics in the footer. `nulls` is -1 if unknown. `kind`: its type."""

    kind: pa.DataType
    minimum: Any
    maximum: Any
    nulls: int

    def of_type(self, kind: pa.DataType) -> FooterRange | None:
        """Return the range for a column that the table gives the type `kind`.

        None if its values are converted when they are read.
        """
        if self.kind == kind:
            return self
        if not is_relabelled(self.kind, kind):
            return None
        try:
            low, high = pa.array([self.minimum, self.maximum], self.kind).view(kind).to_pylist()
        except (pa.ArrowException, ValueError, OverflowError):
            return None
        return FooterRange(kind, low, high, self.nulls)

    def comparable(self, kind: pa.DataType) -> FooterRange | None:
        """Like `of_type`, with ranges of other numbers as they are where `kind` is a number."""
        return self if is_numeric(self.kind) and is_numeric(kind) else self.of_type(kind)


def read_column_ranges(storage: Storage, path: str, columns: Sequence[str]) -> dict[str, FooterRange]:
    """Return the ranges of top-level columns of a base file.

    Columns without statistics, without values or with times beyond the year 9999 are left out.
    """
    with readable(path):
        file = _opened(storage, path)
        found = {name: _column_range(file, name) for name in columns if name in file.schema_arrow.names}
        return {name: known for name, known in found.items() if known is not None}


def _column_range(file: pq.ParquetFile, name: str) -> FooterRange | None:
    metadata = file.metadata
    index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name), None)
    if index is None:
        return None
    statistics = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if any(
        s is None or not (s.has_min_max or (s.has_null_count and s.null_count == n)) for s, n in zip(statistics, rows, strict=True)
    ):
        return None
    try:
        ends = [(s.min, s.max) for s in statistics if s.has_min_max]
    except OverflowError:  # a time that Python cannot hold, from the year 10000 on
        return None
    if not ends:
        return None
    nulls = sum(s.null_count for s in statistics) if all(s.has_null_count for s in statistics) else -1
    return FooterRange(file.schema_arrow.field(name).type, min(e[0] for e in ends), max(e[1] for e in ends), nulls)


def may_hold_nulls(storage: Storage, path: str, columns: Collection[str]) -> bool:
    """Return whether one of these top-level columns may hold a null or is missing, by the footer of the base file."""
    with readable(path):
        found = _opened(storage, path).metadata
    indexes = [i for i in range(found.num_columns) if found.schema.column(i).path in columns]
    for group in range(found.num_row_groups):
        for index in indexes:
            statistics = found.row_group(group).column(index).statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                return True
    return len(indexes) < len(columns)


def read_base_file(
    storage: Storage, path: str, columns: Sequence[str] | None = None, dictionaries: Collection[str] = ()
) -> pa.Table:
    """Return all rows of a base file, decoded by one thread: the parallelism is over files. Errors as `BaseFileScan`.

    The metadata of their schema is the key-value metadata of the footer.
    Those of `dictionaries` of which the file has small dictionaries are of type `DICTIONARY`.
    """
    with readable(path):
        source = open_checked(storage, path) if path.endswith(ORC) else _whole(storage, path) if columns is None else None
        file = _opened(storage, path) if source is None else parquet_file(source, is_checked=True)
        kept = sorted(_dictionaries(file).intersection(dictionaries)) if dictionaries else []
        if kept:
            found, again = file.metadata, source or open_checked(storage, path)
            file = parquet_file(again, metadata=found, read_dictionary=kept, is_checked=source is not None)
        rows = file.read(columns=list(columns) if columns is not None else None, use_threads=False)
        check_rows(path, rows.num_rows, file.metadata.num_rows)
        return rows


def _whole(storage: Storage, path: str) -> pa.BufferReader | None:
    """Return all bytes of a base file, compared with what its commit recorded.

    None if it has no digests of them or the file is large.

    Their digest takes a tenth of the processor time of the checksums of pages, which then need not be computed.
    """
    ranges = ranges_of(path)
    if not ranges or not all(known.digest for known in ranges) or ranges[-1].end > _ONE_REQUEST_BYTES:
        return None
    source = storage.open_input(path)
    check_size(path, source.size())
    content = source.read_buffer()
    for known in ranges:
        check_bytes(path, known, memoryview(content)[known.start : known.end])
    return pa.BufferReader(content)


def _opened(storage: Storage, path: str) -> pq.ParquetFile:
    return parquet_file(open_checked(storage, path))


def parquet_file(
    source: pa.NativeFile | pa.BufferReader,
    metadata: pq.FileMetaData | None = None,
    read_dictionary: Sequence[str] = (),
    *,
    pre_buffer: bool = True,
    is_checked: bool = False,
) -> pq.ParquetFile:
    """Return the Parquet file in `source`.

    Unless it `is_checked`, pages are compared with their checksums when they are decoded.
    """
    return pq.ParquetFile(
        source,
        metadata=metadata,
        memory_map=False,
        pre_buffer=pre_buffer,
        read_dictionary=list(read_dictionary),
        page_checksum_verification=not is_checked,
    )


def check_rows(path: str, rows: int, expected: int) -> None:
    """Raise `CorruptMetadata` if a base file has not as many rows as its footer says: a damaged page may have fewer values."""
    if rows != expected:
        raise CorruptMetadata(f"base file {path} with {rows} rows", expected=f"{expected}, as its footer says", remedy=RESTORE_FILE)


def open_checked(storage: Storage, path: str) -> pa.NativeFile:
    """Open a base file. What is opened is Parquet: of an ORC file, its rows.

    Raises `DamagedFile` if its size or its footer are not what the commit recorded that names it (a `DataPath`). An ORC file has
    no checksums of its own, and all of its bytes are compared.
    """
    source = storage.open_input(path)
    ranges = ranges_of(path)
    if path.endswith(ORC):
        check_size(path, source.size())
        content = source.read_buffer()
        for known in ranges:
            check_bytes(path, known, memoryview(content)[known.start : known.end])
        return as_parquet(content)
    if ranges:
        check_size(path, source.size())
        footer = ranges[-1]
        if footer.digest:
            source.seek(footer.start)
            check_bytes(path, footer, source.read(footer.size_bytes))
            source.seek(0)
    return source


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn Arrow's errors about the base file at `path` into `CorruptMetadata`, or `StorageError` if the disk failed."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno:
            raise StorageError(f"{error.strerror} at {path!r}", remedy="check the disk and its permissions, then retry") from None
        reason = str(error).split("\n", 1)[0]
        raise CorruptMetadata(
            f"base file {path} cannot be read ({reason})",
            expected=f"{'an ORC' if path.endswith(ORC) else 'a Parquet'} file",
            remedy=RESTORE_FILE,
        ) from None


DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def with_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return `schema` with these columns of texts as dictionaries."""
    return pa.schema([f.with_type(DICTIONARY) if f.name in names else f for f in schema]) if names else schema


class BaseFileScan:
    """One base file, opened once and read in `schema`: columns that it lacks are null, columns of older types are converted.

    Raises `CorruptMetadata` for an invalid Parquet file, `StorageError` if the disk fails, `SchemaMismatch` for a type that cannot
    become the current one. With `scan_bytes`, unfiltered rows are decoded about
    so much at a time. Without, Arrow's scanner decodes up to 1 GiB ahead by several threads; with `one_thread`, the caller's thread
    decodes unfiltered rows, a row group at a time. Columns of texts in `dictionaries`, which the file has with
    the current name and type, are of type `DICTIONARY`.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        names: FileNames | None = None,
        scan_bytes: int | None = None,
        dictionaries: frozenset[str] = frozenset(),
        *,
        one_thread: bool = False,
    ) -> None:
        self._scan_bytes = scan_bytes
        self._one_thread = one_thread
        self._dictionaries = sorted(dictionaries)
        self._path = path
        self._schema = with_dictionaries(schema, dictionaries)
        self._names = names or FileNames()
        import pyarrow.dataset as ds

        with readable(self._path):
            self._input = open_checked(storage, path)
            read_options = ds.ParquetReadOptions(dictionary_columns=self._dictionaries)
            scan_options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
            format_ = ds.ParquetFileFormat(read_options=read_options, default_fragment_scan_options=scan_options)
            self._fragment = format_.make_fragment(self._input)
            stored = self._fragment.physical_schema
            self._apply(stored)

    def _apply(self, stored: pa.Schema) -> None:
        """Take over what the file has of the columns; a damaged name is one that is not UTF-8."""
        schema = self._schema
        apart = [name for name in schema.names if name in self._names.apart]
        self._evolved = {f.name for f in stored if f.name in schema.names and f.type != schema.field(f.name).type} | set(apart)
        sources = [self._names.source(name) for name in apart]
        # Columns of another type are read as stored: `conform` supports more conversions than a scan.
        self._stored = pa.schema(
            [
                *(stored.field(f.name) if f.name in self._evolved else f for f in schema if f.name not in apart),
                *(stored.field(name) for name in sources if name is not None and name in stored.names),
            ]
        )

    @property
    def evolved(self) -> frozenset[str]:
        """Columns that are stored with another type or name than the current one."""
        return frozenset(self._evolved)

    def row_groups(self, where: pc.Expression | None = None) -> list[int]:
        """Return the numbers of the row groups that can hold a matching row, by their statistics if these are to be trusted."""
        with readable(self._path):
            if where is None or not self._may_push(where):
                return [group.id for group in self._fragment.row_groups]
            return [group.id for group in self._fragment.subset(where, schema=self._stored).row_groups]

    def rows(self, row_group: int) -> int:
        """Return the number of rows of a row group."""
        return int(self._fragment.metadata.row_group(row_group).num_rows)

    def batches(self, row_groups: Sequence[int], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows of these row groups, in order, with the columns of `wanted`, a part of `schema`."""
        if row_groups:
            yield from self._scan(self._fragment.subset(row_group_ids=list(row_groups)), wanted.names, None)

    def filtered(self, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield matching rows with `columns`, or with all."""
        names = list(columns) if columns is not None else self._schema.names
        if where is None or self._may_push(where):
            yield from (batch for batch in self._scan(self._fragment, names, where) if batch.num_rows)
            return
        # The filter refers to current types, so it runs after the conversion.
        needed = {*names, *referenced_columns(where, self._schema)}
        for batch in self._scan(self._fragment, [name for name in self._schema.names if name in needed], None):
            rows = pa.Table.from_batches([batch]).filter(where).select(names)
            yield from (found for found in rows.to_batches() if found.num_rows)

    def _may_push(self, where: pc.Expression) -> bool:
        """Return whether Arrow's scanner may evaluate a filter, which also leaves out row groups by the statistics in the footer.

        These do not say whether a column of floating numbers has a NaN, for which `!=` and NOT are true; those of Apache Hudi's
        writer then name 0.0 as its least and greatest value.
        """
        apart = [f.name for f in self._schema if f.name in self._evolved or _has_floating(f.type)]
        return not apart or referenced_columns(where, self._schema).isdisjoint(apart)

    def _scan(
        self, fragment: ds.ParquetFileFragment, names: Sequence[str], where: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        wanted = pa.schema([self._schema.field(name) for name in names])
        sources = {name: self._names.source(name) for name in names}
        stored = list(dict.fromkeys(name for name in sources.values() if name is not None and name in self._stored.names))
        with readable(self._path):
            # A batch without columns would not show its number of rows.
            rows_of_file = 0
            for batch in self._decoded(fragment, stored or self._stored.names[:1], where):
                rows_of_file += batch.num_rows
                if self._evolved.isdisjoint(names):
                    yield batch
                    continue
                rows = pa.Table.from_batches([batch])
                known = {name: source for name, source in sources.items() if source in stored}
                renamed = [self._names.renamed(name, rows.column(source)) for name, source in known.items()]
                found = pa.table(renamed, names=list(known)) if known else rows.select(stored)
                yield from conform(found, wanted).to_batches()
            if where is None:
                groups = fragment.row_groups
                check_rows(self._path, rows_of_file, sum(group.num_rows for group in groups))

    def _decoded(self, fragment: ds.ParquetFileFragment, names: list[str], where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        groups = [group.id for group in fragment.row_groups] if where is None else []
        found = [fragment.metadata.row_group(group) for group in groups]
        count = sum(group.num_rows for group in found)
        if self._scan_bytes is not None and count:
            yield from self._stepwise(found, groups, names)
            return
        is_small = count <= _FEW_ROWS and sum(group.total_byte_size for group in found) <= _FEW_BYTES
        if not count or not (is_small or self._one_thread):
            yield from fragment.scanner(schema=self._stored, columns=names, filter=where).to_batches()
            return
        file = parquet_file(self._input, fragment.metadata, self._dictionaries)
        for together in [groups] if is_small else [[group] for group in groups]:
            rows = file.read_row_groups(together, columns=names, use_threads=False)
            yield from self._as_stored(rows, names).to_batches()

    def _stepwise(self, found: Sequence[pq.RowGroupMetaData], groups: list[int], names: list[str]) -> Iterator[pa.RecordBatch]:
        row_bytes = max(1, sum(group.total_byte_size for group in found) // max(1, sum(group.num_rows for group in found)))
        rows = max(_FEWEST_ROWS, min((self._scan_bytes or 0) // row_bytes, _MOST_ROWS))
        file = parquet_file(self._input, None, self._dictionaries, pre_buffer=False)
        for batch in file.iter_batches(rows, row_groups=groups, columns=names):
            yield from self._as_stored(pa.Table.from_batches([batch]), names).to_batches()

    def _as_stored(self, rows: pa.Table, names: list[str]) -> pa.Table:
        schema = pa.schema([self._stored.field(name) for name in names])
        columns = [rows.column(f.name) if f.name in rows.column_names else nulls(rows.num_rows, f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)


def _has_floating(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return pa.types.is_nested(kind) and any(_has_floating(kind.field(at).type) for at in range(kind.num_fields))


def referenced_columns(where: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """Return the columns of `schema` that an expression needs.

    Arrow does not list them. Where its serialised form does not tell, the filter is tried without each one, which takes as long as
    reading a small file.
    """
    named = top_columns_in(where, schema)
    return frozenset(name for name in schema.names if _needs(where, schema, name)) if named is None else named


def _needs(where: pc.Expression, schema: pa.Schema, name: str) -> bool:
    try:
        schema.empty_table().drop_columns([name]).filter(where)
    except pa.ArrowInvalid:
        return True
    return False
