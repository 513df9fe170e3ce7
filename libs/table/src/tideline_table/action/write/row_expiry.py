"""Time to live of rows: those whose column says that they are old are deleted, as a deletion by a condition, in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tideline_table.action.write.row_change import ChangeSource, RowChange
from tideline_table.action.write.run import write_rows
from tideline_table.config import ROW_TTL_COLUMN, ROW_TTL_DAYS, ROW_TTL_MOST, ROW_TTL_UNIT, Options
from tideline_table.coordination.committed import Committed
from tideline_table.errors import InvalidOption
from tideline_table.index import KeyScope
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table
from tideline_table.table.query import Snapshot
from tideline_table.writer import Operation

_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}


class _NothingOld(Exception):
    """Meanwhile no row is old any more."""


def old_rows(schema: pa.Schema, options: Options, now: datetime) -> pc.Expression | None:
    """Return the condition that holds for the rows that the options let expire at `now`; None if they let none. Pure.

    A row without a value in the column stays. Raises `InvalidOption` if the column cannot tell the age of a row.
    """
    days, name, unit = options[ROW_TTL_DAYS], options[ROW_TTL_COLUMN], options[ROW_TTL_UNIT]
    if days == 0:
        return None
    index = schema.get_field_index(name)
    kind = schema.field(index).type if index >= 0 else None
    end = now - timedelta(days=days)
    if kind is not None and pt.is_date(kind):
        return pc.field(name) < pa.scalar(end.date(), pa.date32()).cast(kind)
    if kind is not None and pt.is_timestamp(kind):
        return pc.field(name) < pa.scalar(end, pa.timestamp("us", "UTC")).cast(pa.timestamp(kind.unit, kind.tz), safe=False)
    if kind is not None and pt.is_int64(kind) and unit:
        return pc.field(name) < pa.scalar(int(end.timestamp() * _UNITS[unit]), kind)
    found = "that the table does not have" if kind is None else f"of type {kind}"
    raise InvalidOption(
        f"{ROW_TTL_DAYS.key}={days:g} with {ROW_TTL_COLUMN.key}={name!r}, a column {found}",
        expected=f"a column of dates or timestamps, or of 64-bit integers with {ROW_TTL_UNIT.key}",
        remedy=f"set {ROW_TTL_COLUMN.key} to the column that says how old a row is",
    )


def expired_rows(table: Table, options: Mapping[str, object] | None = None) -> dict[str, int]:
    """Return how many rows of the table as it is now are old, by partition path. Raises as `old_rows`."""
    table.refresh()
    where = old_rows(table.schema, table.options.merged(options or {}), table.clock.now())
    if where is None:
        return {}
    found: Counter[str] = Counter()
    for batch in table.snapshot().scan([MetaField.PARTITION_PATH.value], where):
        found.update(batch.column(0).to_pylist())
    return dict(sorted(found.items()))


def expire_rows(table: Table, options: Mapping[str, object] | None = None) -> tuple[Committed | None, int]:
    """Delete the rows that are old as one commit, at most as many as the options say; return it and their number.

    Returns None for the commit if none is old. A row that another process makes young before the commit stays. Raises as
    `old_rows` and `write_rows`.
    """
    table.refresh()
    chosen = table.options.merged(options or {})
    where = old_rows(table.schema, chosen, table.clock.now())
    if where is None:
        return None, 0

    def compute(snapshot: Snapshot) -> RowChange:
        found = _without_young(table, _first_rows(table, snapshot, where, chosen), where, chosen)
        if not found.num_rows:
            raise _NothingOld
        none = table.schema.empty_table()
        return RowChange(none, none, found, none)

    source = ChangeSource(table, compute, lambda rows: rows.filter(where).num_rows > 0, where)
    try:
        done = write_rows(table, source, Operation.UPSERT, options=options)
    except _NothingOld:
        return None, 0
    assert source.change is not None
    return done, source.change.deleted.num_rows


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
    """Return the columns that identify the first old rows: the scan ends with the file in which their number is reached."""
    keygen, names = table.definition.keygen, table.schema.names
    wanted = {name if name in names else name.split(".")[0] for name in (*keygen.key_fields, *keygen.partition_fields)}
    columns = [name for name in names if name in wanted]
    left, found = options[ROW_TTL_MOST], list[pa.RecordBatch]()
    for batch in snapshot.scan(columns, where):
        found.append(batch.select(columns).slice(0, left))
        left -= found[-1].num_rows
        if left <= 0:
            break
    return pa.Table.from_batches(found, pa.schema([table.schema.field(name) for name in columns]))
