"""Queries over a fixed part of a table: a snapshot, an incremental query or a change query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tideline.predicates import Where, expression_of
from tideline.rows import column_list
from tideline_table.checked import checked_methods
from tideline_table.hudi import is_sequence
from tideline_table.schema import META_FIELDS

Columns = str | Sequence[str] | None


class Source(Protocol):
    """A fixed set of file slices that the engine can read."""

    def output(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of the rows."""

    def scan(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""


@checked_methods
class Query:
    """Rows of a fixed part of a table's history. Each `scan` or `read` reads them again.

    `until` is the end of that part. The next incremental or change query continues from it.
    """

    def __init__(self, source: Source, table_schema: pa.Schema, until: str = "", *, meta_fields: bool = False) -> None:
        self._source = source
        self._table_schema = table_schema
        self._meta_fields = meta_fields
        self.until: int | str = int(until) if is_sequence(until) else until

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._source.output(self._columns(None))

    def scan(self, columns: Columns = None, where: Where = None) -> pa.RecordBatchReader:
        """Return a stream of record batches with only `columns`, and only the rows for which `where` is true."""
        names = self._columns(columns)
        schema = self._source.output(names)
        batches = self._source.scan(names, expression_of(where, self._table_schema))
        return pa.RecordBatchReader.from_batches(schema, (_in_schema(batch, schema) for batch in batches))

    def read(self, columns: Columns = None, where: Where = None) -> pa.Table:
        """Return all rows of `scan` as one table in memory."""
        return self.scan(columns, where).read_all()

    def _repr_html_(self) -> str:
        from tideline.html_view import columns_of, facts  # noqa: PLC0415 - only notebooks need it

        return facts("Query", {"columns": columns_of(self.schema), "until": self.until})

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def _columns(self, columns: Columns) -> Sequence[str] | None:
        return chosen_columns(columns, self._table_schema, meta_fields=self._meta_fields)


def chosen_columns(columns: Columns, schema: pa.Schema, *, meta_fields: bool) -> Sequence[str] | None:
    """Return the columns to read from a table with `schema`, meta fields first. None means all columns and all meta fields."""
    if columns is None:
        return None if meta_fields else schema.names
    return list(dict.fromkeys([*(META_FIELDS if meta_fields else ()), *column_list(columns)]))


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    # To count rows, the engine returns a column that was not requested. Selecting no column keeps the row count.
    chosen = batch.select(schema.names)
    return (
        chosen if chosen.schema.equals(schema, check_metadata=True) else pa.RecordBatch.from_arrays(chosen.columns, schema=schema)
    )
