"""The metadata table of an exclusive table, as the fold of the table log knows it (format reference 15). No I/O.

Entries of the log decide when it begins and ends, which of them make a delta commit in it, and when it is compacted. So every
process that creates the files of an entry creates the same files.

Entries with completion times belong to tables whose timeline files name them (layout 2). There a log file is named after its
delta commit and belongs to the newest slice that is not younger than the completion of it; in the other tables it is named after
its slice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State, next_instant, shifted
from tideline_table.log.entry import Entry

FILES = "files"
"""The partition that lists the partitions and files of the table."""
COLUMN_STATS = "column_stats"
"""The partition with statistics of columns of data files."""
BLOOM_FILTERS = "bloom_filters"
"""The partition with the Bloom filters of base files."""
PARTITION_STATS = "partition_stats"
"""The partition with statistics of columns of all files of a partition of the table."""
RECORD_INDEX = "record_index"
"""The partition that says in which file group of the table each record key is."""
CREATION_SUFFIX, COMPACTION_SUFFIX, RESTORE_SUFFIX = "010", "001", "003"
"""Suffixes of instants of the metadata table that are not instants of the table (format reference 15.2)."""
INSTANT_DIGITS = 17
"""Digits of an instant of the table. Those of the metadata table may have a suffix."""
_DELTA_ACTIONS = PUBLISHING_ACTIONS | {Action.CLEAN, Action.ROLLBACK}


class DeltaKind(enum.StrEnum):
    """What an action does to records that it did not make. Recorded in layout 2 only."""

    PLAIN = ""
    CLEAN = "clean"
    REPLACE = "replace"
    """It replaces file groups, so that keys change their places."""
    RESTORE = "restore"


class Delta(NamedTuple):
    """A delta commit of the metadata table."""

    instant: str
    version: int
    """The version of its log file, which is the sequence of its entry in the table log; 0 if it has no log file."""
    completion: str = ""
    """Its completion time, which is that of its entry; empty if names of timeline files have none."""
    kind: DeltaKind = DeltaKind.PLAIN

    def to_json(self) -> list[Any]:
        """Return the JSON form for checkpoints."""
        return [*self] if self.completion else [self.instant, self.version]


@dataclass(frozen=True, slots=True)
class MetadataPartition:
    """One partition of a metadata table: its file groups, and the newest two slices that all of them have in common."""

    name: str
    created: str
    """The instant of the indexing action that created it."""
    base: str
    """The base instant of the newest slice."""
    began: int
    """Sequence of the entry that began the newest slice."""
    file_groups: int = 1
    deltas: tuple[Delta, ...] = ()
    """The delta commits in the newest slice, in the order of the log. Not each of them has a log file in each file group."""
    older_base: str = ""
    """The base instant of the slice before it; empty if there is none."""
    older_deltas: tuple[Delta, ...] = ()
    columns: tuple[str, ...] = ()
    """The columns that a partition of column statistics has records of."""
    completion: str = ""
    """The completion time of the instant `base`; empty if names of timeline files have none."""
    older_completion: str = ""
    """That of `older_base`."""

    @property
    def first_base(self) -> str:
        """The base instant of the slice that its creation began."""
        return self.created if self.completion else self.created + CREATION_SUFFIX

    @property
    def begins_by_restore(self) -> bool:
        """Whether the newest slice begins with a restore: what the slice before it says was taken back."""
        if not self.deltas:
            return False
        first = self.deltas[0]
        return first.kind is DeltaKind.RESTORE or (first.instant.endswith(RESTORE_SUFFIX) and len(first.instant) > INSTANT_DIGITS)

    @property
    def log_instants(self) -> frozenset[str]:
        """The instants in the names of the log files of the newest slice."""
        return frozenset((self.base, *(delta.instant for delta in self.deltas))) if self.completion else frozenset((self.base,))

    @property
    def instants(self) -> frozenset[str]:
        """The instants that the timeline of the metadata table has to show for this partition."""
        bases = (self.base, self.older_base) if self.older_base else (self.base,)
        return frozenset((*bases, *(delta.instant for delta in (*self.deltas, *self.older_deltas))))

    @property
    def newest_instant(self) -> str:
        """The newest instant of the table, in 17 digits, that the newest slice knows."""
        return max(at[:INSTANT_DIGITS] for at in (self.base, *(known.instant for known in self.deltas)))

    def with_delta(self, delta: Delta, max_deltas: int, entry: Entry, next_base: str) -> MetadataPartition:
        """Return the partition after `entry`: with its delta commit, in a new slice at `next_base` if the newest one is full.

        A restore also begins one in every partition but `files`.
        """
        # What a restore takes back is not in its records: partitions that read files begin anew from the restored table.
        begins = (entry.begins_restore and self.name != FILES) or self._comes_late(delta)
        if len(self.deltas) < max_deltas and not begins:
            return replace(self, deltas=(*self.deltas, delta))
        fresh = replace(self, base=next_base, began=entry.sequence, deltas=(delta,), older_base=self.base, older_deltas=self.deltas)
        if not delta.completion:
            return fresh
        return replace(fresh, completion=shifted(next_base, 1), older_completion=self.completion)

    def _comes_late(self, delta: Delta) -> bool:
        """Return whether readers would merge a delta commit before an older one of the newest slice, to another result.

        In layout 2 they merge log files in the order of their instants. Mostly that does not matter: records of different
        actions are of different files, and writers of the same keys conflict. But a clean ends a partition that a write which
        began before it brings back, and a clustering moves keys that a write has put beside it since.
        """
        if not delta.completion or not delta.version:
            return False
        overtaken = [held for held in self.deltas if held.instant > delta.instant]
        if self.name == FILES:
            publishes = delta.kind in (DeltaKind.PLAIN, DeltaKind.REPLACE)
            return publishes and any(held.kind is DeltaKind.CLEAN for held in overtaken)
        return self.name == RECORD_INDEX and any(DeltaKind.REPLACE in (held.kind, delta.kind) for held in overtaken)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for checkpoints."""
        return {
            "name": self.name,
            "created": self.created,
            "base": self.base,
            "began": self.began,
            "file_groups": self.file_groups,
            "deltas": [delta.to_json() for delta in self.deltas],
            "older_base": self.older_base,
            "older_deltas": [delta.to_json() for delta in self.older_deltas],
            **({"columns": list(self.columns)} if self.columns else {}),
            **({"completion": self.completion, "older_completion": self.older_completion} if self.completion else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MetadataPartition:
        """Parse the JSON form. Raises `ValueError`, `KeyError` or `TypeError` for a document of another shape."""
        return cls(
            name=str(document["name"]),
            created=str(document["created"]),
            base=str(document["base"]),
            began=int(document["began"]),
            file_groups=int(document["file_groups"]),
            deltas=_deltas(document["deltas"]),
            older_base=str(document["older_base"]),
            older_deltas=_deltas(document["older_deltas"]),
            columns=tuple(map(str, document.get("columns") or ())),
            completion=str(document.get("completion", "")),
            older_completion=str(document.get("older_completion", "")),
        )


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table: its partitions, `files` first."""

    partitions: tuple[MetadataPartition, ...]
    max_deltas: int
    """Number of delta commits in a slice after which the next one begins a slice: the partition is compacted."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its partitions."""
        return tuple(part.name for part in self.partitions)

    @property
    def files(self) -> MetadataPartition:
        """The partition `files`, which every metadata table has."""
        return self.partitions[0]

    def partition(self, name: str) -> MetadataPartition | None:
        """Return the partition `name`, None if there is none."""
        return next((part for part in self.partitions if part.name == name), None)

    @property
    def instants(self) -> frozenset[str]:
        """The instants that its timeline has to show."""
        return frozenset().union(*(part.instants for part in self.partitions))

    def after(self, entry: Entry) -> MetadataTable:
        """Return the metadata table after `entry`: each partition with its delta commit.

        Those that are full begin a slice together.
        """
        instant = delta_instant(entry)
        if not instant:
            return self
        # A rollback undoes an instant that the metadata table never had: its delta commit has no records, unless it renamed log
        # files.
        has_records = entry.action is not Action.ROLLBACK or bool(entry.moved_logs)
        version = entry.sequence if has_records else 0
        if entry.completion:
            delta = Delta(instant, version, entry.completion, _kind_of(entry))
            # No instant equals a completion time. So it is free, later than all that the slices before it have, and not later than
            # the completion of this delta commit, which it precedes.
            base = entry.completion
        else:
            delta = Delta(instant, version)
            newest = max(part.newest_instant for part in self.partitions)
            base = next_instant(datetime.fromisoformat(entry.recorded), newest) + COMPACTION_SUFFIX
        return replace(self, partitions=tuple(part.with_delta(delta, self.max_deltas, entry, base) for part in self.partitions))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for checkpoints."""
        return {"max_deltas": self.max_deltas, "partitions": [part.to_json() for part in self.partitions]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MetadataTable:
        """Parse the JSON form. Raises `ValueError`, `KeyError` or `TypeError` for a document of another shape.

        Checkpoints of earlier releases know the partition `files` only, by its name, and have its fields beside it.
        """
        parts = document["partitions"]
        if parts == [FILES]:
            parts = [{**document, "name": FILES, "file_groups": 1}]
        if not parts or parts[0]["name"] != FILES:
            raise ValueError("a metadata table whose first partition is not files")
        return cls(tuple(map(MetadataPartition.from_json, parts)), int(document["max_deltas"]))


def _deltas(rows: Iterable[Any]) -> tuple[Delta, ...]:
    return tuple(_delta(*row) for row in rows)


def _delta(instant: object, version: Any, completion: object = "", kind: Any = "") -> Delta:
    return Delta(str(instant), int(version), str(completion), DeltaKind(kind))


def _kind_of(entry: Entry) -> DeltaKind:
    kinds = {Action.CLEAN: DeltaKind.CLEAN, Action.REPLACE_COMMIT: DeltaKind.REPLACE, Action.RESTORE: DeltaKind.RESTORE}
    return kinds.get(entry.action, DeltaKind.PLAIN)


def delta_instant(entry: Entry) -> str:
    """Return the instant of the delta commit that `entry` makes in a metadata table; empty if it makes none.

    It is the instant of the action. That of a restore is pending while its files are deleted, so readers would ignore the delta
    commit: it has a suffix, as in Apache Hudi. In layout 2 it is the millisecond before the completion time, which is free then
    (`two_times`).
    """
    if entry.action is Action.RESTORE:
        if not entry.begins_restore:
            return ""
        return shifted(entry.completion, -1) if entry.completion else entry.instant + RESTORE_SUFFIX
    return entry.instant if entry.action in _DELTA_ACTIONS and entry.after is State.COMPLETED else ""


def two_times(next_time: str) -> str:
    """Return the completion time of the entry that begins a restore, if `next_time` is later than all times of the log.

    Readers ignore it on the table's timeline. In the metadata table, the time before it is the instant of the delta commit, and
    it is the base instant of the slices that begin with it.
    """
    return shifted(next_time, 1)


def metadata_after(known: MetadataTable | None, entry: Entry) -> MetadataTable | None:
    """Return the metadata table after `entry`, None if there is none."""
    if entry.action is not Action.INDEXING:
        return None if known is None else known.after(entry)
    created = entry.created_index
    if created is not None:
        base = entry.instant if entry.completion else entry.instant + CREATION_SUFFIX
        fresh = tuple(
            MetadataPartition(
                name,
                entry.instant,
                base,
                entry.sequence,
                created.groups_of(name),
                columns=created.columns if name == COLUMN_STATS else (),
                completion=entry.completion,
            )
            for name in created.partitions
        )
        begins = known is None or FILES in created.partitions
        kept = () if begins or known is None else tuple(part for part in known.partitions if part.name not in created.partitions)
        return MetadataTable((*kept, *fresh), created.max_deltas if begins or known is None else known.max_deltas)
    if known is None or entry.after is not State.ROLLED_BACK:
        return known
    if entry.instant == known.files.created:
        return None
    return replace(known, partitions=tuple(part for part in known.partitions if part.created != entry.instant))
