"""Recovery: roll back writes of dead writers, and complete rollbacks and restores of dead processes."""

from __future__ import annotations

from tideline_table.action.restore.steps import finish_restore
from tideline_table.coordination.heartbeat import is_given_up
from tideline_table.coordination.rollback import roll_back
from tideline_table.coordination.shared.eager_writes import eager_until, has_first_turn
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.table.facade import Table

_GO_ON = frozenset({Action.ROLLBACK, Action.CLEAN, Action.COMPACTION, Action.RESTORE, Action.ARCHIVAL})


def roll_back_dead(table: Table, *, spares_eager: bool = False) -> list[str]:
    """Roll back every write of a dead writer, complete rollbacks and a restore of dead processes; return the instants undone.

    Dead clustering and compaction attempts are left to the next attempt, because their plan can be run again. Only a clustering
    that Apache Hudi began and gave up is rolled back. Cancellations of plans are completed, and so are `hoodie.properties`
    after a resize of buckets. With `spares_eager`, a write of Apache Hudi that may be that of a living job without heartbeats is
    left alone (`eager_until`), and so is one that its jobs may roll back first (`has_first_turn`).
    """
    table.check_writable(keyed=False, stores_rows=False)
    undone: list[str] = []
    if table.state.restoring:
        restored = finish_restore(table.timeline, table.state.restoring)
        if restored is None:
            return undone  # nothing else may run before the restore is complete
        undone += [*restored.undone, *restored.fenced]
    table.timeline.catch_up()
    for record in list(table.timeline.state.pending()):
        if not table.timeline.state.is_pending(record.instant):
            continue  # it ended while the actions before it were rolled back
        unfinished = bool(record.fenced_by)
        if not unfinished and (
            record.action in _GO_ON or _is_plan(record) or (record.is_clustering and not _gave_up(table, record))
        ):
            continue
        about = (table.storage, record, table.clock, table.options)
        if spares_eager and (eager_until(*about) or has_first_turn(*about)):
            continue
        if roll_back(table.timeline, record.instant) is not None:
            undone.append(record.instant)
    table.complete_resize()  # of buckets, if its commit is among those undone
    table.timeline.tidy_up()
    return undone


def _is_plan(record: ActionRecord) -> bool:
    """Return whether this is a log compaction that has not begun.

    One that died is undone like a write: no file depends on its plan.
    """
    return record.action is Action.LOG_COMPACTION and record.state is State.REQUESTED


def _gave_up(table: Table, record: ActionRecord) -> bool:
    begun = record.is_by_hudi and record.state is State.INFLIGHT
    return begun and is_given_up(table.storage, record, table.clock, table.options, table.timeline.format)
