"""Savepoints: the writes they protect, and the file slices that a query as of a savepoint needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import SavepointMade
from tideline_table.log.entry import Entry
from tideline_table.log.progress import Progress

Saved = Mapping[str, AbstractSet[str]]
"""Instant of each savepoint → writes with older instants that a restore undoes, because they completed after the savepoint."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed write whose files are kept, and to which the table can be restored."""

    instant: str
    """Instant of the protected write; a savepoint has no instant of its own (format reference 4.2)."""
    sequence: int
    """Sequence of the entry that made the savepoint."""
    created: str
    """When that entry was recorded (ISO 8601, UTC)."""
    user: str = ""
    comment: str = ""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Ingestion progress as of the protected write."""
    completion: str = ""
    """The completion time of the savepoint, later than that of its write; empty if the table's names have none."""

    def to_json(self) -> list[object]:
        """Return the compact JSON form for checkpoints."""
        progress = [[key, held.value, held.instant] for key, held in self.progress.items()]
        fixed: list[object] = [self.instant, self.sequence, self.created, self.user, self.comment, progress]
        return [*fixed, self.completion] if self.completion else fixed

    @classmethod
    def from_json(cls, fields: Iterable[Any]) -> Savepoint:
        """Parse the output of `to_json`."""
        instant, sequence, created, user, comment, progress, *completion = fields
        held = {str(key): Progress(str(value), str(at)) for key, value, at in progress}
        return cls(str(instant), int(sequence), str(created), str(user), str(comment), held, *map(str, completion))


def saved_by(entry: Entry, body: SavepointMade) -> Savepoint:
    """Return the savepoint that `entry` makes."""
    user, comment = str(body.metadata["savepointedBy"]), str(body.metadata["comments"])
    return Savepoint(entry.instant, entry.sequence, entry.recorded, user, comment, body.progress, entry.completion)


def is_newer(action: ActionRecord, savepoint: Savepoint) -> bool:
    """Return whether a restore to `savepoint` undoes this completed write: its instant is newer, or it completed later.

    A compaction or clustering with an older instant is kept even if it completed later, because it holds rows as of its instant.
    """
    if action.instant > savepoint.instant:
        return True
    moves_rows = action.is_clustering or action.action is Action.COMPACTION
    return not moves_rows and action.sequence > savepoint.sequence


def saved_by_log(savepoints: Mapping[str, Savepoint], completed: Sequence[ActionRecord]) -> Saved:
    """Return, per savepoint of an exclusive table, the writes with older instants that completed after the savepoint."""
    return {
        at: frozenset(a.instant for a in completed if a.instant <= at and is_newer(a, savepoint))
        for at, savepoint in savepoints.items()
    }


def needed_writes(saved: Saved) -> frozenset[str]:
    """Return the writes that must stay on the timeline: the protected writes, and the writes that a restore must undo."""
    return frozenset(saved).union(*saved.values())


def saved_slices(slices: Mapping[str, FileSlice], replaced_by: str | None, instant: str) -> list[FileSlice]:
    """Return the slices of one group that a query as of `instant` reads; none if the group was replaced by then.

    `slices` is keyed by base instant. There are several slices if a pending compaction opened slices without a base file (11.2).
    """
    if replaced_by is not None and replaced_by <= instant:
        return []
    found: list[FileSlice] = []
    for at in sorted((i for i in slices if i <= instant), reverse=True):
        found.append(slices[at])
        if slices[at].base_file:
            break
    return found


def kept_slices(slices: Mapping[str, FileSlice], replaced_by: str | None, saved: Saved) -> frozenset[str]:
    """Return the base instants of the slices of one group that savepoints keep, for queries as of a savepoint and for a restore."""
    found = {s.base_instant for at in saved for s in saved_slices(slices, replaced_by, at)}
    for at, late in saved.items():
        if late:
            # A restore undoes the late writes, so also keep the slices that those writes hide.
            left = {base_instant: s for base_instant, s in slices.items() if base_instant not in late}
            found |= {s.base_instant for s in saved_slices(left, None if replaced_by in late else replaced_by, at)}
    return frozenset(found)


def every_saved_slice(
    slices: Mapping[FileGroupId, Mapping[str, FileSlice]], replaced: Mapping[FileGroupId, str], saved: Saved
) -> list[FileSlice]:
    """Return those of `slices` that savepoints keep, each once."""
    if not saved:
        return []
    return [
        by_instant[at] for group, by_instant in slices.items() for at in sorted(kept_slices(by_instant, replaced.get(group), saved))
    ]
