"""Restore of an exclusive table to a savepoint: preview and execution."""

from __future__ import annotations

from tideline_table.action.clean.run import run_clean
from tideline_table.action.restore.plan import plan_restore
from tideline_table.action.restore.steps import RestoreDone, finish_restore, request_restore
from tideline_table.action.savepoint.run import check_exclusive, known_savepoint
from tideline_table.errors import RestorePending, WriteConflict
from tideline_table.log.plan import RestorePlanned
from tideline_table.log.rewind import Rewind
from tideline_table.table.facade import Table

_CLEANS = 5
"""How often the restore gives way to a clean that was planned meanwhile, before it fails."""


def preview_restore(table: Table, instant: str) -> Rewind:
    """Return what `restore_to_savepoint` would undo now. Changes nothing and raises the same errors."""
    check_exclusive(table, "call rollback_to_savepoint")
    table.check_writable(keyed=False)
    return plan_restore(table.state, known_savepoint(table.state, instant)).rewind


def restore_to_savepoint(table: Table, instant: str) -> RestoreDone:
    """Bring the table back to the savepoint of `instant`: undo every newer write, newest first, for good.

    Rows, schema, replaced file groups and the progress of feeders return to their earlier state. Running writes fail with
    `RestoredMeanwhile`; newer plans and savepoints are deleted. A restore to the same savepoint whose process died is completed.
    Pending cleans run first. Raises `InstantNotFound` without such a savepoint, `RestorePending` beside another restore,
    `UnsupportedTable` for a shared table. After `CommitUnknown` and storage errors the table shows whether it began: call it again.
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
        try:
            restore = request_restore(table.timeline, lambda state: known_savepoint(state, instant))
            break
        except RestorePending:
            raise
        except WriteConflict:
            continue  # a clean was planned meanwhile
    else:
        restore = request_restore(table.timeline, lambda state: known_savepoint(state, instant))
    finished = finish_restore(table.timeline, restore, force=True)
    assert finished is not None  # this process requested the restore
    return finished
