"""Cleaning of one table: publish a plan, delete the files that it names, complete it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain

from tideline_table.action.clean.plan import (
    OPERATION,
    Needed,
    bytes_of,
    check_share,
    clean_metadata,
    execute_clean,
    groups_of,
    plan_clean,
)
from tideline_table.action.clean.undone_logs import with_unnamed_logs
from tideline_table.action.decision import Due, NotDue
from tideline_table.action.publishing import NothingToDo, publish
from tideline_table.coordination.leases import leased_instant, live_leases, needed_by, oldest
from tideline_table.coordination.reserve import fill_reserve
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Bare, Cleaned
from tideline_table.log.plan import CleanPlanned, planned_files
from tideline_table.log.savepoint import every_saved_slice
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.table.facade import Table


def request_clean(table: Table, options: Mapping[str, object] | None = None) -> str | NotDue:
    """Publish a plan on the timeline; return its instant, or why there is none."""
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    leaves_logs = table.sharing is not None and table.definition.has_logs and not table.timeline.format.has_completion_times

    def decide(state: TableState) -> Due | NotDue:
        # Ask the store only if the policy needs the time or a lease may have expired.
        now = table.timeline.time.now()
        found = plan_clean(state, table.storage.root, chosen, table.timeline.saved(), now, live_leases(table.storage))
        if isinstance(found, Due) and (leaves_logs or table.definition.changes):
            assert isinstance(found.body, CleanPlanned)
            return replace(found, body=with_unnamed_logs(table.storage, state, found.body, changes_only=not leaves_logs))
        return found

    # Step 1: append the plan, which names each file to delete. A job of Apache Hudi begins a clean that it finds requested, and
    # fails if another process begins it at the same time. One that is inflight both run, and the second completion is none.
    after = State.INFLIGHT if table.sharing is not None else State.REQUESTED
    return publish(table, Action.CLEAN, OPERATION, decide, reserve_kept=0, after=after)


def run_clean(table: Table, instant: str = "", *, options: Mapping[str, object] | None = None) -> int | None:
    """Execute a pending clean plan (empty: the oldest). Return the number of files deleted, None if there is no plan.

    What queries, savepoints, reader leases and pending plans need is looked up again before each batch of deletions. Files that
    only a lease or a pending plan needs are left to a later clean. Raises `CleanRefused`, and deletes nothing, for a plan that
    deletes more than `tideline.clean.max.deleted.share` allows.

    Deleting is idempotent: the next run repeats a clean whose process died. Raises `CorruptMetadata` for a plan that names files
    that readers need; in a shared table such a plan is removed, because a restore of Apache Hudi may have brought back these files.
    """
    allowed = table.options.merged(options or {})
    table.check_writable(keyed=False)
    pending = [
        a for a in table.state.pending() if a.action is Action.CLEAN and not a.fenced_by and (not instant or a.instant == instant)
    ]
    if not pending:
        return None
    chosen = pending[0].instant
    planned = table.state.plans[chosen]
    assert isinstance(planned, CleanPlanned)
    plan = planned.plan
    # Step 2: refuse a plan that deletes too much, before anything is deleted.
    check_share(table.state, bytes_of(table.state, planned.paths), allowed)

    def begin(state: TableState) -> Draft:
        _check_pending(state, chosen)
        before = state.actions[chosen].state
        return Draft(chosen, Action.CLEAN, before, State.INFLIGHT, OPERATION, planned if before is State.REQUESTED else Bare())

    held: list[str] = []

    def look_again(groups: AbstractSet[FileGroupId]) -> Needed:
        state = table.refresh()
        # Only of the groups that the batch names: a clean of all groups would otherwise look at all of them for each batch.
        latest, saved = _read_slices(table, state, groups)
        leased = oldest(live_leases(table.storage))
        spared = planned_files(state.plans.values())
        if leased is not None:
            held.append(leased_instant(state, leased.instant))
            spared |= {path for s in needed_by(state, leased.instant, groups) for path in s.paths}
        return Needed(frozenset(path for s in (*latest, *saved) for path in s.paths), frozenset(spared))

    try:
        # Step 3: begin, REQUESTED to INFLIGHT. A full disk is no reason to stop: the clean may use the reserve.
        table.timeline.append(begin, reserve_kept=0)
        started = table.clock.monotonic_s()
        state = table.state
        formerly = table.identity.formerly if table.identity is not None else ()
        latest, saved = _read_slices(table, state, groups_of(state, planned.paths))
        try:
            # Step 4: delete in batches. Before each, `look_again` asks what readers, savepoints, leases and plans need by now.
            result = execute_clean(table.storage, plan, chain(latest, saved), look_again, formerly)
        except CorruptMetadata:
            table.timeline.give_up(table.state.actions[chosen])
            raise
        duration_ms = int((table.clock.monotonic_s() - started) * 1000)
        metadata = clean_metadata(chosen, plan, result, duration_ms, min(held, default=""))

        def complete(state: TableState) -> Draft:
            _check_pending(state, chosen)
            return Draft(chosen, Action.CLEAN, State.INFLIGHT, State.COMPLETED, OPERATION, Cleaned(metadata))

        # Step 5: complete. Deleting is idempotent, so that a clean that died before is simply run again.
        table.timeline.append(complete, reserve_kept=0)
    except NothingToDo:
        return None
    # There is space again for the file that the next clean on a full disk gives up.
    fill_reserve(table.storage)
    return int(metadata["totalFilesDeleted"])


def _read_slices(
    table: Table, state: TableState, groups: AbstractSet[FileGroupId]
) -> tuple[Iterable[FileSlice], Iterable[FileSlice]]:
    """Return the newest slices of file groups, and those that savepoints need."""
    known = {group: state.slices[group] for group in sorted(groups) if group in state.slices}
    return state.latest_among(groups), every_saved_slice(known, state.replaced, table.timeline.saved())


def _check_pending(state: TableState, instant: str) -> None:
    if not state.is_pending(instant) or state.actions[instant].fenced_by:
        raise NothingToDo
