"""Savepoints: what one keeps, and which slices of a file group the table needs to be read as of its instant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.progress import Progress

PROGRESS_KEY = "progress"
"""In the body of savepoints, and of restores that others made: where the feeders of the table stand then."""


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


def kept_slices(slices: Mapping[str, FileSlice], replaced_by: str | None, instants: AbstractSet[str]) -> frozenset[str]:
    """Base instants of the slices of one group that savepoints of these instants keep."""
    return frozenset(s.base_instant for at in instants for s in saved_slices(slices, replaced_by, at))


def every_saved_slice(
    slices: Mapping[FileGroupId, Mapping[str, FileSlice]], replaced: Mapping[FileGroupId, str], instants: AbstractSet[str]
) -> list[FileSlice]:
    """The slices of a whole table that savepoints of these instants keep, each once."""
    if not instants:
        return []
    return [
        by_instant[at]
        for group, by_instant in slices.items()
        for at in sorted(kept_slices(by_instant, replaced.get(group), instants))
    ]
