"""Running archival on one table: publish a plan, write the archive file, take the timeline files away, say so in the log.

Each step can be done again by whoever comes next: the file has the number of the plan's log entry and is created once, files of the timeline
go only when it is there, and only the last entry lets the table forget the instants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tideline_table.config import Options
from tideline_table.errors import CorruptMetadata, ObjectExists, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.archived import ArchivedInstants
from tideline_table.file_group.savepoint import needed_writes
from tideline_table.file_group.state import TableState
from tideline_table.service.archival import (
    OPERATION,
    StateFile,
    archivable,
    archive_content,
    archive_path,
    bounds,
    removal_order,
    state_files,
    unswept,
)
from tideline_table.storage import exists
from tideline_table.table.facade import Table
from tideline_table.table.foreign import read_archived_instants
from tideline_table.timeline.files import timeline_path
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.listing import TimelineFolders, list_timeline
from tideline_table.timeline.log import Draft
from tideline_table.transaction.sweep import Sweep, due, sweep, sweep_staging
from tideline_table.writer.marker import forget_markers


class _NoPlan(Exception):
    """There is nothing to do."""


@dataclass(frozen=True, slots=True)
class Archival:
    """An archival that was done: its instant, what left the timeline, and the file that holds it."""

    instant: str
    instants: tuple[str, ...]
    path: str


def sweep_late_files(table: Table, options: Mapping[str, object] | None = None) -> Sweep:
    """Look for late files of the rolled-back writes that hold archival back and whose tasks are over; delete what is found."""
    chosen = table.options.merged(options or {})
    state = table.refresh()
    writes = state.completed_writes()
    limits = bounds(chosen)
    if len(writes) <= limits.most:
        return Sweep()
    reached = writes[len(writes) - limits.least].instant
    waiting = [a for a in unswept(state) if a.instant < reached]
    return sweep(table.storage, state, due(state, waiting, chosen, table.clock.now()))


def sweep_half_written(table: Table, options: Mapping[str, object] | None = None) -> tuple[str, ...]:
    """Delete what writers that were killed left half written longer ago than any task runs; the paths."""
    table.check_writable(keyed=False)
    return sweep_staging(table.storage, table.options.merged(options or {}), table.clock.now())


def schedule_archival(table: Table, options: Mapping[str, object] | None = None, swept: frozenset[str] = frozenset()) -> str | None:
    """Publish an archival plan in the table log; returns its instant, None when nothing can be archived or an archival is pending.

    `swept` are the rolled-back instants of which `sweep_late_files` found nothing. Raises `InvalidOption`, and `UnsupportedTable` for a shared
    table: Apache Hudi's writers archive those.
    """
    chosen = table.options.merged(options or {})
    bounds(chosen)
    _check_ours(table)

    def decide(state: TableState) -> Draft:
        if state.restoring or any(a.action is Action.ARCHIVAL for a in state.pending()):
            raise _NoPlan
        found = archivable(state, chosen, table.clock.now(), needed_writes(table.saved()), swept)
        if found is None:
            raise _NoPlan
        body = {"plan": found.to_json()}
        return Draft(table.timeline.mint(state), Action.ARCHIVAL, State.NONE, State.REQUESTED, OPERATION, body)

    try:
        return table.timeline.append(decide).instant
    except _NoPlan:
        return None


def run_archival(table: Table, instant: str = "", *, options: Mapping[str, object] | None = None) -> Archival | None:
    """Execute a pending archival plan (empty: the oldest); None when there is none.

    Any number may run it at the same time, and whoever dies inside is followed by the next.
    """
    chosen = table.options.merged(options or {})
    _check_ours(table)
    _remove_leftovers(table)
    pending = [a for a in table.state.pending() if a.action is Action.ARCHIVAL and (not instant or a.instant == instant)]
    if not pending:
        return None
    own = pending[0]
    plan = ArchivedInstants.from_json(table.state.plans[own.instant]["plan"])
    path = archive_path(TimelineFolders.from_properties(table.definition.properties).history, own.started_sequence)

    def step(after: State, body: Mapping[str, object]) -> None:
        def decide(state: TableState) -> Draft:
            record = state.actions.get(own.instant)
            if record is None or not record.is_pending:
                raise _NoPlan
            return Draft(own.instant, Action.ARCHIVAL, record.state, after, OPERATION, body)

        table.timeline.append(decide)

    files = state_files(table.state, plan)
    rolled_back = [i for i in plan.instants if table.state.actions[i].state is State.ROLLED_BACK]
    try:
        step(State.INFLIGHT, {})
        _store(table, path, files, chosen)
        for found in removal_order(files):
            table.storage.delete(found)
        step(State.COMPLETED, {"metadata": plan.to_json(), "file": path})
    except _NoPlan:
        return None
    for gone in rolled_back:
        forget_markers(table.storage, gone)
    _remove_leftovers(table)
    return Archival(own.instant, plan.instants, path)


def archive(table: Table, options: Mapping[str, object] | None = None) -> tuple[Archival | None, Sweep]:
    """Sweep, plan and run in one go, after finishing what somebody else left pending; what was archived, and what the sweep deleted."""
    done = run_archival(table, options=options)
    found = sweep_late_files(table, options)
    if schedule_archival(table, options, found.swept) is not None:
        done = run_archival(table, options=options)
    return done, found


def _check_ours(table: Table) -> None:
    if table.is_shared:
        raise UnsupportedTable(
            f"table {table.definition.name!r} is shared with Apache Hudi's writers",
            expected="an exclusive table",
            remedy="let Apache Hudi archive it: its writers do so behind their commits",
        )
    table.check_writable(keyed=False)


def _store(table: Table, path: str, files: Sequence[StateFile], options: Options) -> None:
    if exists(table.storage, path):
        return
    try:
        content = archive_content(table.storage, files, options)
        table.storage.put_if_absent(path, content)
    except ObjectExists:
        return  # of another one who runs the same plan
    except ObjectNotFound as error:
        # Whoever runs the same plan may be further: timeline files go only behind the archive.
        if not exists(table.storage, path):
            raise CorruptMetadata(
                f"timeline file {error.path} is missing",
                expected="the files of all states of what is archived",
                remedy="restore it from the table log or a copy; nothing was removed",
            ) from None


def _remove_leftovers(table: Table) -> None:
    """Timeline files of archived instants that somebody slow brought back: the timeline would seem to begin with them."""
    state = table.state
    listed = list_timeline(table.storage, TimelineFolders.from_properties(table.definition.properties))
    strange = {i: path for i, path in listed.paths.items() if i.time not in state.actions and i.time < state.archived_before}
    if not strange:
        return
    archived = {a.time for a in read_archived_instants(table.storage, table.definition.properties)}
    for instant in sorted(strange, key=lambda i: (i.state is State.COMPLETED, i)):
        if instant.time in archived:
            table.storage.delete(timeline_path(instant))
