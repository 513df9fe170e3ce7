"""`Inspection`, what `table.inspect` tells about one table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tideline.engine_results import DataFile, Savepoint
from tideline.opened import Opened, Options
from tideline.progress import Progress
from tideline.query import Query
from tideline_table import action
from tideline_table import table as engine
from tideline_table.action import TableStatus
from tideline_table.checked import checked_methods
from tideline_table.coordination import observed_uid
from tideline_table.hudi import Point
from tideline_table.metadata_table import Finding
from tideline_table.table import Advice, HeldLease, Lease

_TEXTS = ("instant", "action", "operation", "state")
_HISTORY = pa.schema([*((name, pa.string()) for name in _TEXTS), ("sequence", pa.int64()), ("since", pa.string())])
_PARTITIONS = pa.schema([("partition", pa.string()), ("file_groups", pa.int64()), ("rows", pa.int64()), ("size_bytes", pa.int64())])


@checked_methods
class Inspection:
    """What a table is and holds. Nothing here changes the table, and all but the definition is of the newest state."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    @property
    def uid(self) -> str:
        """What events name the table by; it stays if the table is renamed."""
        return self._table.uid or observed_uid(self._table.storage.root)

    @property
    def type(self) -> str:
        """`cow` (copy-on-write) or `mor` (merge-on-read)."""
        return self._opened.table.definition.type.name.lower()

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the record key."""
        return tuple(self._opened.table.definition.keygen.key_fields)

    @property
    def partition(self) -> tuple[str, ...]:
        """The columns of the partition path."""
        return tuple(self._opened.table.definition.keygen.partition_fields)

    @property
    def ordering(self) -> str:
        """The column that decides which version of a row wins. If it is empty, the later write wins."""
        return self._opened.table.definition.ordering_field

    def status(self, *, options: Options = None) -> TableStatus:
        """Return what `tideline status` prints: which services are due and why, last runs, backlog, pending plans, findings."""
        return action.examine(self._table, action.Rules(options=dict(options or {})))

    def advise(self) -> Advice:
        """Return which index, buckets and sort columns fit the table, from a sample of keys, footers and commits."""
        return engine.advise(self._table)

    def files(self, *, as_of: Point = "") -> tuple[DataFile, ...]:
        """Return the files that a query reads, for engines that read Parquet files by name (docs/other-readers.md).

        Where a file has `log_files`, the base file alone is not the newest rows. Raises the errors of `scan`.
        """
        return engine.data_files(self._table, as_of)

    def history(self) -> pa.Table:
        """Return the actions on the active timeline, newest first.

        Columns: `instant`, `action`, `operation`, `state`, `sequence` (of the latest transition; null in a table without a log) and
        `since`, when that was recorded.
        """
        table = self._table
        logged = table.capabilities.keeps_log
        found = sorted(table.state.actions.values(), key=lambda a: a.instant, reverse=True)
        return pa.Table.from_pylist(
            [
                {
                    "instant": a.instant,
                    "action": a.action.value,
                    "operation": a.operation,
                    "state": a.state.value,
                    "sequence": a.sequence if logged else None,
                    "since": a.since,
                }
                for a in found
            ],
            _HISTORY,
        )

    def partitions(self) -> pa.Table:
        """Return the partition paths with file groups, in order: `partition`, `file_groups`, `rows`, `size_bytes`.

        `size_bytes` is that of the newest files. `rows` is null where only a merge of log files tells it.
        """
        found: dict[str, list[int]] = {}
        for one in self._table.state.each_latest():
            sums = found.setdefault(one.group.partition_path, [0, 0, 0])
            rows = sums[1] + one.known_rows if min(sums[1], one.known_rows) >= 0 else -1
            sums[:] = sums[0] + 1, rows, sums[2] + one.total_bytes
        paths = sorted(found)
        groups, counted, sizes = ([found[path][at] for path in paths] for at in range(3))
        columns = (paths, groups, [rows if rows >= 0 else None for rows in counted], sizes)
        return pa.Table.from_pydict(dict(zip(_PARTITIONS.names, columns, strict=True)), _PARTITIONS)

    def check(self, *, deep: bool = False) -> tuple[Finding, ...]:
        """Compare the data files with what their commits recorded, and the metadata table with both. Return the differences.

        Sizes, the footers of base files and the blocks of log files are compared, with `deep` all bytes of base files too.
        """
        return tuple(action.check_table(self._table, deep=deep))

    def progress(self, name: str) -> Progress:
        """Return the positions that the newest commit with `progress` of this name stored. They outlive archival and cleaning."""
        held = self._table.state.progress.get(name)
        return Progress(name, held.value if held else None)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, oldest first."""
        return tuple(found for _, found in sorted(self._table.timeline.state.savepoints.items()))

    def leases(self) -> tuple[Lease, ...]:
        """Return the live reader leases of all readers, the one that holds cleaning back furthest first."""
        return tuple(engine.leases_of(self._table))

    def sample(self, buckets: Iterable[int], out_of: int | None = None, *, as_of: Point = "", meta_fields: bool = False) -> Query:
        """Return a query of the rows whose bucket number modulo `out_of` (default: the number of buckets) is one of `buckets`.

        Raises `InvalidInput` unless `out_of` divides that number, and for a table without a bucket index.
        """
        table = self._table
        instant = table.instant_of(as_of)
        found = table.snapshot(instant).sampled(set(buckets), out_of)
        return Query(found, table.schema_at(instant), instant, meta_fields=meta_fields)

    def lease(
        self, as_of: Point = "", *, after: Point = "", holder: str = "", reads: str = "", ttl_s: float | None = None
    ) -> HeldLease:
        """Hold a reader lease while a `with` block runs: cleaning and archival keep what queries as of `as_of` (default: now) read.

        With `after`, a point as for `incremental`, they keep what was written after it. A thread renews the lease. If this process
        dies, the lease expires after `ttl_s` seconds (`tideline.lease.ttl`). Raises `InvalidInput` for a table that Apache
        Hudi writes, `InstantNotFound` for a cleaned instant, `Conflict` while a pending clean or archival takes what the
        reader needs.
        """
        return engine.HeldLease(self._opened.table, as_of, after=after, holder=holder, reads=reads, ttl_s=ttl_s)

    @property
    def _table(self) -> engine.Table:
        self._opened.table.refresh()
        return self._opened.table
