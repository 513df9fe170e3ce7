"""Cancel a pending plan, whether or not an executor runs it, and adopt a copy of a table whose plans name files of the original."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.action.decision import TableService, service_of
from tideline_table.action.planned_run import is_run_by_hudi
from tideline_table.action.services import REWRITES, SERVICES
from tideline_table.coordination import roll_back
from tideline_table.coordination.unscheduling import planned_moves
from tideline_table.errors import InstantNotFound, UnsupportedTable, WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.log.action import ActionRecord
from tideline_table.table.facade import Table
from tideline_table.table.identity import TableIdentity


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A plan that was cancelled: its service and instant, and the instant of the rollback that ended it."""

    service: TableService
    instant: str
    rollback: str
    was_begun: bool
    """Whether an executor had begun it. If it still runs, it fails at its commit."""
    moved_log_files: int = 0
    """Log files written after a compaction plan, which belong to the slice before it again."""


def cancel_plan(table: Table, instant: str) -> Cancelled:
    """Cancel the pending plan of `instant`: it can never complete, and its files are deleted. No row of the table changes.

    Clusterings, log compactions and, in exclusive tables, compactions can be cancelled at any time before their commit;
    cleans and archivals until they begin, because they delete files before they end. The services may plan the same work again.
    Raises `InstantNotFound`, `UnsupportedTable` for what cannot be cancelled, `WriteConflict` while another process cancels the
    plan.
    """
    table.check_writable(keyed=False, stores_rows=False)
    table.refresh()
    record = table.state.actions.get(instant)
    service = _check_cancellable(table, instant, record)
    assert record is not None
    moves = (
        planned_moves(table.state, instant, table.timeline.format)
        if service in REWRITES and REWRITES[service].begins_slices
        else ()
    )
    rollback = roll_back(table.timeline, instant, force=True, cancel=True)
    if rollback is None:
        now = table.refresh().actions.get(instant)
        if now is not None and now.is_pending:
            raise WriteConflict(
                f"{service} {instant} is being cancelled by rollback {now.fenced_by}",
                with_instant=now.fenced_by,
                remedy="wait for it; if its process died: tideline run rollback PATH",
            )
        ended = now.state.value if now is not None else "archived"
        raise UnsupportedTable(f"{service} {instant} is {ended}", expected="a pending plan")
    return Cancelled(service, instant, rollback, record.state is State.INFLIGHT, len(moves))


def withdraw_plans(table: Table) -> tuple[str, ...]:
    """Cancel the plans of Tideline that no process began, where a cancellation cannot hide a row. Return their instants.

    For tables on which services stop (`why_stopped`). A compaction stays pending: Apache Hudi's writers may append behind its plan
    already, and readers find what they append only while it is there.
    """
    withdrawn = []
    for record in table.state.pending():
        service = service_of(record)
        is_ours = record.state is State.REQUESTED and not record.is_by_hudi and not record.fenced_by
        if is_ours and service in REWRITES and SERVICES[service].cancels_where_shared:
            cancel_plan(table, record.instant)
            withdrawn.append(record.instant)
    return tuple(withdrawn)


def _check_cancellable(table: Table, instant: str, record: ActionRecord | None) -> TableService:
    service = service_of(record) if record is not None else None
    if record is None:
        pending = ", ".join(a.instant for a in table.state.pending() if service_of(a) is not None)
        raise InstantNotFound(f"instant {instant}", expected=f"a pending plan of this table: {pending or 'it has none'}")
    if service is None or not SERVICES[service].has_plans:
        found = f"{record.action} {instant} is no plan of a table service"
        raise UnsupportedTable(found, expected="a plan", remedy="stop its process, then: tideline run rollback PATH")
    if not record.is_pending:
        raise UnsupportedTable(f"{service} {instant} is {record.state}", expected="a pending plan")
    if is_run_by_hudi(table, record, table.options):
        raise UnsupportedTable(
            f"{service} {instant} is run by Apache Hudi", expected="a plan that Tideline runs", remedy="wait for it"
        )
    if not table.capabilities.cancels_every_plan and not SERVICES[service].cancels_where_shared:
        # Apache Hudi begins a plan without the common lock, and its writers may have read the plan already
        # (docs/design/cancelling-plans.md).
        raise UnsupportedTable(
            f"{service} {instant} of a table that is shared with Apache Hudi's writers",
            expected="a clustering or a log compaction, or a plan of a table that only Tideline writes",
            remedy=f"run it: tideline run {service} PATH --instant {instant}",
        )
    return service


@dataclass(frozen=True, slots=True)
class Adopted:
    """A copied or moved table with its new identity, and the plans that were cancelled: they named files of the original."""

    identity: TableIdentity
    cancelled: tuple[Cancelled, ...]


def adopt(table: Table, *, in_place: bool = False) -> Adopted:
    """Give a copied or moved table a new identity (`Table.adopt`, with its errors), and cancel the original's pending plans.

    An executor of such a plan works on the original. A clean or an archival that had begun stays: the next run completes it here.
    """
    identity = table.adopt(in_place=in_place)
    cancelled = []
    for record in list(table.refresh().pending()):
        service = service_of(record)
        if service is None or not SERVICES[service].has_plans or record.fenced_by or is_run_by_hudi(table, record, table.options):
            continue
        if not table.capabilities.cancels_every_plan and not SERVICES[service].cancels_where_shared:
            continue
        if service not in REWRITES and record.state is State.INFLIGHT:
            continue  # it deletes files before it ends
        cancelled.append(cancel_plan(table, record.instant))
    return Adopted(identity, tuple(cancelled))
