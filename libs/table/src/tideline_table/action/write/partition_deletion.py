"""Deleting partitions: a replace commit that retires their file groups and writes no file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping

from tideline_table.action.new_rings import NewRings
from tideline_table.action.write.attempt import Contention, OnConflict, in_transaction, write_with_retries
from tideline_table.action.write.choices import refuse_replacement
from tideline_table.action.write.row_source import Reads
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import Options
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.write_set import Overwrite
from tideline_table.errors import InvalidOption
from tideline_table.table.facade import Table
from tideline_table.writer import Operation


def delete_partitions(
    table: Table,
    partitions: Collection[str],
    *,
    options: Mapping[str, object] | None = None,
    extra: Mapping[str, str] | None = None,
    on_conflict: OnConflict | None = None,
) -> Committed:
    """Remove all rows of these partitions as one commit; cleaning deletes the files later.

    Partition paths are those of `_hoodie_partition_path`. Raises `InvalidOption`, before anything is written, for a partition that
    the table does not have, `UnsupportedTable` for a shared table with consistent hashing, and otherwise what `write_rows` raises.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    refuse_replacement(table.view(), Operation.DELETE_PARTITION)
    present = {s.group.partition_path for s in table.state.latest_slices(partitions=partitions)}
    for partition in partitions:
        if partition not in present:
            known = table.state.partition_paths()
            near = ", ".join(difflib.get_close_matches(partition, known, n=3)) or f"one of {len(known)} partitions"
            raise InvalidOption(f"partition {partition!r}, which table {table.definition.name!r} does not have", expected=near)
    return delete_chosen(table, lambda: frozenset(partitions), chosen, extra=extra, on_conflict=on_conflict)


def delete_chosen(
    table: Table,
    choose: Callable[[], frozenset[str]],
    chosen: Options,
    *,
    extra: Mapping[str, str] | None = None,
    on_conflict: OnConflict | None = None,
    reads: Reads | None = None,
) -> Committed:
    """Remove all rows of the partitions that `choose` returns, as one commit.

    It is asked in each attempt, after the commit has begun. A later write to one of them is deleted, too, unless `reads` raises
    `WriteConflict` for the state on which the commit would be.
    """
    contention = Contention(table, chosen)

    def attempt() -> Committed:
        made = NewRings(table)
        with made.deleted_if_undone():
            return in_transaction(table, Operation.DELETE_PARTITION, chosen, lambda begun: delete(begun, made))

    def delete(begun: WriteTransaction, made: NewRings) -> Committed:
        return made.commit(
            begun.instant,
            table.rings(),
            (),
            Overwrite(choose()),
            lambda named, what, rings: begun.commit(
                [], table.schema_json, {**(extra or {}), **named}, None, overwrites=what, rings=rings, reads=reads
            ),
        )

    return write_with_retries(contention, attempt, on_conflict)
