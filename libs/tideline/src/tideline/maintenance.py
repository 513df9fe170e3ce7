"""`Maintenance`, what `table.maintenance` does to one table: services, savepoints, the metadata table, sharing."""

from __future__ import annotations

from collections.abc import Iterable

from tideline.engine_results import Cancelled, MaintenanceStep, Savepoint
from tideline.opened import Opened, Options
from tideline.results import Archival, Clean, Clustering, Compaction, Resize, Restoration
from tideline.rows import column_list
from tideline_locks import attach_lock, open_hudi_lock
from tideline_table import action
from tideline_table import table as engine
from tideline_table.action import TableService
from tideline_table.checked import checked_methods
from tideline_table.errors import InvalidOption
from tideline_table.metadata_table import Finding
from tideline_table.table import BucketIndex


@checked_methods
class Maintenance:
    """Table services that run in this process, savepoints, the metadata table, and sharing with Apache Hudi.

    A service plans and runs; if no plan is due, it runs the oldest pending one. Its result is false, and has the reason, if there
    was nothing to do. It raises `Conflict` after a conflict, and if another process runs the plan.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def run_due(
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

    def cluster(self, *, options: Options = None) -> Clustering:
        """Rewrite small files of a partition as fewer, sorted files."""
        done, reason = self._run(TableService.CLUSTERING, options)
        if done is None or done.committed is None:
            return Clustering(reason=reason)
        return Clustering(
            instant=done.committed.instant, sequence=done.committed.sequence, rows_rewritten=done.rows, files_written=done.files
        )

    def compact(self, *, options: Options = None) -> Compaction:
        """Merge log files of a merge-on-read table into base files."""
        return self._compact(TableService.COMPACTION, options)

    def log_compact(self, *, options: Options = None) -> Compaction:
        """Merge the log files of a slice of a merge-on-read table into one, without its base file, while writers go on.

        It takes slices with `hoodie.log.compaction.blocks.threshold` log files or more. Raises `InvalidInput` for a table that
        Apache Hudi writes, too.
        """
        return self._compact(TableService.LOG_COMPACTION, options)

    def clean(self, *, options: Options = None) -> Clean:
        """Delete files that no query of the retained commits reads (`hoodie.cleaner.commits.retained`)."""
        done, reason = self._run(TableService.CLEAN, options)
        return Clean(reason=reason) if done is None else Clean(instant=done.instants[0], files_deleted=done.files)

    def archive(self, *, options: Options = None) -> Archival:
        """Move old instants from the timeline into an archive file (`hoodie.keep.max.commits`).

        Also runs a pending archival, and deletes late files of rolled-back writes.
        """
        table = self._table
        table.refresh()
        done, found, reason = action.archive(table, options)
        if done is None:
            return Archival(reason=reason, late_files_deleted=found.deleted)
        return Archival(instant=done.instant, instants=done.instants, file=done.path, late_files_deleted=found.deleted)

    def resize_buckets(
        self, number: int | None = None, *, partition_buckets: str | None = None, overwrite: bool = False, options: Options = None
    ) -> Resize:
        """Change the numbers of buckets of a table with a bucket index, and move its rows. The result is false if nothing changed.

        `partition_buckets` replaces the rules that give partitions their numbers (as for `create`). `number` is that of all other
        partitions. What the caller does not name stays. One commit rewrites the partitions whose number changes, and no others. It
        splits each bucket in place, so a new number must be a multiple of the present one. With `overwrite`, any number is allowed;
        more rows are then in memory at a time.

        In a table with consistent hashing, name no number: sizes decide which buckets are split or merged, between the options
        `hoodie.bucket.index.min.num.buckets` and `hoodie.bucket.index.max.num.buckets`. Partitions with a pending compaction or
        clustering are left out.

        The result names all partitions that stay as they are, each with the reason. Raises `InvalidInput` for an impossible
        number and for a table that is shared or has no bucket index, `Conflict` if other writers committed during all attempts.
        """
        own = self._table
        if number is None and partition_buckets is None and not overwrite:
            resized = action.resize_rings(own, options=options)
            return Resize.to(resized.committed, resized.skipped, own.state.sequence)
        done = action.resize_buckets(own, number, partition_buckets=partition_buckets, overwrite=overwrite, options=options)
        return Resize.to(done, action.partitions_of_same_number(own, done), own.state.sequence)

    def cancel_plan(self, instant: str) -> Cancelled:
        """Cancel the pending plan of a table service, whether or not an executor runs it. No row of the table changes.

        Raises `InstantNotFound`, `InvalidInput` for what cannot be cancelled: cleans and archivals that have begun, and plans
        other than clusterings in a table shared with Apache Hudi.
        """
        return action.cancel_plan(self._table, instant)

    def roll_back_dead(self) -> tuple[str, ...]:
        """Roll back writes whose writer has no recent heartbeat, finish an interrupted restore, and return the undone instants."""
        self._table.refresh()
        return tuple(action.roll_back_dead(self._table))

    def create_metadata(self, types: str | Iterable[str] = "files", columns: str | Iterable[str] = ()) -> None:
        """Create the metadata table, or add parts to it.

        Apache Hudi's readers take the files of the table from `files` instead of listing folders, and leave out files by the
        bounds of `columns` in `column_stats` (by default all columns that writers record). `bloom_filters` has the Bloom filter
        of each base file, for writers of Apache Hudi that take the table over. `record_index` says where each record key is.

        From then on each commit updates it. Raises `InvalidInput` if they are there, for other parts, for a table that
        Apache Hudi also writes or that lies in an object store without conditional puts, and for a record index of keys that two
        file groups hold; `Conflict` if files are always replaced and cleaned before their keys are read.
        """
        action.create_metadata(self._table, column_list(types), column_list(columns))

    def drop_metadata(self, types: str | Iterable[str] = "files") -> None:
        """Delete parts of the metadata table; `files` takes all others along.

        Raises `InvalidInput` if they are not there.
        """
        action.drop_metadata(self._table, column_list(types))

    def repair_metadata(self) -> tuple[Finding, ...]:
        """Write a metadata table that differs again, from the table log. Return the differences that are left.

        Data files that are gone stay gone. Raises `Conflict` as `create_metadata`.
        """
        if any(finding.is_repairable for finding in action.check_table(self._table)):
            action.repair_metadata(self._table)
        return tuple(action.check_table(self._table))

    def create_savepoint(self, instant: str = "", *, comment: str = "", user: str = "") -> Savepoint:
        """Keep the table readable as of a completed write (default: the newest one), whatever is cleaned later.

        Raises `InvalidInput` if that state cannot be kept.
        """
        return action.create_savepoint(self._table, instant, comment=comment, user=user)

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

    def release_lease(self, lease_id: str) -> None:
        """End a lease of any reader. Raises `InstantNotFound` if there is none with this id."""
        engine.release_lease(self._table, lease_id)

    def share(
        self,
        lock: str = "",
        *,
        lock_expiry_min: int = engine.DEFAULT_EXPIRE_MIN,
        lock_place: str = "",
        index: BucketIndex | None = None,
    ) -> dict[str, str]:
        """Share this table between Apache Hudi's writers and Tideline's under one lock; return the options for each Hudi writer.

        `lock` is `filesystem`, `storage`, `zookeeper`, `hive-metastore` or `dynamodb`, by default what fits the storage. The last
        three also take `lock_place`: `host:port,host:port/base/path/key`, `host:port,host:port/database/table` and
        `region/table/key`. A table that is already shared keeps its lock. Services wait until each writer of Apache Hudi
        was seen with the lock.
        `index` names the bucket index of a table that Apache Hudi created, where its rows leave that open.
        """
        if self._table.sharing is None or lock:
            kind = _lock_kind(lock) if lock else engine.HudiLockKind.fitting(self._table.storage.root)
            sharing = engine.Sharing(kind, lock_expiry_min, lock_place)
            self._opened.table = engine.share_table(self._table, sharing, open_hudi_lock, index, engine.writer_names(self._table))
            attach_lock(self._table, self._opened.locks)
        return self._table.hudi_options()

    def _compact(self, service: TableService, options: Options) -> Compaction:
        done, reason = self._run(service, options)
        if done is None or done.committed is None:
            return Compaction(reason=reason)
        return Compaction(
            instant=done.committed.instant,
            sequence=done.committed.sequence,
            log_files_merged=done.facts["log_files_merged"],
            files_written=done.files,
        )

    def _run(self, service: TableService, options: Options) -> tuple[action.Ran | None, str]:
        """Plan and run; if no plan is due, run the oldest pending one. Return what ran, and why there is no new plan."""
        self._table.refresh()
        answer = action.SERVICES[service].plan(self._table, options)
        instant, reason = ("", answer.reason) if isinstance(answer, action.NotDue) else (answer, "")
        return action.SERVICES[service].run(self._table, instant, options=options), reason

    @property
    def _table(self) -> engine.Table:
        return self._opened.table


def _lock_kind(lock: str) -> engine.HudiLockKind:
    try:
        return engine.HudiLockKind(lock)
    except ValueError:
        raise InvalidOption(f"lock {lock!r}", expected=f"one of {', '.join(engine.HudiLockKind)}") from None
