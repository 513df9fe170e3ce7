"""What reading merged file slices takes: the rule by which logs are merged, and which columns of which file a query needs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.names import parse_base_file_name
from tideline_table.file_group.slice import FileSlice
from tideline_table.keygen import KeyGenerator, PathColumns
from tideline_table.merge import EventKind, MergeMode, PartialUpdate, deleted_mask
from tideline_table.reader.base_file import BaseFileScan, referenced_columns
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.schema.fit import IS_DELETED
from tideline_table.schema.identity import FileNames, SchemaVersions
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage


@dataclass(frozen=True, slots=True)
class DeletionMark:
    """Rows of logs that say by a value of one of their columns that they are deletions."""

    field: str
    marker: str

    def mask(self, rows: pa.Table) -> np.ndarray:
        """True for each row that is one."""
        if self.field not in rows.column_names:
            return np.zeros(rows.num_rows, dtype=bool)
        marked = pc.equal(rows.column(self.field).cast(pa.string()), self.marker)
        return np.asarray(pc.fill_null(marked, fill_value=False))


@dataclass(frozen=True, slots=True)
class LogRule:
    """How log files are merged into a base file: a plain value that ships to workers."""

    mode: MergeMode
    ordering_field: str = ""
    """The ordering fields, separated by commas; the first one that differs decides."""
    visible: VisibleInstants | None = None
    """Committed instants, None where the slice names committed log files only (tables that Tideline owns)."""
    as_of: str = ""
    keygen: KeyGenerator | None = None
    """Where keys come from in a table without meta fields."""
    partial: PartialUpdate | None = None
    """How records leave cells open by their values."""
    deletion: DeletionMark | None = None
    deletions_always_win: bool = False
    """Deletions by event time do not compare."""
    path_columns: PathColumns | None = None
    """Columns whose values stand in the path of a slice only."""
    versions: SchemaVersions | None = None
    """Where columns are told by id."""

    def names_in(self, instant: str) -> FileNames | None:
        """How a file that `instant` wrote names columns, None where every file names them as the query does."""
        return self.versions.file_names(instant, self.as_of) if self.versions is not None else None

    def open_base(self, storage: Storage, file_slice: FileSlice, schema: pa.Schema) -> BaseFileScan:
        """The base file of a slice, read in `schema`."""
        name = parse_base_file_name(file_slice.base_file)
        return BaseFileScan(storage, file_slice.path, schema, self.names_in(name.instant) if name is not None else None)

    @property
    def ordering_fields(self) -> tuple[str, ...]:
        """The ordering fields where they decide."""
        if self.mode is not MergeMode.EVENT_TIME:
            return ()
        return tuple(name.strip() for name in self.ordering_field.split(","))


@dataclass(frozen=True)
class ReadPlan:
    """What a read of merged slices needs of each file."""

    schema: pa.Schema
    rule: LogRule
    columns: tuple[str, ...]
    where: pc.Expression | None
    keys: pa.Array | None

    @functools.cached_property
    def key_columns(self) -> frozenset[str]:
        """Where record keys come from."""
        return frozenset(self.rule.keygen.key_fields) if self.rule.keygen is not None else frozenset([MetaField.RECORD_KEY.value])

    @functools.cached_property
    def ordering(self) -> frozenset[str]:
        """The ordering fields where they decide."""
        return frozenset(self.rule.ordering_fields)

    @functools.cached_property
    def emitted(self) -> frozenset[str]:
        """What the rows that win need: the columns asked for and those of the filter."""
        return frozenset(self.columns) | (referenced_columns(self.where, self.schema) if self.where is not None else frozenset())

    @functools.cached_property
    def marks(self) -> frozenset[str]:
        """Columns that say whether a row of a log is a deletion."""
        return frozenset([IS_DELETED, *([self.rule.deletion.field] if self.rule.deletion is not None else [])])

    def part(self, names: frozenset[str]) -> pa.Schema:
        """These columns in the order of the schema."""
        return pa.schema([f for f in self.schema if f.name in names])

    def record_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """Record keys of rows that have `key_columns`."""
        return rows.column(MetaField.RECORD_KEY) if self.rule.keygen is None else self.rule.keygen.record_keys(rows)

    @functools.cached_property
    def ordering_type(self) -> pa.DataType:
        """Of ordering values; a struct where there are several fields."""
        fields = [self.schema.field(name) for name in self.rule.ordering_fields]
        return fields[0].type if len(fields) == 1 else pa.struct([f.with_nullable(nullable=True) for f in fields])

    def ordering_values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Ordering values of rows that have `ordering`."""
        fields = self.rule.ordering_fields
        if len(fields) == 1:
            return rows.column(fields[0])
        batches = rows.select(list(fields)).to_batches()
        kind = self.ordering_type
        return pa.chunked_array([pa.StructArray.from_arrays(b.columns, fields=list(kind)) for b in batches], kind)

    def deletions(self, rows: pa.Table) -> np.ndarray:
        """True for each row of a log that is a deletion."""
        found = np.zeros(rows.num_rows, dtype=bool)
        deleted = deleted_mask(rows)
        if deleted is not None:
            found |= np.asarray(deleted)
        if self.rule.deletion is not None:
            found |= self.rule.deletion.mask(rows)
        return found

    @property
    def deletion_kind(self) -> EventKind:
        """What deletions with an ordering value are."""
        return EventKind.PURGE if self.rule.deletions_always_win else EventKind.DELETE

    def output(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Filtered, with the columns asked for."""
        kept = rows if self.where is None else rows.filter(self.where)
        yield from (batch for batch in kept.select(list(self.columns)).to_batches() if batch.num_rows)
