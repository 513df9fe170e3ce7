"""Snapshots: the file slices that a query reads, the rule that merges them, and their rows (format reference 11.5)."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.bloom import KeyBytes
from tideline_table.errors import HistoryUnavailable, ObjectNotFound, SchemaMismatch, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.bucket_pruning import BucketPruning
from tideline_table.index.colocation import sampled_slices
from tideline_table.reader.base_file import BaseFileFooter, read_footer
from tideline_table.reader.file_slice import Superseded, scan_log_part, scan_slice, superseded_rows
from tideline_table.reader.log_index import LogIndexes
from tideline_table.reader.read_plan import LogRule
from tideline_table.reader.where import parse_where
from tideline_table.schema.arrow import field_of, field_path, top_columns, with_fields
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage, open_storage
from tideline_table.table.data_skipping import DataSkipping

_KNOWN_FOOTERS = 100_000
_KNOWN_FILTERS = 200
"""At Apache Hudi's default filter size, these take 65 MB."""
_MOST_FILTERED = 4096
"""With more keys than this, a filter rarely excludes a file."""


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """A filter on the commit time of rows: one of `instants`, or strictly between the two instants of `between` if given.

    Of these, not those of `without`.
    """

    instants: frozenset[str]
    between: tuple[str, str] | None = None
    without: frozenset[str] = frozenset()

    def expression(self) -> pc.Expression:
        """Return the filter as an Arrow expression."""
        commit_time = pc.field(MetaField.COMMIT_TIME)
        named = commit_time.isin(pa.array(sorted(self.instants), pa.string()))
        if self.between is None:
            return named
        low, high = self.between
        within = (commit_time > low) & (commit_time < high)
        return named | (within & ~commit_time.isin(pa.array(sorted(self.without), pa.string())) if self.without else within)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fixed set of file slices and everything needed to read them. `schema` includes the meta fields.

    Can be sent to workers: it opens its storage when it is unpickled.
    """

    storage: Storage
    schema: pa.Schema
    rule: LogRule
    slices: tuple[FileSlice, ...]
    commit_times: CommitTimes | None = None
    """The rows that an incremental query selects; None: all."""
    log_indexes: LogIndexes | None = field(default=None, compare=False)
    """Key indexes that show which log blocks can hold wanted keys; None: all blocks are read. Not sent to workers."""
    buckets: BucketPruning | None = field(default=None, compare=False)
    """How to leave out buckets that a filter or keys exclude; None: all slices are read. Not sent to workers."""

    skipping: DataSkipping | None = field(default=None, compare=False)
    """How to leave out slices that a filter excludes by their statistics; None: all are read. Not sent to workers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.storage.root, self.schema, self.rule, self.slices, self.commit_times)

    def output(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of the rows; `columns` may name fields of structs by dotted paths.

        Raises `SchemaMismatch` for a column that the table does not have.
        """
        if columns is None:
            return self.schema
        paths = {name: field_path(self.schema, name) for name in columns}
        for name, path in paths.items():
            if not path:
                raise SchemaMismatch(f"column {name!r} is not in the table", expected=f"one of {', '.join(self.schema.names)}")
        return pa.schema([field_of(self.schema, paths[name]) for name in columns])

    def filtered(self, where: pc.Expression | str | None) -> pc.Expression | None:
        """Return `where` (an expression, or SQL text as `parse_where` reads it) combined with the query's own filter.

        Raises `InvalidPredicate` for text that is no condition on the columns.
        """
        if isinstance(where, str):
            where = parse_where(where, self.schema) if where.strip() else None
        if self.commit_times is None:
            return where
        own = self.commit_times.expression()
        return own if where is None else own & where

    def only(self, where: pc.Expression | None = None, keys: pa.Array | None = None) -> Snapshot:
        """Return the part that can hold rows for which `where` is true, and rows with one of these record keys.

        Reads no data file; the first call for an open table may read statistics.
        """
        slices = self.slices
        if self.buckets is not None and (where is not None or keys is not None):
            slices = self.buckets.slices_for(slices, self.schema, where, keys)
        if self.skipping is not None:
            filled = self.rule.path_columns
            for condition in (where, self._has_key(keys)):
                if condition is not None:
                    unstored = filled.fields if filled is not None else ()
                    slices = self.skipping.slices_for(slices, self.schema, condition, unstored)
        return self if slices is self.slices else replace(self, slices=slices)

    def known_buckets(self) -> BucketPruning:
        """Return `buckets`.

        Raises `UnsupportedTable` for a table without a bucket index, with one by consistent hashing, where equal hashes of two
        tables say nothing about their buckets, or whose rows may be elsewhere than it says.
        """
        if self.buckets is None:
            raise UnsupportedTable(
                f"no bucket index that a query of {self.storage.root} can rely on",
                expected="a table created with --index bucket and the simple engine, adopted with `tideline share` if Apache "
                "Hudi created it, and unchanged since",
                remedy="read the table without buckets",
            )
        self.buckets.index.check_comparable(self.storage.root)
        if self.buckets.check is not None:
            self.buckets.check()
        return self.buckets

    def sampled(self, buckets: Collection[int], out_of: int | None = None) -> Snapshot:
        """Return the rows whose bucket number modulo `out_of` (default: the number of buckets) is one of `buckets`; reads no file.

        Rows with equal values in the hash fields are in it together or not at all. Raises as `sampled_slices` and `known_buckets`.
        """
        return replace(self, slices=sampled_slices(self.known_buckets().index, self.slices, buckets, out_of))

    def _has_key(self, keys: pa.Array | None) -> pc.Expression | None:
        # Without meta fields, no column holds the record key.
        return None if keys is None or self.rule.keygen is not None else pc.field(MetaField.RECORD_KEY).isin(keys)

    def scan(
        self, columns: Sequence[str] | None = None, where: pc.Expression | str | None = None, keys: pa.Array | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows, slice by slice; only rows with one of `keys` (record keys) if given.

        Raises what `filtered` raises, `CorruptMetadata` for a file that cannot be read, `HistoryUnavailable` for a missing file.
        """
        condition, chosen = self.filtered(where), self.output(columns)
        slices = self.only(condition, keys).slices
        if columns is not None and not set(columns) <= set(self.schema.names):
            for batch in self.scan_slices(slices, top_columns(self.schema, columns), condition, keys):
                yield with_fields(batch, chosen)
            return
        yield from self.scan_slices(slices, columns, condition, keys)

    def scan_slices(
        self, slices: Sequence[FileSlice], columns: Sequence[str] | None, condition: pc.Expression | None, keys: pa.Array | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these slices, as `scan` does, which checks condition and columns."""
        for file_slice in slices:
            with _kept_files():
                yield from scan_slice(self.storage, file_slice, self.schema, self.rule, columns, condition, keys, self.log_indexes)

    def superseded(self, file_slice: FileSlice) -> Superseded:
        """Return the rows of the base file and of `scan_log_part` that the slice does not have. Errors as `scan`."""
        with _kept_files():
            return superseded_rows(self.storage, file_slice, self.schema, self.rule)

    def scan_log_part(self, file_slice: FileSlice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the newest row of each key in the log of a slice, for a reader that scans the base file itself.

        Errors as `scan`.
        """
        with _kept_files():
            yield from scan_log_part(self.storage, file_slice, self.schema, self.rule, columns)

    def read(
        self, columns: Sequence[str] | None = None, where: pc.Expression | str | None = None, keys: pa.Array | None = None
    ) -> pa.Table:
        """Return the rows of `scan`, whole in memory."""
        schema = self.output(columns)
        # To count rows, a scan of no column returns one that was not requested.
        batches = (batch.select(schema.names) for batch in self.scan(columns, where, keys))
        return pa.RecordBatchReader.from_batches(schema, batches).read_all()


@contextmanager
def _kept_files() -> Iterator[None]:
    try:
        yield
    except ObjectNotFound as error:
        raise HistoryUnavailable(
            f"{error.path}, which the query reads, is gone",
            expected="files that cleaning leaves to queries that run",
            remedy="query again; if it is missing still, restore the file",
        ) from None


def _reopened(root: str, *fields: Any) -> Snapshot:
    return Snapshot(open_storage(root), *fields)


def without_logs(slices: Iterable[FileSlice]) -> tuple[FileSlice, ...]:
    """Return the slices of the read-optimized view: base files only, without groups that have none (11.1)."""
    return tuple(replace(s, log_files=()) for s in slices if s.base_file)


@dataclass(slots=True)
class KeyRanges:
    """A cache of key ranges and Bloom filters of base files, by path. Base files never change, so each footer is read once.

    Filters are large, so only `_KNOWN_FILTERS` are kept; a file without a filter is judged by its key range alone.
    """

    storage: Storage
    _footers: OrderedDict[str, BaseFileFooter] = field(default_factory=OrderedDict)
    _with_filters: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def narrowed(self, slices: Iterable[FileSlice], keys: pa.Array) -> tuple[FileSlice, ...]:
        """Return the slices to read for `keys` (sorted, ascending), without base files that cannot hold one; log files are kept."""
        wanted = keys.to_pylist()
        found = []
        for file_slice in slices:
            if file_slice.base_file and not self._may_hold(file_slice.path, wanted):
                if not file_slice.log_files:
                    continue
                # The log files may change these keys, but the base file does not have them.
                file_slice = replace(file_slice, base_file="", size_bytes=0)
            found.append(file_slice)
        return tuple(found)

    def footer(self, path: str) -> BaseFileFooter:
        """Return the footer of a base file."""
        footer = self._footers.get(path)
        if footer is None:
            footer = self._keep(path, read_footer(self.storage, path, with_bloom=True))
        return footer

    def _may_hold(self, path: str, keys: list[str]) -> bool:
        footer = self.footer(path)
        if not footer.rows:
            return False
        bounds = footer.bounds
        if bounds is not None:
            keys = keys[bisect.bisect_left(keys, bounds[0]) : bisect.bisect_right(keys, bounds[1])]
        if footer.bloom is None or not 0 < len(keys) <= _MOST_FILTERED:
            return bool(keys)
        return bool(footer.bloom.may_hold(KeyBytes(pa.array(keys, pa.string()))).any())

    def _keep(self, path: str, footer: BaseFileFooter) -> BaseFileFooter:
        self._footers[path] = footer
        if footer.bloom is not None:
            self._with_filters[path] = None
        while len(self._with_filters) > _KNOWN_FILTERS:
            old, _ = self._with_filters.popitem(last=False)
            if old in self._footers:
                self._footers[old] = replace(self._footers[old], bloom=None)
        while len(self._footers) > _KNOWN_FOOTERS:
            self._footers.popitem(last=False)
        return footer


def sorted_keys(keys: Iterable[str]) -> pa.Array:
    """Return the distinct record keys, ascending in Python's text order."""
    return pa.array(sorted(set(keys)), pa.string())
