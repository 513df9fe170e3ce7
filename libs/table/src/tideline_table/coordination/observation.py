"""Steps of a table that only Apache Hudi writes, with sequences that the caller keeps: the table has no log and gets none.

What was seen of the instants on the timeline is the cursor (docs/design/observed-tables.md). The steps between a cursor and a
listing are those that a shared table would adopt.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tideline_table.coordination.shared.adoption import Step, missed_writes, missing_steps, read_step, vanished
from tideline_table.errors import CorruptMetadata, ObjectNotFound, StorageError, TableFrozen
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import UPGRADED
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.listing import ListedTimeline, list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.log.action import ActionRecord
from tideline_table.log.entry import Entry
from tideline_table.log.plan import RollbackStep
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.log.state import TableState
from tideline_table.storage import Storage

_SEPARATOR = "."


def observed_uid(base_path: str) -> str:
    """Return the uid in events of a table without an identity, by its canonical base path: each mirror gives it the same one."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, base_path))


@dataclass(frozen=True, slots=True)
class Observed:
    """New steps in order, each with the path of its timeline file, and the cursor behind them."""

    entries: tuple[tuple[Entry, str], ...]
    cursor: tuple[str, ...]
    missed: int = 0
    """Writes that Apache Hudi archived before they were seen. The sequence leaves a gap for them."""
    is_complete: bool = True
    """Whether there are no steps beyond the limit."""


def observe(
    storage: Storage, form: TableFormat, listed: ListedTimeline, cursor: Collection[str], sequence: int, now: datetime, limit: int
) -> Observed:
    """Return the steps between `cursor` (empty: none were seen) and a listing, at most `limit`, numbered from `sequence` + 1.

    Reads the new timeline files, and the archive if an archival may have taken what was not seen. Raises `CorruptMetadata` for
    files that cannot be read, and `StorageError` if one disappeared meanwhile, which the next listing shows.
    """
    state = TableState(actions={found.instant: found for found in map(_parsed, cursor)})
    missed = _missed(storage, form, listed, state) if cursor else 0
    steps = [*missing_steps(listed, state), *vanished(listed, state)]
    entries: list[tuple[Entry, str]] = []
    for step in steps[:limit]:
        try:
            draft = read_step(storage, step, listed.timeline, state)
        except ObjectNotFound as error:
            raise StorageError(f"a timeline file disappeared while it was read: {error}", remedy="retry") from None
        path = _path_of(step, listed)
        entry = draft.entry(sequence + missed + len(entries) + 1, listed.modified.get(path, now))
        _note(state, entry)
        entries.append((entry, path))
    there = {i.time for i in listed.timeline.instants}
    kept = (a for a in state.actions.values() if a.instant in there or a.is_pending)
    return Observed(tuple(entries), tuple(sorted(map(_text, kept))), missed, len(steps) <= limit)


def check_as_opened(storage: Storage, form: TableFormat) -> None:
    """Raise `TableFrozen` if Apache Hudi gave a table of this format another version since it was opened, or does so now.

    An upgrade moves the timeline first: what is left of it would look as if the other instants had been archived or undone. Costs
    two requests at most.
    """
    changed = form.changed_in(read_properties(storage))
    if not changed and form.timeline_folder != UPGRADED.timeline_folder:
        changed = "a timeline that an upgrade moves" if list_timeline(storage, UPGRADED).instants else ""
    if changed:
        raise TableFrozen(changed, expected=f"{form.version_text}, as when it was opened", remedy="none: it is opened again")


def _missed(storage: Storage, form: TableFormat, listed: ListedTimeline, state: TableState) -> int:
    """Return the number of writes in the archive that were not seen. Archival takes the oldest instants first."""
    first = listed.first_completed
    done = [a.instant for a in state.completed_writes()]
    if not first or first in state.actions or not done:
        return 0
    state.archived_before = min(done)
    return len(missed_writes(form.archived_instants(storage, state.archived_before), state))


def _path_of(step: Step, listed: ListedTimeline) -> str:
    action = completed_as(step.action) if step.after is State.COMPLETED else step.action
    return listed.timeline.paths.get(Instant(step.instant, action, step.after), "")


def _note(state: TableState, entry: Entry) -> None:
    """Keep what the order of later steps depends on: the states of actions, and which rollback undoes them."""
    known = state.actions.get(entry.instant)
    fenced = known.fenced_by if known is not None else ""
    state.actions[entry.instant] = _record(entry.instant, entry.action, entry.after, fenced, entry.operation)
    if isinstance(entry.body, RollbackStep) and not entry.body.spares and (target := state.actions.get(entry.body.target)):
        ended = State.ROLLED_BACK if entry.after is State.COMPLETED else target.state
        state.actions[target.instant] = replace(target, state=ended, fenced_by=entry.instant)


def _record(instant: str, action: Action, state: State, fenced_by: str, operation: str = "") -> ActionRecord:
    return ActionRecord(instant, action, state, operation, 0, 0, HUDI_WRITER, fenced_by=fenced_by)


def _text(found: ActionRecord) -> str:
    parts: Iterable[str] = (found.instant, found.action.value, found.state.value, found.operation, found.fenced_by)
    return _SEPARATOR.join(parts)


def _parsed(text: str) -> ActionRecord:
    try:
        instant, action, state, operation, fenced_by = text.split(_SEPARATOR)
        return _record(instant, Action(action), State(state), fenced_by, operation)
    except ValueError:
        raise CorruptMetadata(f"cursor {text!r}", expected="instant, action, state, operation and rollback of a step") from None
