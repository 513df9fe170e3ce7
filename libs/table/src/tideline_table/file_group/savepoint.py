"""Savepoints: what one keeps, and which slices of a file group the table needs to be read as of its instant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import Action
from tideline_table.timeline.progress import Progress

PROGRESS_KEY = "progress"
"""In the body of savepoints, and of restores that others made: where the feeders of the table stand then."""

Saved = Mapping[str, AbstractSet[str]]
"""Instant of each savepoint → completed writes with older instants that a restore to it takes back: they completed behind it."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed write whose files stay and to which the table can be brought back."""

    instant: str
    """The write's own: a savepoint has none of its own (format reference 4.2)."""
    sequence: int
    """Of the entry that made the savepoint."""
    created: str
    """When, as recorded (ISO 8601, UTC)."""
    user: str = ""
    comment: str = ""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Where those who feed the table stood as of the write."""

    def to_json(self) -> list[object]:
        """Compact form for checkpoints."""
        progress = [[key, held.value, held.instant] for key, held in self.progress.items()]
        return [self.instant, self.sequence, self.created, self.user, self.comment, progress]

    @classmethod
    def from_json(cls, fields: Iterable[Any]) -> Savepoint:
        """The savepoint that `to_json` gave."""
        instant, sequence, created, user, comment, progress = fields
        held = {str(key): Progress(str(value), str(at)) for key, value, at in progress}
        return cls(str(instant), int(sequence), str(created), str(user), str(comment), held)


def saved_by(entry: Entry) -> Savepoint:
    """The savepoint that an entry makes; what its body lacks raises as reading a mapping does."""
    metadata = entry.body["metadata"]
    return Savepoint(
        entry.instant,
        entry.sequence,
        entry.recorded,
        str(metadata["savepointedBy"]),
        str(metadata["comments"]),
        progress_from(entry.body[PROGRESS_KEY]),
    )


def progress_json(progress: Mapping[str, Progress]) -> dict[str, list[str]]:
    """Progress as entries carry it; `progress_from` reads it."""
    return {key: [held.value, held.instant] for key, held in progress.items()}


def progress_from(document: Mapping[str, Any]) -> dict[str, Progress]:
    """See `progress_json`."""
    return {str(key): Progress(str(value), str(at)) for key, (value, at) in document.items()}


def is_newer(action: ActionRecord, savepoint: Savepoint) -> bool:
    """Whether a restore to `savepoint` takes this completed write back: by its instant, or because it completed behind the savepoint.

    A compaction or clustering that was planned before the savepoint and completed since stays: it holds the rows of its time.
    """
    if action.instant > savepoint.instant:
        return True
    moves_rows = action.is_clustering or action.action is Action.COMPACTION
    return not moves_rows and action.sequence > savepoint.sequence


def saved_by_log(savepoints: Mapping[str, Savepoint], completed: Sequence[ActionRecord]) -> Saved:
    """What the savepoints of an exclusive table protect, of its completed writes."""
    return {
        at: frozenset(a.instant for a in completed if a.instant <= at and is_newer(a, savepoint))
        for at, savepoint in savepoints.items()
    }


def needed_writes(saved: Saved) -> frozenset[str]:
    """Writes that have to stay on the timeline: those that are saved, and those that a restore has to take back."""
    return frozenset(saved).union(*saved.values())


def saved_slices(slices: Mapping[str, FileSlice], replaced_by: str | None, instant: str) -> list[FileSlice]:
    """The slices (by base instant) of one group that a query as of `instant` reads, none where the group was replaced by then.

    More than one where a compaction that was pending then has opened slices without a base file (11.2).
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
    """Base instants of the slices of one group that savepoints keep: for queries as of them, and for a restore."""
    found = {s.base_instant for at in saved for s in saved_slices(slices, replaced_by, at)}
    for at, late in saved.items():
        if late:
            # What was there before writes with older instants completed: by instants alone those had hidden it.
            left = {base_instant: s for base_instant, s in slices.items() if base_instant not in late}
            found |= {s.base_instant for s in saved_slices(left, None if replaced_by in late else replaced_by, at)}
    return frozenset(found)


def every_saved_slice(
    slices: Mapping[FileGroupId, Mapping[str, FileSlice]], replaced: Mapping[FileGroupId, str], saved: Saved
) -> list[FileSlice]:
    """The slices of a whole table that savepoints keep, each once."""
    if not saved:
        return []
    return [
        by_instant[at] for group, by_instant in slices.items() for at in sorted(kept_slices(by_instant, replaced.get(group), saved))
    ]
