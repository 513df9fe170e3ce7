"""`Table`, the class for one table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

import tideline  # its names are imported when they are used: reads and writes need neither door
from tideline.opened import Opened, Options
from tideline.predicates import Assigned, Where, expression_of
from tideline.query import Columns, Query, chosen_columns
from tideline.results import Commit
from tideline.rows import Keys, Rows, column_list, keys_from, table_from
from tideline_table import action
from tideline_table import table as engine
from tideline_table.checked import checked_methods
from tideline_table.errors import InvalidOption, SchemaMismatch
from tideline_table.extras import extra
from tideline_table.hudi import Point
from tideline_table.log import ProgressStep
from tideline_table.schema import field_path, fit_rows, named_field, named_values
from tideline_table.writer import Operation

if TYPE_CHECKING:
    import duckdb

    from tideline.expressions import Selection
    from tideline.relation import TableDataset


@checked_methods
class Table:
    """An open table, made by `tideline.create` or `tideline.open`. It can be shared between threads.

    A read sees what is committed when it begins. Each write is one atomic commit. A write that conflicts with another one is
    repeated on the new state up to `tideline.write.conflict.retries` times, then it raises `Conflict`. `options` of a call are
    added to those of the table. Errors are in `tideline.errors`.
    """

    def __init__(self, table: engine.Table, locks: str | None = None) -> None:
        self._opened = Opened(table, locks)

    def __repr__(self) -> str:
        return f"<tideline.Table {self.name} at {self.path}, {self.inspect.type}>"

    def _repr_html_(self) -> str:
        from tideline.html_view import columns_of, facts  # noqa: PLC0415 - only notebooks need it

        kind = self.inspect
        return facts(
            f"Table {self.name}",
            {
                "path": self.path,
                "type": kind.type,
                "key": ", ".join(kind.key),
                "partition": ", ".join(kind.partition),
                "ordering": kind.ordering,
                "columns": columns_of(self.schema),
            },
        )

    @property
    def path(self) -> str:
        """The base path as a URI."""
        return self._table.storage.root

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.definition.name

    @property
    def schema(self) -> pa.Schema:
        """The columns, without meta fields, as of now."""
        self._table.refresh()
        return self._table.schema

    @property
    def maintenance(self) -> tideline.Maintenance:
        """The table services and administration: compact, cluster, clean, savepoints, restore, the metadata table, sharing."""
        return tideline.Maintenance(self._opened)

    @property
    def inspect(self) -> tideline.Inspection:
        """What the table is and holds: its definition, status, files, savepoints, leases."""
        return tideline.Inspection(self._opened)

    @property
    def _table(self) -> engine.Table:
        return self._opened.table

    # --- writing --------------------------------------------------------------------------------------------------------------

    def upsert(
        self, rows: Rows, *, delete: Keys | None = None, progress: ProgressStep | None = None, options: Options = None
    ) -> Commit:
        """Insert rows, and replace the rows whose key the table already holds.

        `rows` have the Arrow PyCapsule interface. `delete`: keys that the same commit deletes, with the partition columns; none may
        be in `rows`. `progress`: what `Progress.moved` returned; the commit stores it with the rows. All writes raise
        `SchemaMismatch` and `InvalidInput` before anything is written, and `Conflict` as described for the class, or if the
        progress has moved.
        """
        removed = None if delete is None else self._keys(delete, self._table.schema, of_rows=True)
        return self._write(table_from(rows), Operation.UPSERT, progress, options, removed)

    def insert(self, rows: Rows, *, progress: ProgressStep | None = None, options: Options = None) -> Commit:
        """Add rows without looking up their keys, unless `hoodie.datasource.insert.dup.policy` requires it.

        In a table with a bucket index, rows whose key the table holds already are updated.
        """
        return self._write(table_from(rows), Operation.INSERT, progress, options)

    def bulk_insert(self, rows: Rows, *, progress: ProgressStep | None = None, options: Options = None) -> Commit:
        """Add rows as new files, sorted by `hoodie.bulkinsert.user.defined.partitioner.sort.columns`. Meant for initial loads."""
        return self._write(table_from(rows), Operation.BULK_INSERT, progress, options)

    def insert_overwrite(self, rows: Rows, *, progress: ProgressStep | None = None, options: Options = None) -> Commit:
        """Replace the content of the partitions that `rows` belong to."""
        return self._write(table_from(rows), Operation.INSERT_OVERWRITE, progress, options)

    def insert_overwrite_table(self, rows: Rows, *, progress: ProgressStep | None = None, options: Options = None) -> Commit:
        """Replace the content of the whole table with `rows`."""
        return self._write(table_from(rows), Operation.INSERT_OVERWRITE_TABLE, progress, options)

    def delete(
        self, keys: Keys | None = None, *, where: Where = None, progress: ProgressStep | None = None, options: Options = None
    ) -> Commit:
        """Delete rows by key, or those for which `where` is true, whatever their ordering values are.

        `where` is a condition as for `scan`, or other SQL that DuckDB evaluates. If another writer changes, adds or removes a row
        for which it is true before the commit, the deletion is repeated on the new state.

        `keys` are rows or mappings with the key columns, or plain values if the key has one column. If a partition column is
        missing, all partitions are searched, except in a table with a bucket index: that raises `SchemaMismatch`. Keys that the
        table does not hold are ignored. Without any key, the commit deletes nothing, as each write without rows changes
        nothing.
        """
        if where is None:
            return self._write(self._keys(cast(Keys, keys), self._table.schema), Operation.DELETE, progress, options)
        if keys is not None:
            raise InvalidOption("keys and a condition", expected="either of them")
        from tideline.row_changes import delete_rows  # noqa: PLC0415 - other writes do without

        return delete_rows(self._table, self._selection(where), progress, options)

    def update(
        self, columns: Assigned, where: Where = None, *, progress: ProgressStep | None = None, options: Options = None
    ) -> Commit:
        """Give the rows for which `where` is true (all rows without it) new values, in one commit.

        `columns` maps names of columns to values. A text is an SQL expression over the columns, which DuckDB evaluates
        (`{"fare": "fare * 2", "state": "'done'"}`); any other object is the value, or a `pyarrow.compute.Expression`. Rows that get
        another value in a partition column move. Conflicts and `where` as for `delete`. Raises `SchemaMismatch` for columns of the
        record key, and `InvalidInput` for an ordering value that is smaller than the stored one.
        """
        from tideline.row_changes import update_rows  # noqa: PLC0415 - other writes do without

        return update_rows(self._table, columns, self._selection(where), progress, options)

    def merge(self, rows: Rows, on: str | Iterable[str]) -> tideline.Merge:
        """Return a merge of `rows` (`source` in its conditions) into this table (`target`); nothing is written before `execute`.

        `on` names columns that are equal, or is an SQL condition such as `"target.id = source.trip_id"`.
        """
        return tideline.Merge(self._opened, table_from(rows), on)

    def _selection(self, where: Where) -> Selection:
        from tideline.expressions import selection_of  # noqa: PLC0415 - other writes do without

        self._table.refresh()
        return selection_of(where, self._table.schema)

    def delete_partitions(self, partitions: str | Iterable[str], *, options: Options = None) -> Commit:
        """Delete the content of these partition paths, given as in `_hoodie_partition_path`."""
        self._table.refresh()
        done = action.delete_partitions(self._table, column_list(partitions), options=options)
        return Commit.of(done, action.run_inline(self._table, options))

    def _write(
        self, rows: pa.Table, operation: Operation, progress: ProgressStep | None, options: Options, removed: pa.Table | None = None
    ) -> Commit:
        done = action.write_rows(self._table, rows, operation, options=options, removed=removed, progress=progress)
        return Commit.of(done, action.run_inline(self._table, options))

    # --- reading --------------------------------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Columns = None,
        where: Where = None,
        *,
        as_of: Point = "",
        read_optimized: bool = False,
        meta_fields: bool = False,
    ) -> pa.RecordBatchReader:
        """Return a stream of record batches with `columns` (default: all) of the rows for which `where` is true.

        `where` is SQL text such as `"fare > 100 and day is not null"`, or a `pyarrow.compute.Expression`. `as_of` is an instant,
        a date, a time (UTC if it has no zone) or a sequence of the table log. `read_optimized` skips log files: faster, as of the
        last compaction of each file. `meta_fields` puts the Hudi meta fields first. Raises `InstantNotFound` for a time whose
        files were cleaned.
        """
        self._table.refresh()
        instant = self._table.instant_of(as_of)
        found = self._table.snapshot(instant, read_optimized=read_optimized)
        return Query(found, self._table.schema_at(instant), instant, meta_fields=meta_fields).scan(columns, where)

    def read(
        self,
        columns: Columns = None,
        where: Where = None,
        *,
        as_of: Point = "",
        read_optimized: bool = False,
        meta_fields: bool = False,
    ) -> pa.Table:
        """Return all rows of `scan` as one table in memory."""
        return self.scan(columns, where, as_of=as_of, read_optimized=read_optimized, meta_fields=meta_fields).read_all()

    def lookup(
        self, keys: Keys, columns: Columns = None, where: Where = None, *, as_of: Point = "", meta_fields: bool = False
    ) -> pa.Table:
        """Return the rows with these keys from the files that can hold them. `keys` as for `delete`; partitions are not needed."""
        self._table.refresh()
        instant = self._table.instant_of(as_of)
        schema = self._table.schema_at(instant)
        keygen = self._table.definition.keygen
        fields = [named_field(schema, name) for name in keygen.key_fields]
        given = fit_rows(named_values(self._keys(keys, schema), keygen.key_fields), pa.schema(fields))
        wanted = keygen.written_keys(given).to_pylist()
        names = chosen_columns(columns, schema, meta_fields=meta_fields)
        return self._table.look_up(wanted, names, instant, expression_of(where, schema))

    def incremental(self, since: Point = "", until: Point = "", *, meta_fields: bool = False) -> Query:
        """Return a query of the rows written after `since` (default: all) up to `until` (default: now), as of `until`, one per key.

        A point is a sequence of the table log (`Commit.sequence`, `Query.until`), an instant, a date or a time (UTC without a
        zone). Sequences also cover writes that completed late. Raises `HistoryUnavailable` for points whose files were cleaned.
        """
        start, end = self._points(since, until)
        return Query(self._table.incremental(start, end), self._table.schema, end, meta_fields=meta_fields)

    def changes(self, since: Point = "", until: Point = "", *, op: str | Iterable[str] = "", meta_fields: bool = False) -> Query:
        """Return a query of changes: `op` (`i`, `u` or `d`), row `before` and `after`. Points as for `incremental`.

        The argument `op` names the operations that are returned: `"d"`, `"i,u"` or `["inserted", "deleted"]`. Default: all.
        """
        start, end = self._points(since, until)
        return Query(self._table.changes(start, end, op), self._table.schema, end, meta_fields=meta_fields)

    def dataset(self, *, as_of: Point = "") -> TableDataset:
        """Return a `pyarrow.dataset.Dataset` of the table for DuckDB and similar engines. A scan reads the table at its start."""
        with extra("sql"):
            from tideline.relation import TableDataset

        self._table.refresh()
        return TableDataset(self._table.schema_at(as_of), partial(self.scan, as_of=as_of))

    def sql(self, query: str, *, as_of: Point = "", connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation of `query`. The table's name is the last part of its path: `from trips` for `s3://bucket/trips`.

        Evaluating it reads only the columns and rows that the query needs, of the state at that time or of `as_of`. To query
        several tables, pass one `connection` to the `sql` of each, which registers that table, or use `dataset()` in `duckdb.sql`.
        """
        with extra("sql"):
            from tideline.relation import run_sql

        return run_sql(query, engine.folder_name(self._table.base_path), self.dataset(as_of=as_of), connection)

    def _keys(self, keys: Keys, schema: pa.Schema, *, of_rows: bool = False) -> pa.Table:
        keygen = self._table.definition.keygen
        if not keygen.key_fields:
            self._table.definition.check_writable()
        given = keys_from(keys, schema, tuple(keygen.key_fields), tuple(keygen.partition_fields))
        needed = (*keygen.key_fields, *(keygen.partition_fields if of_rows else ()))
        if twice := sorted({name for name in given.column_names if given.column_names.count(name) > 1}):
            raise SchemaMismatch(f"keys with column(s) {', '.join(map(repr, twice))} more than once", expected="each column once")
        missing = [name for name in needed if not field_path(given.schema, name)]
        if missing:
            raise SchemaMismatch(
                f"keys without column(s) {', '.join(map(repr, missing))}", expected=f"the columns {', '.join(needed)}"
            )
        return given

    def _points(self, since: Point, until: Point) -> tuple[str, str]:
        self._table.refresh()
        return self._table.point_of(since), self._table.point_of(until) or self._table.newest_point()
