"""Restore of an exclusive table to a savepoint: preview and execution."""

from __future__ import annotations

from tideline_table.action.clean.run import run_clean
from tideline_table.action.restore.plan import plan_restore
from tideline_table.action.restore.steps import RestoreDone, finish_restore, request_restore
from tideline_table.action.savepoint.run import check_exclusive, known_savepoint
from tideline_table.errors import RestorePending, UnsupportedTable, WriteConflict
from tideline_table.log.plan import RestorePlanned
from tideline_table.log.rewind import Rewind
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.state import TableState
from tideline_table.metadata_table import record_index_of
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.record_index import KeysOnce
from tideline_table.table.changes import slices_at
from tideline_table.table.facade import Table
from tideline_table.writer import check_indexed_keys

_CLEANS = 5
"""How often the restore gives way to a clean that was planned meanwhile, before it fails."""


def preview_restore(table: Table, instant: str) -> Rewind:
    """Return what `restore_to_savepoint` would undo now. Changes nothing and raises the same errors."""
    check_exclusive(table, "call rollback_to_savepoint")
    table.check_writable(keyed=False)
    rewind = plan_restore(table.state, known_savepoint(table.state, instant)).rewind
    _check_keys(table, rewind)
    return rewind


def restore_to_savepoint(table: Table, instant: str) -> RestoreDone:
    """Bring the table back to the savepoint of `instant`: undo every newer write, newest first, for good.

    Rows, schema, replaced file groups and the progress of feeders return to their earlier state. Running writes fail with
    `RestoredMeanwhile`; newer plans and savepoints are deleted. A restore to the same savepoint whose process died is completed.
    Pending cleans run first. Raises `InstantNotFound` without such a savepoint, `RestorePending` beside another restore,
    `UnsupportedTable` for a shared table, for one whose buckets were resized since, and if a record index was created since and
    a key was in two places before. After `CommitUnknown` and storage errors the table shows whether it began: call it again.
    """
    check_exclusive(table, "call rollback_to_savepoint")
    table.check_writable(keyed=False)
    running = table.state.restoring
    plan = table.state.plans.get(running)
    if isinstance(plan, RestorePlanned) and plan.rewind.savepoint == instant:
        finished = finish_restore(table.timeline, running)
        if finished is not None:
            return finished
    for _ in range(_CLEANS):
        while run_clean(table) is not None:
            pass
        checked = _check_keys(table, plan_restore(table.refresh(), known_savepoint(table.state, instant)).rewind)

        def find(state: TableState, checked: str = checked) -> Savepoint:
            if _created_index(state) != checked:
                raise WriteConflict("a record index was created or dropped while the restore was planned", with_instant="")
            return known_savepoint(state, instant)

        try:
            restore = request_restore(table.timeline, find, with_changes=bool(table.definition.changes))
            break
        except RestorePending:
            raise
        except WriteConflict:
            continue  # a clean was planned meanwhile
    else:
        restore = request_restore(table.timeline, find, with_changes=bool(table.definition.changes))
    finished = finish_restore(table.timeline, restore, force=True)
    assert finished is not None  # this process requested the restore
    return finished


def _check_keys(table: Table, back: Rewind) -> str:
    """Raise `UnsupportedTable` if the restored table has a key in two places and a record index, newer than the savepoint.

    `InvalidRecord` if one of its keys is too long for that index.
    Return the instant of the creation of the record index; empty if there is none.
    """
    state = table.state
    created = _created_index(state)
    if created > back.savepoint:
        left = {a.instant for a in state.completed_writes()} - back.undone_instants
        source = Source(table.storage, table.timeline.format, state, table.timeline.rule)
        key = KeysOnce(check_indexed_keys).repeated(source, slices_at(state, left).values())
        if key is not None:
            raise UnsupportedTable(
                f"a restore to {back.savepoint}, when key {key!r} was in two places, of a table with a record index since "
                f"{created}",
                expected="keys that were unique in the whole table: a record index has one place for each",
                remedy="drop the record index first: tideline metadata drop PATH --type record_index",
            )
    return created


def _created_index(state: TableState) -> str:
    part = record_index_of(state)
    return part.created if part is not None else ""
