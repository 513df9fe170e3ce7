"""Taking completed writes out of the state again: what rollbacks and restores do."""

from __future__ import annotations

from collections.abc import MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.timeline.instant import State
from tideline_table.timeline.rewind import Rewind

if TYPE_CHECKING:
    from tideline_table.file_group.state import TableState


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A stretch of the table log whose writes were taken back: of the first of them, and of the entry that did it."""

    first: int
    sequence: int
    instant: str
    """Of the restore, or rollback, that did it."""


def undo_writes(slices: MutableMapping[FileGroupId, dict[str, FileSlice]], instants: AbstractSet[str]) -> None:
    """Remove the base files of `instants` and the log files that they wrote; groups of which nothing is left go, too."""
    for group, by_instant in list(slices.items()):
        kept = {}
        for base_instant, found in by_instant.items():
            logs = tuple(log for log in found.log_files if log.instant not in instants)
            base = "" if base_instant in instants else found.base_file
            if base or logs:
                unchanged = base == found.base_file and logs == found.log_files
                kept[base_instant] = found if unchanged else _left(found, base, logs)
        if kept:
            slices[group] = kept
        else:
            del slices[group]


def _left(found: FileSlice, base: str, logs: tuple[LogFile, ...]) -> FileSlice:
    if base:
        return replace(found, log_files=logs)
    return replace(found, base_file="", size_bytes=0, rows=-1, log_files=logs)


def take_back(state: TableState, instants: AbstractSet[str], by: str, sequence: int) -> None:
    """What these completed writes published is gone, by the rollback or restore `by` at `sequence`: files, replacements, schemas."""
    done = [known for i in sorted(instants) if (known := state.actions.get(i)) is not None]
    for known in done:
        state.actions[known.instant] = replace(known, state=State.ROLLED_BACK, fenced_by=by)
    undo_writes(state.slices, instants)
    state.replaced = {group: at for group, at in state.replaced.items() if at not in instants}
    state.excess = {group for group, found in state.slices.items() if len(found) > 1 or group in state.replaced}
    if instants & set(state.schemas):
        # In the order in which they were taken.
        state.schemas = {at: text for at, text in state.schemas.items() if at not in instants}
        state.schema_json = next(reversed(state.schemas.values()), "")
    if done:
        state.rewritten = (*state.rewritten, Rewritten(min(known.sequence for known in done), sequence, by))


def rewind(state: TableState, back: Rewind, restore: str, sequence: int) -> None:
    """Bring the state back to a savepoint; what was pending then and newer than it never completes."""
    state.progress = dict(state.savepoints[back.savepoint].progress)
    take_back(state, back.undone_instants, restore, sequence)
    for instant, _ in back.fenced:
        state.actions[instant] = replace(state.actions[instant], state=State.ROLLED_BACK, fenced_by=restore, sequence=sequence)
        state.plans.pop(instant, None)
    for instant, _ in back.rollbacks:
        state.actions[instant] = replace(state.actions[instant], state=State.ROLLED_BACK, fenced_by=restore)
    for instant in back.savepoints:
        state.savepoints.pop(instant, None)
