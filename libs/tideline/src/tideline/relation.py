"""SQL over tables: DuckDB evaluates the query, the engine scans the table.

DuckDB reads a `pyarrow.dataset.Dataset` by requesting a scanner with the columns and the filter of a query. `TableDataset` answers
with a scan of the engine, which merges log files and skips row groups and columns that the query does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tideline_table.errors import SchemaMismatch

Scan = Callable[[Sequence[str] | None, pc.Expression | None], pa.RecordBatchReader]


class TableScanner:
    """The scanner methods that users of a dataset call, over one record batch reader.

    Arrow's own scanner is not used: after an abandoned scan its read-ahead threads call into Python at exit and abort the process.
    """

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    @property
    def projected_schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._reader.schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return self._reader

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the record batches."""
        return iter(self._reader)

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return self._reader.read_all()

    def count_rows(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self._reader)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first `num_rows` rows."""
        found: list[pa.RecordBatch] = []
        while (missing := num_rows - sum(batch.num_rows for batch in found)) > 0:
            batch = next(self._reader, None)
            if batch is None:
                break
            found.append(batch.slice(0, missing))
        return pa.Table.from_batches(found, schema=self._reader.schema)

    def take(self, indices: pa.Array) -> pa.Table:
        """Return the rows at these positions."""
        return self.to_table().take(indices)


class TableDataset(ds.Dataset):  # type: ignore[misc]
    """A table as a dataset with one part. Each scan reads the current state of the table."""

    def __init__(self, schema: pa.Schema, scan: Scan) -> None:
        # The base class wraps a dataset of Arrow's C++ library. None exists here, so every method that would use it is overridden.
        self._schema = schema
        self._scan = scan

    def __reduce__(self) -> NoReturn:
        raise TypeError("the dataset of a table cannot be sent to another process; open the table in that process")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table at the time the dataset was created."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """The expression `true`: no condition is known to hold for all rows."""
        return pc.scalar(value=True)

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> TableScanner:  # noqa: A002 - Arrow's name
        """Return a scanner of `columns` (default: all) for the rows for which `filter` is true. It can be read once.

        Raises `SchemaMismatch` if the type of a column has changed since the dataset was created.
        """
        reader = self._scan(columns, filter)
        for field in reader.schema:
            if field.type != self._schema.field(field.name).type:
                raise SchemaMismatch(
                    f"column {field.name!r} has type {field.type} since the query was created",
                    expected=f"type {self._schema.field(field.name).type}",
                    remedy="create the query again",
                )
        return TableScanner(reader)

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            "the dataset of a table has no fragments and cannot be part of an Arrow plan; use to_table(columns=, filter=), "
            "to_batches or SQL"
        )

    filter = get_fragments = _get_fragments = join = join_asof = replace_schema = sort_by = _refused


def run_sql(query: str, name: str, dataset: TableDataset, connection: duckdb.DuckDBPyConnection | None) -> duckdb.DuckDBPyRelation:
    """Return the relation of `query`, which can use `dataset` as `name`. Without a `connection` it can use no other table."""
    refuse_twins(dataset.schema.names)
    if connection is None:
        connection = duckdb.connect()
        connection.execute("set python_enable_replacements = false; set TimeZone = 'UTC'")
    connection.register(name, dataset)
    return connection.sql(query)


def refuse_twins(names: Sequence[str]) -> None:
    """Raise `SchemaMismatch` for names that differ by case alone: DuckDB answers with the first of them for either."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise SchemaMismatch(
                f"columns {other!r} and {name!r}, which SQL does not tell apart",
                expected="names that differ by more than case",
                remedy="read the columns with `read` or `scan`, or rename them in the result and query that",
            )
