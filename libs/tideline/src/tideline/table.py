"""`Table`, the class for one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tideline import services
from tideline.checked import checked_methods
from tideline.indexes import BucketIndex, named_buckets
from tideline.predicates import Where, expression_of
from tideline.query import Columns, Query, chosen_columns
from tideline.results import Archival, Clean, Clustering, Commit, Compaction, Resize, Restoration
from tideline.rows import Keys, Rows, column_list, keys_from, table_from
from tideline_locks import attach_lock, open_hudi_lock
from tideline_table import action
from tideline_table import table as engine
from tideline_table.errors import InvalidOption, SchemaMismatch
from tideline_table.extras import extra
from tideline_table.hudi import Point
from tideline_table.metadata_table import Finding
from tideline_table.schema import field_path, fit_rows, named_field, named_values
from tideline_table.table import HeldLease, Lease
from tideline_table.writer import Operation

if TYPE_CHECKING:
    import duckdb

    from tideline.engine_results import Cancelled, DataFile, MaintenanceStep, Savepoint
    from tideline.relation import TableDataset

Options = Mapping[str, object] | None


@checked_methods
class Table:
    """An open table, made by `tideline.create` or `tideline.open`. It can be shared between threads.

    A read sees what is committed when it begins. Each write is one atomic commit. A write that conflicts with another one is
    repeated on the new state up to `tideline.write.conflict.retries` times, then it raises `WriteConflict`. `options` of a call are
    added to those of the table. Errors are in `tideline.errors`.
    """

    def __init__(self, table: engine.Table, locks: str = "") -> None:
        self._table = table
        self._locks = locks

    def __repr__(self) -> str:
        return f"<tideline.Table {self.name} at {self.path}, {self.type}>"

    @property
    def path(self) -> str:
        """The base path as a URI."""
        return self._table.storage.root

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.definition.name

    @property
    def type(self) -> str:
        """`cow` (copy-on-write) or `mor` (merge-on-read)."""
        return self._table.definition.type.name.lower()

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the record key."""
        return tuple(self._table.definition.keygen.key_fields)

    @property
    def partition(self) -> tuple[str, ...]:
        """The columns of the partition path."""
        return tuple(self._table.definition.keygen.partition_fields)

    @property
    def ordering(self) -> str:
        """The column that decides which version of a row wins. If it is empty, the later write wins."""
        return self._table.definition.ordering_field

    @property
    def schema(self) -> pa.Schema:
        """The columns, without meta fields, as of the last read, write or `refresh`."""
        return self._table.schema

    def refresh(self) -> None:
        """Load the commits of other writers. Reads and writes do this themselves."""
        self._table.refresh()

    # --- writing --------------------------------------------------------------------------------------------------------------

    def upsert(self, rows: Rows, *, options: Options = None) -> Commit:
        """Insert rows, and replace the rows whose key the table already holds.

        `rows` have the Arrow PyCapsule interface. All writes raise `SchemaMismatch` and `InvalidRecord` before anything is written,
        and `WriteConflict` as described for the class.
        """
        return self._write(table_from(rows), Operation.UPSERT, options)

    def insert(self, rows: Rows, *, options: Options = None) -> Commit:
        """Add rows without looking up their keys, unless `hoodie.datasource.insert.dup.policy` requires it.

        In a table with a bucket index, rows whose key the table holds already are updated.
        """
        return self._write(table_from(rows), Operation.INSERT, options)

    def bulk_insert(self, rows: Rows, *, options: Options = None) -> Commit:
        """Add rows as new files, sorted by `hoodie.bulkinsert.user.defined.partitioner.sort.columns`. Meant for initial loads."""
        return self._write(table_from(rows), Operation.BULK_INSERT, options)

    def insert_overwrite(self, rows: Rows, *, options: Options = None) -> Commit:
        """Replace the content of the partitions that `rows` belong to."""
        return self._write(table_from(rows), Operation.INSERT_OVERWRITE, options)

    def insert_overwrite_table(self, rows: Rows, *, options: Options = None) -> Commit:
        """Replace the content of the whole table with `rows`."""
        return self._write(table_from(rows), Operation.INSERT_OVERWRITE_TABLE, options)

    def delete(self, keys: Keys, *, options: Options = None) -> Commit:
        """Delete rows by key, whatever their ordering values are.

        `keys` are rows or mappings with the key columns, or plain values if the key has one column. If a partition column is
        missing, all partitions are searched, except in a table with a bucket index: that raises `SchemaMismatch`. Keys that the
        table does not hold are ignored. Without any key, the commit deletes nothing, as each write without rows changes
        nothing.
        """
        return self._write(self._keys(keys, self.schema), Operation.DELETE, options)

    def delete_partitions(self, partitions: str | Iterable[str], *, options: Options = None) -> Commit:
        """Delete the content of these partition paths, given as in `_hoodie_partition_path`."""
        self._table.refresh()
        done = action.delete_partitions(self._table, column_list(partitions), options=options)
        return Commit.of(done, action.run_inline(self._table, options))

    def _write(self, rows: pa.Table, operation: Operation, options: Options) -> Commit:
        done = action.write_rows(self._table, rows, operation, options=options)
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

        `where` is SQL text such as `"fare > 100 and day is not null"`, or a `pyarrow.compute.Expression`. `as_of` is an instant, a
        date or a time (UTC if it has no zone). `read_optimized` skips log files: faster, as of the last compaction of each file.
        `meta_fields` puts the Hudi meta fields first. Raises `InstantNotFound` for a time whose files were cleaned.
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
        fields = [named_field(schema, name) for name in self.key]
        given = fit_rows(named_values(self._keys(keys, schema), self.key), pa.schema(fields))
        wanted = self._table.definition.keygen.written_keys(given).to_pylist()
        names = chosen_columns(columns, schema, meta_fields=meta_fields)
        return self._table.look_up(wanted, names, instant, expression_of(where, schema))

    def sample(self, buckets: Iterable[int], out_of: int | None = None, *, as_of: Point = "", meta_fields: bool = False) -> Query:
        """Return a query of the rows whose bucket number modulo `out_of` (default: the number of buckets) is one of `buckets`.

        Raises `InvalidOption` unless `out_of` divides that number, `UnsupportedTable` for a table without a bucket index.
        """
        self._table.refresh()
        instant = self._table.instant_of(as_of)
        found = self._table.snapshot(instant).sampled(set(buckets), out_of)
        return Query(found, self._table.schema_at(instant), instant, meta_fields=meta_fields)

    def incremental(self, since: Point = "", until: Point = "", *, meta_fields: bool = False) -> Query:
        """Return a query of the rows written after `since` (default: all) up to `until` (default: now), as of `until`, one per key.

        A point is a sequence of the table log (`Commit.sequence`, `Query.until`), an instant, a date or a time (UTC without a
        zone). Sequences also cover writes that completed late. Raises `HistoryUnavailable` for points whose files were cleaned.
        """
        start, end = self._points(since, until)
        return Query(self._table.incremental(start, end), self._table.schema, end, meta_fields=meta_fields)

    def changes(self, since: Point = "", until: Point = "", *, meta_fields: bool = False) -> Query:
        """Return a query of changes: `op` (`i`, `u` or `d`), row `before` and `after`. Points as for `incremental`."""
        start, end = self._points(since, until)
        return Query(self._table.changes(start, end), self._table.schema, end, meta_fields=meta_fields)

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

    def files(self, *, as_of: Point = "") -> tuple[DataFile, ...]:
        """Return the files that a query reads, for engines that read Parquet files by name (docs/other-readers.md).

        Where a file has `log_files`, the base file alone is not the newest rows. Raises the errors of `scan`.
        """
        self._table.refresh()
        return engine.data_files(self._table, as_of)

    def _keys(self, keys: Keys, schema: pa.Schema) -> pa.Table:
        given = keys_from(keys, schema, self.key, self.partition)
        missing = [name for name in self.key if not field_path(given.schema, name)]
        if missing:
            raise SchemaMismatch(
                f"keys without column(s) {', '.join(map(repr, missing))}", expected=f"the key columns {', '.join(self.key)}"
            )
        return given

    def _points(self, since: Point, until: Point) -> tuple[str, str]:
        self._table.refresh()
        return self._table.point_of(since), self._table.point_of(until) or self._table.newest_point()

    def lease(
        self, as_of: Point = "", *, after: Point = "", holder: str = "", reads: str = "", ttl_s: float | None = None
    ) -> HeldLease:
        """Hold a reader lease while a `with` block runs: cleaning and archival keep what queries as of `as_of` (default: now) read.

        With `after`, a point as for `incremental`, they keep what was written after it. A thread renews the lease. If this process
        dies, the lease expires after `ttl_s` seconds (`tideline.lease.ttl`). Raises `UnsupportedTable` for a table that Apache
        Hudi writes, `InstantNotFound` for a cleaned instant, `WriteConflict` while a pending clean or archival takes what the
        reader needs.
        """
        return engine.HeldLease(self._table, as_of, after=after, holder=holder, reads=reads, ttl_s=ttl_s)

    def leases(self) -> tuple[Lease, ...]:
        """Return the live reader leases of all readers, the one that holds cleaning back furthest first."""
        return tuple(engine.leases_of(self._table))

    def release_lease(self, lease_id: str) -> None:
        """End a lease of any reader. Raises `InstantNotFound` if there is none with this id."""
        engine.release_lease(self._table, lease_id)

    # --- table services -------------------------------------------------------------------------------------------------------

    def cluster(self, *, options: Options = None) -> Clustering:
        """Plan and run a clustering in this process: rewrite small files of a partition as fewer, sorted files.

        If no plan is due, run the oldest pending one. Raises `WriteConflict` after a conflict or if another process runs the plan.
        """
        return services.cluster(self._table, options)

    def resize_buckets(
        self, number: int | None = None, *, partition_rules: str | None = None, overwrite: bool = False, options: Options = None
    ) -> Resize:
        """Change the numbers of buckets of a table with a bucket index, and move its rows. The result is false if nothing changed.

        `partition_rules` replaces the rules that give partitions their numbers (as for `create`). `number` is that of all other
        partitions. What the caller does not name stays. One commit rewrites the partitions whose number changes, and no others. It
        splits each bucket in place, so a new number must be a multiple of the present one. With `overwrite`, any number is allowed;
        more rows are then in memory at a time.

        In a table with consistent hashing, name no number: sizes decide which buckets are split or merged, between the options
        `hoodie.bucket.index.min.num.buckets` and `hoodie.bucket.index.max.num.buckets`. Partitions with a pending compaction or
        clustering are left out.

        The result names all partitions that stay as they are, each with the reason. Raises `InvalidOption` for an impossible
        number, `WriteConflict` if other writers committed during all attempts, `UnsupportedTable` for a table that is shared or
        has no bucket index.
        """
        own = self._table
        if number is None and partition_rules is None and not overwrite:
            resized = action.resize_rings(own, options=options)
            return Resize.to(resized.committed, resized.skipped, own.state.sequence)
        done = action.resize_buckets(own, number, partition_buckets=partition_rules, overwrite=overwrite, options=options)
        return Resize.to(done, action.partitions_of_same_number(own, done), own.state.sequence)

    def compact(self, *, options: Options = None) -> Compaction:
        """Plan and run a compaction of a merge-on-read table: merge log files into base files. Raises the errors of `cluster`."""
        return services.compact(self._table, options)

    def log_compact(self, *, options: Options = None) -> Compaction:
        """Plan and run a log compaction of a merge-on-read table: merge the log files of a slice into one, without its base file.

        It takes slices with `hoodie.log.compaction.blocks.threshold` log files or more; writers go on meanwhile. Raises the
        errors of `cluster`, and `UnsupportedTable` for a table that Apache Hudi writes, too.
        """
        return services.compact(self._table, options, logs_only=True)

    def clean(self, *, options: Options = None) -> Clean:
        """Plan and run a clean: delete files that no query of the retained commits reads (`hoodie.cleaner.commits.retained`)."""
        return services.clean(self._table, options)

    def archive(self, *, options: Options = None) -> Archival:
        """Plan and run an archival: move old instants from the timeline into an archive file (`hoodie.keep.max.commits`)."""
        return services.archive(self._table, options)

    def maintain(
        self, *, dry_run: bool = False, min_files: int = 8, min_commits: int = 4, options: Options = None
    ) -> tuple[MaintenanceStep, ...]:
        """Run everything that is due, once, in this process, and return a report with a step for each table service.

        The order is: rollback of dead writers, compaction, log compaction (if switched on), clustering, clean, archival. Pending
        plans that no process runs are run, too. A clustering is due if a partition has `min_files` small files and `min_commits`
        writes completed since the last clustering. If a service fails, the others still run, and its step has the `error`. With
        `dry_run`, nothing is written: the report says what is due.
        """
        rules = action.Rules(action.Trigger(min_files, min_commits), options=dict(options or {}))
        self._table.refresh()
        if not dry_run:
            self._table.check_writable(keyed=False)
        return action.maintain(self._table, rules, dry_run=dry_run)

    def cancel_plan(self, instant: str) -> Cancelled:
        """Cancel the pending plan of a table service, whether or not an executor runs it. No row of the table changes.

        Raises `InstantNotFound`, `UnsupportedTable` for what cannot be cancelled: cleans and archivals that have begun, and plans
        other than clusterings in a table shared with Apache Hudi.
        """
        return action.cancel_plan(self._table, instant)

    def roll_back_dead(self) -> tuple[str, ...]:
        """Roll back writes whose writer has no recent heartbeat, finish an interrupted restore, and return the undone instants."""
        self._table.refresh()
        return tuple(action.roll_back_dead(self._table))

    # --- metadata table -------------------------------------------------------------------------------------------------------

    def create_index(self, types: str | Iterable[str] = "files", columns: str | Iterable[str] = ()) -> None:
        """Create the metadata table, or add partitions to it.

        Apache Hudi's readers take the files of the table from `files` instead of listing folders, and leave out files by the
        bounds of `columns` in `column_stats` (by default all columns that writers record). `bloom_filters` has the Bloom filter
        of each base file, for writers of Apache Hudi that take the table over. `record_index` says where each record key is.

        From then on each commit updates it. Raises `IndexExists` if they are there, `InvalidOption` for other types,
        `UnsupportedTable` for a table that Apache Hudi also writes or that lies in an object store without conditional puts,
        `DuplicateKey` for a record index of keys that two file groups hold, and `WriteConflict` if files are always replaced
        and cleaned before their keys are read.
        """
        action.create_index(self._table, column_list(types), column_list(columns))

    def drop_index(self, types: str | Iterable[str] = "files") -> None:
        """Delete partitions of the metadata table; without `files`, all of it goes.

        Raises `IndexNotFound` if they are not there.
        """
        action.drop_index(self._table, column_list(types))

    def check(self, *, repair: bool = False, deep: bool = False) -> tuple[Finding, ...]:
        """Compare the data files with what their commits recorded, and the metadata table with both.

        Return the differences that are left.

        Sizes, the footers of base files and the blocks of log files are compared, with `deep` all bytes of base files too.
        `repair` writes a metadata table that differs again, from the table log. It does not bring back data files that are gone, and
        raises `WriteConflict` as `create_index`.
        """
        found = action.check_index(self._table, deep=deep)
        if repair and any(finding.is_repairable for finding in found):
            action.repair_index(self._table)
            found = action.check_index(self._table, deep=deep)
        return tuple(found)

    # --- savepoints and sharing -----------------------------------------------------------------------------------------------

    def savepoint(self, instant: str = "", *, comment: str = "", user: str = "") -> Savepoint:
        """Keep the table readable as of a completed write (default: the newest one), whatever is cleaned later.

        Raises `SavepointRefused` if that state cannot be kept.
        """
        return action.create_savepoint(self._table, instant, comment=comment, user=user)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, oldest first."""
        self._table.refresh()
        return tuple(found for _, found in sorted(self._table.timeline.state.savepoints.items()))

    def delete_savepoint(self, instant: str) -> None:
        """Delete a savepoint. The next clean may delete the files that only this savepoint kept."""
        action.delete_savepoint(self._table, instant)

    def restore(self, instant: str, *, dry_run: bool = False) -> Restoration:
        """Restore the table to the savepoint of `instant`. Newer writes are undone permanently, and writes under way fail.

        `dry_run` only returns what would be lost, without an instant. Raises `InstantNotFound` if there is no such savepoint.
        """
        self._table.refresh()
        if not dry_run:
            done = action.restore_to_savepoint(self._table, instant)
            return Restoration(done.instant, instant, done.undone, done.fenced, done.savepoints, done.files_deleted)
        lost = action.preview_restore(self._table, instant)
        undone, ended = ([at for at, _ in named] for named in (lost.undone, lost.fenced))
        return Restoration("", instant, tuple(undone), tuple(ended), lost.savepoints, 0)

    def share(
        self,
        lock: str = "",
        *,
        lock_expiry_min: int = engine.DEFAULT_EXPIRE_MIN,
        index: BucketIndex | None = None,
    ) -> dict[str, str]:
        """Share this table between Apache Hudi's writers and Tideline's under one lock; return the options for each Hudi writer.

        `lock` is `filesystem` or `storage`, by default what fits the storage. A table that is already shared keeps its lock.
        `index` names the bucket index of a table that Apache Hudi created, where its rows leave that open.
        """
        if self._table.sharing is None or lock:
            kind = _lock_kind(lock) if lock else engine.HudiLockKind.fitting(self._table.storage.root)
            sharing = engine.Sharing(kind, lock_expiry_min)
            self._table = engine.share_table(self._table, sharing, open_hudi_lock, named_buckets(index))
            attach_lock(self._table, self._locks)
        return self._table.hudi_options()


def _lock_kind(lock: str) -> engine.HudiLockKind:
    try:
        return engine.HudiLockKind(lock)
    except ValueError:
        raise InvalidOption(f"lock {lock!r}", expected=f"one of {', '.join(engine.HudiLockKind)}") from None
