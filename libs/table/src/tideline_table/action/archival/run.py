"""Archival of one table: publish a plan, write the archive file, delete the timeline files, record the end in the log.

A later run can repeat each step: the archive file has the number of the plan's log entry and is created once, timeline files are
deleted only when it exists, and only the last entry removes the instants from the state of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tideline_table.action.archival.late_files import MOST_CHECKED, OrphanCleanup, clean_up_orphans, delete_staging, due
from tideline_table.action.archival.plan import (
    OPERATION,
    StateFile,
    bounds,
    plan_archival,
    removal_order,
    state_files,
    to_clean_up,
)
from tideline_table.action.decision import Due, NotDue
from tideline_table.action.publishing import NothingToDo, publish
from tideline_table.config import ARCHIVAL_BATCH, TASK_MAX_LIFETIME_S, Options
from tideline_table.coordination.leases import live_leases, oldest
from tideline_table.errors import CorruptMetadata, ObjectNotFound, StorageError, WriteConflict
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import list_timeline
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Archived, Bare, Body
from tideline_table.log.plan import ArchivalPlanned, ArchivedInstants
from tideline_table.log.savepoint import needed_writes
from tideline_table.log.state import TableState
from tideline_table.log.statistics import keep_statistics
from tideline_table.log.statistics_file import BROKEN, stored_sequences
from tideline_table.log.table_log import Draft
from tideline_table.table.facade import Table
from tideline_table.writer.marker import forget_markers

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Archival:
    """A completed archival: its instant, the instants that left the timeline, and the path of the archive file."""

    instant: str
    instants: tuple[str, ...]
    path: str


def delete_late_files(table: Table, options: Mapping[str, object] | None = None) -> OrphanCleanup:
    """Delete late files of rolled-back writes whose tasks have ended; return what was found.

    Of those that hold archival back, and of those that a savepoint lets readers of the timeline take for archived ones.
    """
    chosen = table.options.merged(options or {})
    state = table.refresh()
    writes = state.completed_writes()
    limits = bounds(chosen)
    rolled_back = to_clean_up(state)
    now = table.clock.now()
    reached = writes[len(writes) - limits.least].instant if len(writes) > limits.most else ""
    waiting = due(state, [a for a in rolled_back if a.instant < reached], chosen, now)
    saved = state.savepoints.keys()
    begins = next((w.instant for w in writes if w.instant not in saved), "")
    older = [a for a in rolled_back if reached <= a.instant < begins]
    if older:
        # The savepoint may keep them on the timeline for years: each of them is looked at for one task lifetime.
        still_new = now - timedelta(seconds=chosen[TASK_MAX_LIFETIME_S])
        known = {record.instant for record in due(state, older, chosen, still_new)}
        waiting += [a for a in due(state, older, chosen, now) if a.instant not in known]
    return clean_up_orphans(table.storage, table.timeline.format, state, waiting[:MOST_CHECKED]) if waiting else OrphanCleanup()


def delete_half_written(table: Table, options: Mapping[str, object] | None = None) -> tuple[str, ...]:
    """Delete objects that killed writers left half written longer ago than any task runs; return their paths."""
    table.check_writable(keyed=False)
    return delete_staging(table.storage, table.options.merged(options or {}), table.clock.now())


def request_archival(
    table: Table, options: Mapping[str, object] | None = None, cleaned_up: frozenset[str] = frozenset()
) -> str | NotDue:
    """Publish a plan on the timeline; return its instant, or why there is none."""
    chosen = table.options.merged(options or {})
    bounds(chosen)
    _check_ours(table)

    def decide(state: TableState) -> Due | NotDue:
        saved = needed_writes(table.timeline.saved())
        return plan_archival(state, chosen, table.clock.now(), saved, cleaned_up, live_leases(table.storage))

    return publish(table, Action.ARCHIVAL, OPERATION, decide)


def run_archival(table: Table, instant: str = "", *, options: Mapping[str, object] | None = None) -> Archival | None:
    """Execute a pending archival plan (empty: the oldest); return None if there is none.

    Several processes may run it at the same time; the next run completes the plan of one that died. Raises `WriteConflict` for a
    plan that has removed nothing yet and would remove an instant that a reader lease keeps.
    """
    chosen = table.options.merged(options or {})
    _check_ours(table)
    _remove_leftovers(table)
    pending = [
        a
        for a in table.state.pending()
        if a.action is Action.ARCHIVAL and not a.fenced_by and (not instant or a.instant == instant)
    ]
    if not pending:
        return None
    own = pending[0]
    planned = table.state.plans[own.instant]
    assert isinstance(planned, ArchivalPlanned)
    plan = planned.archived

    def step(after: State, body: Body) -> None:
        def decide(state: TableState) -> Draft:
            record = state.actions.get(own.instant)
            if record is None or not record.is_pending or record.fenced_by:
                raise NothingToDo
            return Draft(own.instant, Action.ARCHIVAL, record.state, after, OPERATION, body)

        table.timeline.append(decide)

    _check_leases(table, own, plan)
    files = state_files(table.state, table.timeline.format, plan)
    rolled_back = [i for i in plan.instants if table.state.actions[i].state is State.ROLLED_BACK]
    try:
        step(State.INFLIGHT, Bare())
        path = _store(table, own.started_sequence, files, chosen)
        for found in removal_order(files):
            table.storage.delete(found)
        _keep_statistics(table, plan)
        step(State.COMPLETED, Archived(plan, path))
    except NothingToDo:
        return None
    for gone in rolled_back:
        forget_markers(table.storage, gone)
    _remove_leftovers(table)
    return Archival(own.instant, plan.instants, path)


def _keep_statistics(table: Table, plan: ArchivedInstants) -> None:
    """Store the column statistics of files of archived writes: later the state does not say which log entries hold them."""
    # A copy: another thread of this process may go on, and the file says up to which entry it is complete.
    state, storage = table.state.copy(), table.storage
    newest = max((w.sequence for w in state.completed_writes() if w.instant in plan.instants), default=0)
    try:
        if newest > max(stored_sequences(storage), default=0):
            keep_statistics(storage, table.timeline.log.read, state)
    except BROKEN as error:
        _LOGGER.warning("the statistics of archived writes are lost (%s); more data files are read instead", error)


def _check_leases(table: Table, own: ActionRecord, plan: ArchivedInstants) -> None:
    """Raise `WriteConflict` if a reader took a lease while the plan was published. A plan that an executor runs continues."""
    lease = oldest(live_leases(table.storage))
    if own.state is State.REQUESTED and lease is not None and lease.instant < plan.before:
        raise WriteConflict(
            f"archival {own.instant} waits: {lease.text}",
            with_instant=own.instant,
            expected="no reader of an instant that it removes",
            remedy=f"run it when the lease has ended, or end it: tideline lease release PATH {lease.lease_id}",
        )


def archive(table: Table, options: Mapping[str, object] | None = None) -> tuple[Archival | None, OrphanCleanup, str]:
    """Run a pending plan, delete late files of rolled-back writes, plan and run.

    Return the last archival, the result of the deletion, and why there is no new plan (empty if there is one).
    """
    done = run_archival(table, options=options)
    found = delete_late_files(table, options)
    answer = request_archival(table, options, found.cleaned_up)
    if isinstance(answer, NotDue):
        return done, found, answer.reason
    return run_archival(table, answer, options=options) or done, found, ""


def _check_ours(table: Table) -> None:
    remedy = "let Apache Hudi archive it: its writers do so behind their commits"
    table.timeline.check_sole_writer(table.definition.name, remedy)
    table.check_writable(keyed=False)


def _store(table: Table, number: int, files: Sequence[StateFile], options: Options) -> str:
    named = [(f.instant, f.path) for f in files]
    try:
        return table.timeline.format.archive(table.storage, number, named, options[ARCHIVAL_BATCH])
    except ObjectNotFound as error:
        if error.path not in {f.path for f in files}:
            raise StorageError(
                f"{error.path} of the archived timeline is missing: other archivals replace its files",
                expected="a file that its newest manifest names",
                remedy="run it again; if the file stays missing, restore it from a copy",
            ) from None
        raise CorruptMetadata(
            f"timeline file {error.path} is missing",
            expected="the files of all states of what is archived",
            remedy="restore it from the table log or a copy; nothing was removed",
        ) from None


def _remove_leftovers(table: Table) -> None:
    """Delete timeline files of archived instants that a slow writer created again; the timeline would seem to begin with them."""
    state = table.state
    listed = list_timeline(table.storage, table.timeline.format)
    strange = {i: path for i, path in listed.paths.items() if i.time not in state.actions and i.time < state.archived_before}
    if not strange:
        return
    archived = {a.time for a in table.timeline.format.archived_instants(table.storage)}
    for instant in sorted(strange, key=lambda i: (i.state is State.COMPLETED, i)):
        if instant.time in archived:
            table.storage.delete(listed.paths[instant])
