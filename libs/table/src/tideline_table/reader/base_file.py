"""Reading Parquet base files (format reference 8.2)."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tideline_table.bloom import BloomFilter
from tideline_table.errors import CorruptMetadata, StorageError
from tideline_table.file_group.slice import FileSlice
from tideline_table.schema.evolution import conform
from tideline_table.schema.identity import FileNames
from tideline_table.storage import Storage

MIN_KEY = b"hoodie_min_record_key"
MAX_KEY = b"hoodie_max_record_key"
BLOOM_FILTER = b"org.apache.hudi.bloomfilter"
BLOOM_TYPE = b"hoodie_bloom_filter_type_code"
_BROKEN = (pa.ArrowException, OSError, ValueError)
"""What Arrow raises on bytes that are no sound Parquet file."""


@dataclass(frozen=True, slots=True)
class BaseFileFooter:
    """What a base file's footer tells without reading rows. Keys are empty where the writer left them out.

    `bloom` is the filter over the record keys where Apache Hudi's writers left one: about 330 KB by their defaults.
    """

    rows: int
    min_key: str
    max_key: str
    columns: frozenset[str] = frozenset()
    bloom: BloomFilter | None = None

    def may_hold(self, low: str, high: str) -> bool:
        """Whether a key between `low` and `high` (both in) can be in the file."""
        return not self.max_key or (self.min_key <= high and low <= self.max_key)


def read_footer(storage: Storage, path: str, *, with_bloom: bool = False) -> BaseFileFooter:
    """The footer of a base file; its Bloom filter only where asked for."""
    with _opened(storage, path) as file:
        pairs = file.metadata.metadata or {}
        try:
            low, high = pairs.get(MIN_KEY, b"").decode(), pairs.get(MAX_KEY, b"").decode()
            columns = frozenset(file.schema_arrow.names)
        except _BROKEN as error:
            raise _corrupt(path, error) from None
        return BaseFileFooter(file.metadata.num_rows, low, high, columns, _bloom_filter(pairs) if with_bloom else None)


def may_hold_nulls(storage: Storage, path: str, columns: Collection[str]) -> bool:
    """Whether the footer of a base file leaves it open that one of these top-level columns has a null."""
    with _opened(storage, path) as file:
        found = file.metadata
        indexes = [i for i in range(found.num_columns) if found.schema.column(i).path in columns]
        for group in range(found.num_row_groups):
            for index in indexes:
                statistics = found.row_group(group).column(index).statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    return True
        return len(indexes) < len(columns)


def _bloom_filter(pairs: Mapping[bytes, bytes]) -> BloomFilter | None:
    text = pairs.get(BLOOM_FILTER)
    if text is None:
        return None
    try:
        return BloomFilter.from_bytes(base64.b64decode(text, validate=True), is_dynamic=pairs.get(BLOOM_TYPE) == b"DYNAMIC_V0")
    except (CorruptMetadata, ValueError):
        # Of a kind that later releases may have: every key may be there.
        return None


def read_base_file(storage: Storage, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a base file, decoded by one thread: parallelism is over files."""
    with _opened(storage, path) as file:
        try:
            return file.read(columns=list(columns) if columns is not None else None, use_threads=False)
        except _BROKEN as error:
            raise _corrupt(path, error) from None


def _opened(storage: Storage, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(storage.open_input(path), memory_map=False, pre_buffer=True)
    except _BROKEN as error:
        raise _corrupt(path, error) from None


def _corrupt(path: str, error: Exception) -> CorruptMetadata | StorageError:
    if isinstance(error, OSError) and error.errno:  # the disk's answer, not Arrow's opinion about the bytes
        return StorageError(f"{error.strerror} at {path!r}", remedy="check the disk and its rights, then retry")
    return CorruptMetadata(f"base file {path} cannot be read ({error})", expected="a Parquet file", remedy="restore the file")


def scan_slices(
    storage: Storage,
    slices: Sequence[FileSlice],
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of base-file-only slices in `schema` (columns that an older file lacks are null), filtered by `where`.

    Row groups that cannot match are skipped by their statistics. `schema` has the meta fields; nothing holds a whole table in memory.
    """
    for file_slice in slices:
        assert not file_slice.log_files, "the log of a slice is merged by scan_slice"
        yield from BaseFileScan(storage, file_slice.path, schema).filtered(columns, where)


class BaseFileScan:
    """One base file, opened once, read in `schema`: columns that it lacks are null, those of older types are taken along.

    Raises `CorruptMetadata` for a file that is no sound Parquet file, `SchemaMismatch` for a type that does not become today's.
    """

    def __init__(self, storage: Storage, path: str, schema: pa.Schema, names: FileNames | None = None) -> None:
        self._path = path
        self._schema = schema
        self._names = names if names is not None else FileNames({})
        with self._readable():
            self._fragment = ds.ParquetFileFormat().make_fragment(storage.open_input(path))
            stored = self._fragment.physical_schema
        apart = [name for name in schema.names if name in self._names.apart]
        self._evolved = {f.name for f in stored if f.name in schema.names and f.type != schema.field(f.name).type} | set(apart)
        sources = [self._names.source(name) for name in apart]
        # Read as it is stored where conform knows more ways from type to type than a scan does.
        self._stored = pa.schema(
            [
                *(stored.field(f.name) if f.name in self._evolved else f for f in schema if f.name not in apart),
                *(stored.field(name) for name in sources if name is not None and name in stored.names),
            ]
        )

    @property
    def evolved(self) -> frozenset[str]:
        """Columns that are stored in another type, or by another name, than today's."""
        return frozenset(self._evolved)

    def row_groups(self, where: pc.Expression | None = None) -> list[int]:
        """Numbers of the row groups that can hold a matching row, by their statistics."""
        with self._readable():
            if where is None or not self._may_push(where):
                return [group.id for group in self._fragment.row_groups]
            return [group.id for group in self._fragment.subset(where, schema=self._stored).row_groups]

    def rows(self, row_group: int) -> int:
        """Rows of a row group."""
        return int(self._fragment.metadata.row_group(row_group).num_rows)

    def batches(self, row_groups: Sequence[int], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows of these row groups, in order, with the columns of `wanted`, a part of `schema`."""
        if row_groups:
            yield from self._scan(self._fragment.subset(row_group_ids=list(row_groups)), wanted.names, None)

    def filtered(self, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Matching rows, of `columns` or of all."""
        names = list(columns) if columns is not None else self._schema.names
        if where is None or self._may_push(where):
            yield from (batch for batch in self._scan(self._fragment, names, where) if batch.num_rows)
            return
        # A filter speaks of today's types.
        for batch in self._scan(self._fragment, self._schema.names, None):
            rows = pa.Table.from_batches([batch]).filter(where).select(names)
            yield from (found for found in rows.to_batches() if found.num_rows)

    def _may_push(self, where: pc.Expression) -> bool:
        return not self._evolved or self._evolved.isdisjoint(referenced_columns(where, self._schema))

    def _scan(
        self, fragment: ds.ParquetFileFragment, names: Sequence[str], where: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        wanted = pa.schema([self._schema.field(name) for name in names])
        sources = {name: self._names.source(name) for name in names}
        stored = list(dict.fromkeys(name for name in sources.values() if name is not None and name in self._stored.names))
        with self._readable():
            # Without a column a batch would not tell how many rows it has.
            for batch in fragment.scanner(schema=self._stored, columns=stored or self._stored.names[:1], filter=where).to_batches():
                if self._evolved.isdisjoint(names):
                    yield batch
                    continue
                rows = pa.Table.from_batches([batch])
                known = {name: source for name, source in sources.items() if source in stored}
                renamed = [self._names.renamed(name, rows.column(source)) for name, source in known.items()]
                found = pa.table(renamed, names=list(known)) if known else rows.select(stored)
                yield from conform(found, wanted).to_batches()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            raise _unreadable(self._path, error) from None


def referenced_columns(where: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """Columns of `schema` that an expression needs. Arrow keeps them to itself, so each is taken away once and the rest is tried."""
    empty = schema.empty_table()
    found = set()
    for name in schema.names:
        try:
            empty.drop_columns([name]).filter(where)
        except pa.ArrowInvalid:
            found.add(name)
    return frozenset(found)


def _unreadable(path: str, error: Exception) -> CorruptMetadata:
    reason = str(error).split("\n", 1)[0]
    return CorruptMetadata(
        f"base file {path} cannot be read ({reason})", expected="a Parquet file", remedy="restore the file from a copy"
    )
