"""Merging of versions that each set only some columns of a record (format reference 16.3).

A cell that a version leaves open takes the value of the version below it. The merge mode decides which of two versions lies on top;
a deletion leaves no values below. Hudi merges the events of a log one after the other, and by event time the outcome depends on
that order. So the fold adds the events of all keys in step: the first event of every key, then the second ones, and so on.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.merge.fold import EventKind, LogEvents, comparable, dense_ranks, events_win
from tideline_table.merge.mode import MergeMode
from tideline_table.schema.arrow import one_chunk


class OpenCells(enum.Enum):
    """Which cells a version leaves open."""

    NULLS = "IGNORE_DEFAULTS"
    """Cells with the default value of their column, which is null."""
    MARKED = "FILL_UNAVAILABLE"
    """Text and bytes cells with the marker of a value that was not available."""


@dataclass(frozen=True, slots=True)
class PartialUpdate:
    """Which values leave cells of a record open, in addition to partial records in the log."""

    cells: OpenCells
    marker: str = ""
    """The text that stands for a value that was not available."""
    by_payload: bool = False
    """Behave as the payload class for partial updates (tables before version 9): a merged record has the meta fields of the later
    write even if that lies below, and rows of one input are merged cell by cell, too."""
    fills_below: bool = True
    """Whether the version below fills cells that the version on top leaves open."""

    def is_filled(self, column: pa.ChunkedArray | pa.Array) -> np.ndarray | None:
        """Return True for each value that counts, None if all do."""
        if self.cells is OpenCells.NULLS:
            return np.asarray(pc.is_valid(column)) if column.null_count else None
        kind = column.type
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return None
        marker = pa.scalar(self.marker if pa.types.is_string(kind) else self.marker.encode(), kind)
        marked = np.asarray(pc.fill_null(pc.equal(column, marker), fill_value=False))
        return ~marked if marked.any() else None


def from_newer(partial: PartialUpdate | None, wins: np.ndarray, filled: np.ndarray | None, old: pa.ChunkedArray) -> np.ndarray:
    """Return True pairwise, for one column, where the newer version's value counts.

    It counts if that version is on top (`wins`) and fills the cell (`filled`, None: all do), or if it is below an open cell of
    `old`.
    """
    above = wins if filled is None else wins & filled
    own = partial.is_filled(old) if partial is not None and partial.fills_below else None
    return above if own is None else above | (~wins & ~own)


def chosen_cells(new: pa.ChunkedArray, old: pa.ChunkedArray, from_new: np.ndarray) -> pa.ChunkedArray:
    """Return pairwise the value of `new` where `from_new`, else that of `old`."""
    if from_new.all():
        return new
    if not from_new.any():
        return old
    at = np.arange(len(from_new))
    return pa.chunked_array([*new.chunks, *old.chunks], new.type).take(pa.array(np.where(from_new, at, at + len(from_new))))


@dataclass(frozen=True, slots=True)
class PartsOutcome:
    """The result of folding a log: one version per key.

    `tops` are the positions of the events on top. `cells` holds, for columns that some version leaves open, the position of the
    event whose value counts; `filled` says whether that value also counts over the base file's.
    """

    keys: pa.Array
    tops: np.ndarray
    kinds: np.ndarray
    ordering: pa.ChunkedArray | None
    cells: Mapping[str, np.ndarray]
    filled: Mapping[str, np.ndarray]
    behind_deletions: np.ndarray
    """Positions of records that follow a deletion of their key."""
    mode: MergeMode

    def wins_over(self, targets: np.ndarray, base_ordering: pa.ChunkedArray | None) -> np.ndarray:
        """Return True for each base row that meets one of these keys (by number) where the log lies on top."""
        if self.mode is not MergeMode.EVENT_TIME or not len(targets):
            return np.ones(len(targets), dtype=bool)
        assert base_ordering is not None
        return events_win(base_ordering, self.ordering, self.kinds == EventKind.PURGE, targets)


def fold_parts(events: LogEvents, mode: MergeMode, filled: Mapping[str, np.ndarray], latest: Collection[str] = ()) -> PartsOutcome:
    """Return one version per key.

    `filled` says for each event whether its value of a column counts; columns whose values all count are left out. In the columns
    `latest`, the value of the later event counts, whichever lies on top.
    """
    codes = one_chunk(pc.dictionary_encode(events.keys))
    number = codes.indices.to_numpy(zero_copy_only=False)
    order = None
    if mode is MergeMode.EVENT_TIME:
        assert events.ordering is not None
        order = dense_ranks(comparable(events.ordering))
    count = len(codes.dictionary)
    given = {**filled, **dict.fromkeys(latest, np.ones(len(number), dtype=bool))}
    fold = _Fold(events.kinds, order, given, frozenset(latest), count)
    for positions in in_step(number, count):
        fold.add(number[positions], positions)
    return PartsOutcome(
        keys=codes.dictionary,
        tops=fold.tops,
        kinds=events.kinds[fold.tops],
        ordering=events.ordering.take(pa.array(fold.tops)) if events.ordering is not None else None,
        cells=fold.cells,
        filled=fold.filled,
        behind_deletions=np.sort(np.concatenate(fold.behind_deletions)),
        mode=mode,
    )


def in_step(number: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the positions of the first event of each key, of the second, and so on."""
    by_key = np.argsort(number, kind="stable")
    sizes = np.bincount(number, minlength=count)
    nth = np.empty(len(number), dtype=np.int64)
    nth[by_key] = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    steps = np.argsort(nth, kind="stable")
    return np.split(steps, np.cumsum(np.bincount(nth))[:-1])


class _Fold:
    """The versions merged so far, one for each key."""

    def __init__(
        self, kinds: np.ndarray, order: np.ndarray | None, filled: Mapping[str, np.ndarray], latest: frozenset[str], count: int
    ) -> None:
        self._kinds = kinds
        self._order = order
        self._given = filled
        self._latest = latest
        self.tops = np.full(count, -1, dtype=np.int64)
        self.cells = {name: np.full(count, -1, dtype=np.int64) for name in filled}
        self.filled = {name: np.zeros(count, dtype=bool) for name in filled}
        self.behind_deletions = [np.empty(0, dtype=np.int64)]

    def add(self, keys: np.ndarray, events: np.ndarray) -> None:
        """Merge events of different keys, each the next one of its key."""
        known = self.tops[keys]
        first = known < 0
        wins = first | self._wins(events, known)
        both = ~first & (self._kinds[events] == EventKind.RECORD) & (self._kinds[known] == EventKind.RECORD)
        self.tops[keys] = np.where(wins, events, known)
        self.behind_deletions.append(events[wins & ~first & ~both & (self._kinds[events] == EventKind.RECORD)])
        for name, given in self._given.items():
            mine, before = given[events], self.filled[name][keys]
            # On top of a record, an event sets the cells that it fills; below one, those left open; without one, all that it has.
            taken = np.where(wins, mine | ~both, both & ((name in self._latest) | ~before))
            self.cells[name][keys] = np.where(taken, events, self.cells[name][keys])
            self.filled[name][keys] = np.where(both, mine | before, np.where(wins, mine, before))

    def _wins(self, events: np.ndarray, known: np.ndarray) -> np.ndarray:
        if self._order is None:
            return np.ones(len(events), dtype=bool)
        purged = (self._kinds[events] == EventKind.PURGE) | (self._kinds[known] == EventKind.PURGE)
        found: np.ndarray = purged | (self._order[events] >= self._order[known])
        return found
