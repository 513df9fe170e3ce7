"""Return a table to the writers of Apache Hudi: only rows and instants stay (docs/design/observed-tables.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tideline_table.action.decision import service_of
from tideline_table.action.maintenance.cancel import cancel_plan
from tideline_table.action.metadata.check import has_metadata_table
from tideline_table.action.metadata.run import drop_metadata
from tideline_table.action.planned_run import is_run_by_hudi
from tideline_table.action.recovery import roll_back_dead
from tideline_table.action.services import REWRITES, SERVICES
from tideline_table.coordination import OpenHudiTableLock, eager_until, is_alive
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.log.action import ActionRecord
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table.facade import Table
from tideline_table.table.sharing import share_table


@dataclass(slots=True)
class Left:
    """What was done before the table was returned."""

    rolled_back: list[str] = field(default_factory=list)
    """Instants of dead writers."""
    cancelled: list[str] = field(default_factory=list)
    run: list[str] = field(default_factory=list)
    """Plans that could not be cancelled."""
    dropped_metadata: bool = False


def leave(table: Table, open_lock: OpenHudiTableLock) -> Left:
    """Return a table to the writers of Apache Hudi, which then have it alone. Any call goes on where a process that died ended.

    Dead writes are rolled back; plans are cancelled or, if Apache Hudi's writers may have read them, run. An exclusive table
    loses its metadata table and is shared first: sharing checks everything that Apache Hudi's writers must find. Does nothing
    for a table that only Apache Hudi writes. Raises `WriteConflict` while a writer or executor of Tideline is alive, or a write of
    Apache Hudi that makes no heartbeats may be, and `UnsupportedTable` for what Apache Hudi's writers would read otherwise than
    Tideline.
    """
    left = Left()
    if not table.capabilities.keeps_log:
        table.timeline.leave()
        return left
    table.check_writable(keyed=False, stores_rows=False)
    left.rolled_back += roll_back_dead(table, spares_eager=True)
    _check_none_may_live(table)
    for record in list(table.refresh().pending()):
        if table.state.is_pending(record.instant) and not record.is_by_hudi:
            _end(table, record, left)
    if table.capabilities.log_is_truth:
        left.dropped_metadata = has_metadata_table(table)
        if left.dropped_metadata:
            drop_metadata(table)
        table = share_table(table, Sharing(HudiLockKind.fitting(table.storage.root)), open_lock)
    table.timeline.leave()
    return left


def _check_none_may_live(table: Table) -> None:
    """Raise `WriteConflict` for a write of Apache Hudi that may be that of a living job without heartbeats.

    Its clusterings stay its own, and their plans never have a heartbeat.
    """
    for record in (a for a in table.state.pending() if not a.is_clustering):
        until = eager_until(table.storage, record, table.clock, table.options)
        if until is not None:
            raise WriteConflict(
                f"{record.action} {record.instant} of Apache Hudi is {record.state} and has no heartbeat file: its job may "
                "live and clean failed writes eagerly",
                with_instant=record.instant,
                remedy=f"leave the table again when the write has completed, or after {until:%Y-%m-%d %H:%M:%S} UTC; if its job is "
                "dead, at once after: tideline run rollback PATH",
            )


def _end(table: Table, record: ActionRecord, left: Left) -> None:
    """Cancel the plan, or run it if it cannot be cancelled."""
    service = service_of(record)
    has_begun = record.state is State.INFLIGHT and is_alive(table.storage, record, table.clock, table.options)
    if service is None or not SERVICES[service].has_plans or record.fenced_by or has_begun:
        raise WriteConflict(
            f"{record.action} {record.instant} of writer {record.writer_id or 'unknown'} is {record.state}",
            with_instant=record.instant,
            remedy="stop Tideline's services and writers of this table; what died is rolled back once its heartbeat is old",
        )
    if is_run_by_hudi(table, record, table.options):
        return
    ends = service in REWRITES or record.state is State.REQUESTED  # a clean that began has deleted files
    if ends and (table.capabilities.cancels_every_plan or SERVICES[service].cancels_where_shared):
        cancel_plan(table, record.instant)
        left.cancelled.append(record.instant)
    else:
        SERVICES[service].run(table, record.instant)
        left.run.append(record.instant)
