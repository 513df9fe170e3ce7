"""The metadata table of an exclusive table, as the fold of the table log knows it (format reference 15). No I/O.

Entries of the log decide when it begins and ends, which of them make a delta commit in it, and when it is compacted. So every process
that creates the files of an entry creates the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State, next_instant

if TYPE_CHECKING:
    from tideline_table.log.entry import Entry

FILES = "files"
"""The partition that lists the partitions and files of the table."""
CREATION_SUFFIX, COMPACTION_SUFFIX, RESTORE_SUFFIX = "010", "001", "003"
"""Suffixes of instants of the metadata table that are not instants of the table (format reference 15.2)."""
_INSTANT_DIGITS = 17
_DELTA_ACTIONS = PUBLISHING_ACTIONS | {Action.CLEAN, Action.ROLLBACK}


class Delta(NamedTuple):
    """A delta commit of the metadata table."""

    instant: str
    version: int
    """The version of its log file, which is the sequence of its entry in the table log; 0 if it has no log file."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table: its partitions, and the newest two slices of each of its file groups."""

    created: str
    """The instant of the indexing action that created it."""
    partitions: tuple[str, ...]
    max_deltas: int
    """Number of delta commits in a slice after which the next one begins a slice: the metadata table is compacted."""
    base: str
    """The base instant of the newest slice."""
    began: int
    """Sequence of the entry that began the newest slice."""
    deltas: tuple[Delta, ...] = ()
    """The delta commits in the newest slice, in the order of the log."""
    older_base: str = ""
    """The base instant of the slice before it; empty if there is none."""
    older_deltas: tuple[Delta, ...] = ()

    @property
    def instants(self) -> frozenset[str]:
        """The instants that its timeline has to show."""
        bases = (self.base, self.older_base) if self.older_base else (self.base,)
        return frozenset((*bases, *(delta.instant for delta in (*self.deltas, *self.older_deltas))))

    def after(self, entry: Entry) -> MetadataTable:
        """Return the metadata table after `entry`: with its delta commit, in a new slice if the newest one is full."""
        instant = delta_instant(entry)
        if not instant:
            return self
        # A rollback undoes an instant that the metadata table never had: its delta commit has no records.
        delta = Delta(instant, 0 if entry.action is Action.ROLLBACK else entry.sequence)
        if len(self.deltas) < self.max_deltas:
            return replace(self, deltas=(*self.deltas, delta))
        newest = max(at[:_INSTANT_DIGITS] for at in (self.base, *(known.instant for known in self.deltas)))
        base = next_instant(datetime.fromisoformat(entry.recorded), newest) + COMPACTION_SUFFIX
        return replace(self, base=base, began=entry.sequence, deltas=(delta,), older_base=self.base, older_deltas=self.deltas)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for checkpoints."""
        return {
            "created": self.created,
            "partitions": list(self.partitions),
            "max_deltas": self.max_deltas,
            "base": self.base,
            "began": self.began,
            "deltas": [list(delta) for delta in self.deltas],
            "older_base": self.older_base,
            "older_deltas": [list(delta) for delta in self.older_deltas],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MetadataTable:
        """Parse the JSON form. Raises `ValueError`, `KeyError` or `TypeError` for a document of another shape."""
        return cls(
            created=str(document["created"]),
            partitions=tuple(map(str, document["partitions"])),
            max_deltas=int(document["max_deltas"]),
            base=str(document["base"]),
            began=int(document["began"]),
            deltas=_deltas(document["deltas"]),
            older_base=str(document["older_base"]),
            older_deltas=_deltas(document["older_deltas"]),
        )


def _deltas(pairs: Iterable[Any]) -> tuple[Delta, ...]:
    return tuple(Delta(str(instant), int(version)) for instant, version in pairs)


def delta_instant(entry: Entry) -> str:
    """Return the instant of the delta commit that `entry` makes in a metadata table; empty if it makes none.

    It is the instant of the action. That of a restore is pending while its files are deleted, so readers would ignore the delta
    commit: it has a suffix, as in Apache Hudi.
    """
    if entry.action is Action.RESTORE:
        return entry.instant + RESTORE_SUFFIX if entry.begins_restore else ""
    return entry.instant if entry.action in _DELTA_ACTIONS and entry.after is State.COMPLETED else ""


def metadata_after(known: MetadataTable | None, entry: Entry) -> MetadataTable | None:
    """Return the metadata table after `entry`, None if there is none."""
    if entry.action is Action.INDEXING:
        if entry.created_index is not None:
            created = entry.created_index
            base = entry.instant + CREATION_SUFFIX
            return MetadataTable(entry.instant, created.partitions, created.max_deltas, base, entry.sequence)
        ends = known is not None and entry.after is State.ROLLED_BACK and entry.instant == known.created
        return None if ends else known
    return None if known is None else known.after(entry)
