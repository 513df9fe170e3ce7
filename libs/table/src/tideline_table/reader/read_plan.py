"""Plans for reading merged file slices: the merge rule of logs, and the columns of each file that a query needs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import parse_base_file_name
from tideline_table.keygen import KeyGenerator, PathColumns
from tideline_table.merge import Merging, deleted_mask
from tideline_table.reader.base_file import BaseFileScan, referenced_columns
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.schema.arrow import field_values, named_field, named_values, top_columns
from tideline_table.schema.evolution import IS_DELETED
from tideline_table.schema.identity import FileNames, SchemaVersions
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage


@dataclass(frozen=True, slots=True)
class LogRule:
    """The rule that merges log files into a base file: a plain value that can be sent to workers."""

    merging: Merging = field(default_factory=Merging)
    visible: VisibleInstants | None = None
    """Committed instants, None if the slice names committed log files only (exclusive tables)."""
    as_of: str = ""
    keygen: KeyGenerator | None = None
    """The key generator of a table without meta fields: it derives the record keys."""
    path_columns: PathColumns | None = None
    """Columns whose values come from the path of a slice."""
    versions: SchemaVersions | None = None
    """Schemas of a table whose columns are identified by id."""
    scan_bytes: int | None = None
    """About how much a scan of a whole base file decodes at a time, None: as much as Arrow's scanner does, up to 1 GiB ahead."""
    one_thread: bool = False
    """Whether the caller's thread decodes whole base files. Tasks that run beside others need less processor time without Arrow's
    threads."""
    extension: str = "parquet"
    """The extension of the base files that the table's writers and services write."""
    dictionaries: frozenset[str] = frozenset()
    """Columns of texts that scans of base files yield as dictionaries; rows of logs have texts. Not for filters, keys or
    ordering."""

    def names_in(self, instant: str) -> FileNames:
        """Return how a file that `instant` wrote names the query's columns."""
        return self.versions.file_names(instant, self.as_of) if self.versions is not None else FileNames()

    def open_base(self, storage: Storage, file_slice: FileSlice, schema: pa.Schema) -> BaseFileScan:
        """Return the base file of a slice, read in `schema`."""
        name = parse_base_file_name(file_slice.base_file)
        names = self.names_in(name.instant) if name is not None else FileNames()
        return BaseFileScan(storage, file_slice.path, schema, names, self.scan_bytes, self.dictionaries, one_thread=self.one_thread)


@dataclass(frozen=True)
class ReadPlan:
    """A read of merged slices, and the columns that it needs of each file."""

    schema: pa.Schema
    rule: LogRule
    columns: tuple[str, ...]
    where: pc.Expression | None
    keys: pa.Array | None

    @functools.cached_property
    def key_columns(self) -> frozenset[str]:
        """The columns that record keys come from."""
        if self.rule.keygen is None:
            return frozenset([MetaField.RECORD_KEY.value])
        return frozenset(top_columns(self.schema, self.rule.keygen.key_fields))

    @functools.cached_property
    def ordering(self) -> frozenset[str]:
        """The columns that hold the ordering fields if these decide."""
        return frozenset(top_columns(self.schema, self.rule.merging.ordering_fields))

    @functools.cached_property
    def emitted(self) -> frozenset[str]:
        """The columns that winning rows need: the requested ones and those of the filter."""
        return frozenset(self.columns) | (referenced_columns(self.where, self.schema) if self.where is not None else frozenset())

    @functools.cached_property
    def marks(self) -> frozenset[str]:
        """The columns that mark a row of a log as a deletion."""
        deletion = self.rule.merging.deletion
        return frozenset([IS_DELETED] if deletion is None else [IS_DELETED, deletion.field])

    def part(self, names: frozenset[str]) -> pa.Schema:
        """Return these columns in the order of the schema."""
        return pa.schema([f for f in self.schema if f.name in names])

    def record_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the record keys of rows that have `key_columns`."""
        return rows.column(MetaField.RECORD_KEY) if self.rule.keygen is None else self.rule.keygen.record_keys(rows)

    def with_keys(self, rows: pa.Table) -> pa.Table:
        """Return those of `rows` (with `key_columns`) that have one of `keys`."""
        return rows if self.keys is None else rows.filter(pc.is_in(self.record_keys(rows), value_set=self.keys))

    @functools.cached_property
    def ordering_type(self) -> pa.DataType:
        """The type of ordering values; a struct if there are several fields."""
        fields = [named_field(self.schema, name) for name in self.rule.merging.ordering_fields]
        return fields[0].type if len(fields) == 1 else pa.struct([f.with_nullable(nullable=True) for f in fields])

    def ordering_values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the ordering values of rows that have `ordering`."""
        fields = self.rule.merging.ordering_fields
        if len(fields) == 1:
            return field_values(rows, fields[0])
        batches = named_values(rows, fields).to_batches()
        kind = self.ordering_type
        return pa.chunked_array([pa.StructArray.from_arrays(b.columns, fields=list(kind)) for b in batches], kind)

    def deletions(self, rows: pa.Table) -> np.ndarray:
        """Return True for each row of a log that is a deletion."""
        deleted, mark = deleted_mask(rows), self.rule.merging.deletion
        return deleted if mark is None else deleted | mark.mask(rows)

    def output(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the filtered rows with the requested columns."""
        kept = rows if self.where is None else rows.filter(self.where)
        yield from (batch for batch in kept.select(list(self.columns)).to_batches() if batch.num_rows)
