"""Merging versions of which each says something about some of its columns only (format reference 16.3).

A cell that a version leaves open takes the value of the version that it lies upon. Which of two versions lies on top is decided by the merge
mode; a deletion leaves nothing to lie upon. Hudi merges the events of a log one after the other, and by event time the outcome depends on
that order, so the fold goes through the events of all keys in step: first events, second events, and so on.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.merge.fold import EventKind, LogEvents, comparable, one_chunk
from tideline_table.merge.mode import MergeMode
from tideline_table.merge.ordering import incoming_wins


class OpenCells(enum.Enum):
    """Which cells a version leaves open."""

    NULLS = "IGNORE_DEFAULTS"
    """Those with the default value of their column, which is null."""
    MARKED = "FILL_UNAVAILABLE"
    """Texts and bytes that say that the value was not available."""


@dataclass(frozen=True, slots=True)
class PartialUpdate:
    """How a table's records are open: by value, besides records of which the log holds parts only."""

    cells: OpenCells
    marker: str = ""
    """The text that stands for a value that was not available."""
    by_payload: bool = False
    """As the payload class does it that tables before version 9 have for this: a merged record carries the meta fields of the later write even
    where that lies below."""

    def is_filled(self, column: pa.ChunkedArray | pa.Array) -> np.ndarray | None:
        """True for each value that counts, None where all do."""
        if self.cells is OpenCells.NULLS:
            return np.asarray(pc.is_valid(column)) if column.null_count else None
        kind = column.type
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return None
        marker = pa.scalar(self.marker if pa.types.is_string(kind) else self.marker.encode(), kind)
        marked = np.asarray(pc.fill_null(pc.equal(column, marker), fill_value=False))
        return ~marked if marked.any() else None


@dataclass(frozen=True, slots=True)
class PartsOutcome:
    """What the log says about each key in the end.

    `tops` are the positions of the events on top. `cells` holds, for columns that some version leaves open, the position of the event whose
    value counts; `filled` whether the value counts also over that of the base file.
    """

    keys: pa.Array
    tops: np.ndarray
    kinds: np.ndarray
    ordering: pa.ChunkedArray | None
    cells: Mapping[str, np.ndarray]
    filled: Mapping[str, np.ndarray]
    behind_deletions: np.ndarray
    """Positions of records that follow upon a deletion of their key."""
    mode: MergeMode

    def wins_over(self, targets: np.ndarray, base_ordering: pa.ChunkedArray | None) -> np.ndarray:
        """For base rows that meet these keys (by number): True where the log lies on top."""
        if self.mode is not MergeMode.EVENT_TIME or not len(targets):
            return np.ones(len(targets), dtype=bool)
        assert base_ordering is not None
        assert self.ordering is not None
        mine = self.ordering.take(pa.array(targets))
        wins: np.ndarray = incoming_wins(base_ordering, mine) | (self.kinds[targets] == EventKind.PURGE)
        return wins


def fold_parts(events: LogEvents, mode: MergeMode, filled: Mapping[str, np.ndarray], latest: Collection[str] = ()) -> PartsOutcome:
    """One version per key. `filled` says for each event whether its value of a column counts; columns whose values all count are left out.

    Of the columns `latest` the value of the later event counts, whichever lies on top.
    """
    codes = one_chunk(pc.dictionary_encode(events.keys))
    number = codes.indices.to_numpy(zero_copy_only=False)
    order = _order(events) if mode is MergeMode.EVENT_TIME else None
    count = len(codes.dictionary)
    fold = _Fold(
        events.kinds, order, {**filled, **dict.fromkeys(latest, np.ones(len(number), dtype=bool))}, frozenset(latest), count
    )
    for positions in _in_step(number, count):
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


def _order(events: LogEvents) -> np.ndarray:
    """Numbers that sort as the ordering values of the events do."""
    assert events.ordering is not None
    weight, rank = comparable(events.ordering)
    order = np.lexsort((rank, weight))
    steps = (weight[order][1:] != weight[order][:-1]) | (rank[order][1:] != rank[order][:-1])
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.concatenate(([0], np.cumsum(steps)))[: len(order)]
    return found


def _in_step(number: np.ndarray, count: int) -> list[np.ndarray]:
    """The positions of the first event of each key, of the second, and so on."""
    by_key = np.argsort(number, kind="stable")
    sizes = np.bincount(number, minlength=count)
    nth = np.empty(len(number), dtype=np.int64)
    nth[by_key] = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    steps = np.argsort(nth, kind="stable")
    return np.split(steps, np.cumsum(np.bincount(nth))[:-1])


class _Fold:
    """The versions so far, one for each key."""

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
            # On top of a record an event gives what it fills; below one it gives what that left open; alone it gives all it has.
            taken = np.where(wins, mine | ~both, both & ((name in self._latest) | ~before))
            self.cells[name][keys] = np.where(taken, events, self.cells[name][keys])
            self.filled[name][keys] = np.where(both, mine | before, np.where(wins, mine, before))

    def _wins(self, events: np.ndarray, known: np.ndarray) -> np.ndarray:
        if self._order is None:
            return np.ones(len(events), dtype=bool)
        purged = (self._kinds[events] == EventKind.PURGE) | (self._kinds[known] == EventKind.PURGE)
        found: np.ndarray = purged | (self._order[events] >= self._order[known])
        return found
