"""Time to live of partitions and rows. Partitions that no write has changed for long are deleted, as by Hudi's partition TTL.

Apache Hudi takes the newest base instant of a partition's file slices for its last write. Here writes to log files count, too, so
that a partition whose rows are still updated stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.write.choices import refuse_replacement
from tideline_table.action.write.partition_deletion import delete_chosen
from tideline_table.action.write.row_change import ChangeSource, RowChange
from tideline_table.action.write.run import write_rows
from tideline_table.config import (
    PARTITION_TTL_DAYS,
    PARTITION_TTL_MOST,
    PARTITION_TTL_SELECTED,
    ROW_TTL_COLUMN,
    ROW_TTL_DAYS,
    ROW_TTL_UNIT,
    Options,
)
from tideline_table.coordination.committed import Committed
from tideline_table.errors import InvalidOption, WriteConflict
from tideline_table.hudi.instant import time_from_instant
from tideline_table.index import KeyScope
from tideline_table.log.state import TableState
from tideline_table.schema import top_columns
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table
from tideline_table.table.query import Snapshot
from tideline_table.writer import Operation

MOST_ROWS = 1_000_000
"""One commit deletes at most so many old rows, whose keys the process holds."""
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}


@dataclass(slots=True)
class _StillOld:
    """The partitions that one attempt deletes; see `Reads`."""

    table: Table
    options: Options
    now: datetime
    partitions: dict[str, str] = field(default_factory=dict)

    def choose(self) -> frozenset[str]:
        """Return the partitions that are old on the state of the table. Raises `_NothingOld`."""
        self.partitions = expired_partitions(self.table.state, self.options, self.now, self.table.zone)
        if not self.partitions:
            raise _NothingOld
        return frozenset(self.partitions)

    def check(self, state: TableState) -> None:
        """Raise `WriteConflict` if another process has written one of the partitions meanwhile."""
        written = self.partitions.items() - last_writes(state, self.partitions).items()
        if written:
            paths = ", ".join(sorted(path for path, _ in written))
            raise WriteConflict(f"another write changed partitions that are no longer old: {paths}", with_instant="")


class _NothingOld(Exception):
    """Meanwhile no partition, or no row, is old any more."""


def expired_partitions(state: TableState, options: Options, now: datetime, zone: tzinfo = UTC) -> dict[str, str]:
    """Return the partitions that the options let expire at `now`, each with the instant of its last write, oldest first. Pure.

    `zone` is that of the instants. A partition with a file that does not say when it was written, and the one of a table without
    partitions, never expire.
    """
    days = options[PARTITION_TTL_DAYS]
    if days < 1:
        return {}
    selected = {name for text in options[PARTITION_TTL_SELECTED].split(",") if (name := text.strip())}
    end = now - timedelta(days=days)
    old = [
        (instant, path)
        for path, instant in last_writes(state, selected or None).items()
        if path and instant and time_from_instant(instant, zone) < end
    ]
    return {path: instant for instant, path in sorted(old)[: options[PARTITION_TTL_MOST]]}


def last_writes(state: TableState, partitions: Collection[str] | None = None) -> dict[str, str]:
    """Return the instant of the last write to each of these partitions (None: to all), empty if a file does not say it. Pure."""
    last: dict[str, str] = {}
    undated = set()
    for one in state.latest_slices(partitions=None if partitions is None else frozenset(partitions)):
        path, instants = one.group.partition_path, [one.base_instant, *(log.instant for log in one.log_files)]
        if not all(instants):
            undated.add(path)
        last[path] = max([last.get(path, ""), *instants])
    return last | dict.fromkeys(undated, "")


def expire_partitions(table: Table, options: Mapping[str, object] | None = None) -> tuple[Committed | None, dict[str, str]]:
    """Delete the partitions of the table as it is now that are old, as one commit; return them with their last writes.

    Returns None for the commit if none is old. A partition that another process writes meanwhile stays. Raises as
    `delete_partitions`.
    """
    chosen = table.options.merged(options or {})
    found = expired_partitions(table.refresh(), chosen, table.clock.now(), table.zone)
    if not found:
        return None, {}
    table.check_writable(keyed=False)
    refuse_replacement(table.view(), Operation.DELETE_PARTITION)
    old = _StillOld(table, chosen, table.clock.now())
    try:
        return delete_chosen(table, old.choose, chosen, reads=old), old.partitions
    except _NothingOld:
        return None, {}


def _old_rows(table: Table, given: Mapping[str, object] | None) -> pc.Expression | None:
    """Return the condition that holds for the rows that the options let expire now; None, without a request, if they let none.

    A row without a value in the column stays. Raises `InvalidOption` if the column cannot tell the age of a row, and
    `UnsupportedTable` if no row is found by its key.
    """
    options = table.options.merged(given or {})
    days, name, unit = options[ROW_TTL_DAYS], options[ROW_TTL_COLUMN], options[ROW_TTL_UNIT]
    if days == 0:
        return None
    table.refresh()
    table.definition.check_writable()
    kind, end = table.schema.field(name).type if name in table.schema.names else None, table.clock.now() - timedelta(days=days)
    if kind is None:
        found = "that the table does not have"
    elif pa.types.is_date(kind):
        return pc.field(name) < pa.scalar(end.date(), pa.date32()).cast(kind)
    elif pa.types.is_timestamp(kind):
        return pc.field(name) < pa.scalar(end, pa.timestamp("us", "UTC")).cast(pa.timestamp(kind.unit, kind.tz), safe=False)
    elif pa.types.is_int64(kind) and unit in _UNITS:
        return pc.field(name) < pa.scalar(int(end.timestamp() * _UNITS[unit]), kind)
    else:
        found = f"of type {kind}"
    raise InvalidOption(
        f"{ROW_TTL_DAYS.key}={days:g} with {ROW_TTL_COLUMN.key}={name!r}, a column {found}",
        expected=f"a column of dates or timestamps, or of 64-bit integers with {ROW_TTL_UNIT.key}",
        remedy=f"set {ROW_TTL_COLUMN.key} to the column that says how old a row is",
    )


def expired_rows(table: Table, options: Mapping[str, object] | None = None) -> dict[str, int]:
    """Return how many rows of the table as it is now are old, by partition path. Raises as `expire_rows`."""
    where = _old_rows(table, options)
    if where is None:
        return {}
    found: Counter[str] = Counter()
    for batch in table.snapshot().scan([MetaField.PARTITION_PATH.value], where):
        found.update(batch.column(0).to_pylist())
    return dict(sorted(found.items()))


def expire_rows(table: Table, options: Mapping[str, object] | None = None) -> tuple[Committed | None, int]:
    """Delete the rows that are old as one commit, at most `MOST_ROWS`; return it and their number.

    Returns None for the commit if none is old. A row that another process makes young before the commit stays. Raises as
    `write_rows`, and `InvalidOption` if the column cannot tell the age of a row.
    """
    where = _old_rows(table, options)
    if where is None:
        return None, 0
    none, chosen = table.schema.empty_table(), table.options.merged(options or {})

    def compute(snapshot: Snapshot) -> RowChange:
        found = _first_rows(table, snapshot, where, chosen)
        if not found.num_rows:
            raise _NothingOld
        return RowChange(none, none, found, none)

    source = ChangeSource(table, compute, lambda rows: rows.filter(where).num_rows > 0, where)
    try:
        done = write_rows(table, source, Operation.UPSERT, options=options)
    except _NothingOld:
        return None, 0
    return done, source.change.deleted.num_rows if source.change is not None else 0


def _without_young(table: Table, found: pa.Table, where: pc.Expression, options: Options) -> pa.Table:
    """Return those of the rows whose key no row has that is not old: the deletion of the key would delete that one, too.

    Writes that look up no key may have left several rows with one key.
    """
    if table.has_record_index or not found.num_rows:
        return found
    keygen, name, in_table = table.definition.keygen, options[ROW_TTL_COLUMN], KeyScope.of(options) is KeyScope.TABLE
    partition, key = MetaField.PARTITION_PATH.value, MetaField.RECORD_KEY.value
    keys = keygen.written_keys(found)
    held = table.look_up(keys.to_pylist(), [partition, key, name])
    young = held.filter(~where | pc.field(name).is_null())
    places = [None] * found.num_rows if in_table else keygen.partition_paths(found).to_pylist()
    kept = set(zip([None] * young.num_rows if in_table else young[partition].to_pylist(), young[key].to_pylist(), strict=True))
    return found.filter(pa.array([one not in kept for one in zip(places, keys.to_pylist(), strict=True)], pa.bool_()))


def _first_rows(table: Table, snapshot: Snapshot, where: pc.Expression, options: Options) -> pa.Table:
    """Return the columns that identify the first old rows, without those that stay; if all of `MOST_ROWS` do, the next ones."""
    keygen = table.definition.keygen
    columns = top_columns(table.schema, (*keygen.key_fields, *keygen.partition_fields))
    schema = pa.schema([table.schema.field(name) for name in columns])
    held, count = list[pa.RecordBatch](), 0
    for batch in snapshot.scan(columns, where):
        held.append(batch.select(columns))
        count += batch.num_rows
        while count >= MOST_ROWS:
            rows = pa.Table.from_batches(held, schema)
            if (found := _without_young(table, rows.slice(0, MOST_ROWS), where, options)).num_rows:
                return found
            held, count = rows.slice(MOST_ROWS).to_batches(), count - MOST_ROWS
    return _without_young(table, pa.Table.from_batches(held, schema), where, options)
