"""Folding of log events to one per key, and their application to base rows (format reference 10.3, 10.4).

Pure functions on columns. Positions count the events of all blocks in the order in which they apply.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.merge.mode import MergeMode
from tideline_table.merge.ordering import incoming_wins
from tideline_table.schema.arrow import is_text, one_chunk


class EventKind(enum.IntEnum):
    """The effect of one block entry on its key."""

    RECORD = 0
    DELETE = 1
    """A deletion that carries an ordering value."""
    PURGE = 2
    """A deletion that wins over everything before it, regardless of ordering values (Hudi's commit-time delete)."""


@dataclass(frozen=True, slots=True)
class LogEvents:
    """Entries of the blocks that apply, in order. `ordering` is None if the merge mode needs none."""

    keys: pa.ChunkedArray
    kinds: np.ndarray
    ordering: pa.ChunkedArray | None = None


@dataclass(frozen=True, slots=True)
class LogOutcome:
    """The result of folding a log: one event per key, ascending by position."""

    positions: np.ndarray
    keys: pa.Array
    kinds: np.ndarray
    ordering: pa.ChunkedArray | None
    """The largest ordering value among the events of each key that count: a base row with a larger one lies on top."""
    purged: np.ndarray
    """True for each key whose base row is gone, whatever its ordering value."""
    behind: np.ndarray
    """True for each key whose event is a record that follows a deletion which counts, too."""
    mode: MergeMode

    def against_base(self, keys: pa.ChunkedArray, ordering: pa.ChunkedArray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return which base rows with these keys and ordering values stay, and which events lost to a base row.

        `ordering` is needed only if `needs_ordering`. Of rows with the same key, only the first meets the event, as in Apache Hudi.
        """
        rows, targets = first_matches(keys, self.keys)
        wins = np.ones(len(targets), dtype=bool)
        if self.needs_ordering and len(targets):
            assert ordering is not None
            wins = events_win(ordering.take(pa.array(rows)), self.ordering, self.purged, targets)
        stays = np.ones(len(keys), dtype=bool)
        stays[rows[wins]] = False
        lost = np.zeros(len(self.keys), dtype=bool)
        lost[targets[~wins]] = True
        return stays, lost

    @property
    def needs_ordering(self) -> bool:
        """Whether ordering values of base rows decide anything."""
        return self.mode is MergeMode.EVENT_TIME and not self.purged.all()


def events_win(base: pa.ChunkedArray, ordering: pa.ChunkedArray | None, purged: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return True, by event time, for each base row (by its ordering value) on which the events of key `targets[i]` lie on top."""
    assert ordering is not None
    later = incoming_wins(base, ordering.take(pa.array(targets)))
    return np.asarray(later | purged[targets])


def first_matches(keys: pa.ChunkedArray, events: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in `keys` that have an event, ascending, and the event of each; events count for the first one only."""
    found = pc.index_in(keys, value_set=events)
    rows = np.flatnonzero(np.asarray(pc.is_valid(found)))
    targets = np.asarray(found.drop_null())
    seen, first = np.unique(targets, return_index=True)
    if len(seen) < len(targets):
        first.sort()
        rows, targets = rows[first], targets[first]
    return rows, targets


def fold_events(events: LogEvents, mode: MergeMode, *, forgets_deletions: bool = False) -> LogOutcome:
    """Return one event per key.

    By commit time, the last one. By event time, the largest ordering value since the last purge, the later one on ties; nulls lose
    to all values, NaN wins over all. A purge stays until a later record or deletion of the key. `forgets_deletions` is as in
    `Merging`: then a deletion that wins ends what was before it, and events behind it compare with each other only.
    """
    codes = one_chunk(pc.dictionary_encode(events.keys))
    number = codes.indices.to_numpy(zero_copy_only=False)
    found = None
    if len(codes.dictionary) == len(number):
        winners = np.arange(len(number))
    else:
        winners = np.empty(len(codes.dictionary), dtype=np.int64)
        winners[number] = np.arange(len(number))
        if mode is MergeMode.EVENT_TIME:
            assert events.ordering is not None
            contested = np.flatnonzero(np.bincount(number)[number] > 1)
            found = _contest(
                number[contested], events.kinds[contested], events.ordering.take(pa.array(contested)), forgets=forgets_deletions
            )
            newest = contested[found.newest]
            winners[number[newest]] = newest
    if found is None or not found.outlives_deletions:
        winners.sort()
        strongest, purged = winners, events.kinds[winners] == EventKind.PURGE
    else:
        strongest = winners.copy()
        strongest[number[contested[found.strongest]]] = contested[found.strongest]
        purged = events.kinds[winners] == EventKind.PURGE
        purged[number[contested[found.purges]]] = True
        order = np.argsort(winners)
        winners, strongest, purged = winners[order], strongest[order], purged[order]
    chosen = pa.array(winners)
    return LogOutcome(
        positions=winners,
        keys=one_chunk(events.keys.take(chosen)),
        kinds=events.kinds[winners],
        ordering=events.ordering.take(pa.array(strongest)) if events.ordering is not None else None,
        purged=purged,
        behind=(events.kinds[winners] == EventKind.RECORD) & (purged | (strongest != winners)),
        mode=mode,
    )


@dataclass(frozen=True, slots=True)
class _Contest:
    """Positions of events of keys with several events, by event time, one for each key."""

    newest: np.ndarray
    """The event that decides what the key is now."""
    strongest: np.ndarray
    """The event with the largest ordering value since the last purge."""
    purges: np.ndarray
    """The last purge of each key that has one, if purges count although later events follow."""

    @property
    def outlives_deletions(self) -> bool:
        """Whether a deletion counts for base rows that is not the newest event of its key."""
        return self.newest is not self.strongest or bool(len(self.purges))


def _contest(keys: np.ndarray, kinds: np.ndarray, ordering: pa.ChunkedArray, *, forgets: bool) -> _Contest:
    positions = np.arange(len(keys))
    count = int(keys.max()) + 1
    purged = np.full(count, -1, dtype=np.int64)
    purges = np.flatnonzero(kinds == EventKind.PURGE)
    purged[keys[purges]] = purges
    weight, rank = comparable(ordering)
    if not forgets:
        weight[purges] = 0
        newest = _largest(positions[positions >= purged[keys]], keys, weight, rank)
        return _Contest(newest, newest, purges[:0])
    # The purge itself counts only if nothing follows.
    follows = positions > purged[keys]
    alone = purged[purged >= 0]
    alone = alone[np.bincount(keys[follows], minlength=count)[keys[alone]] == 0]
    newest = strongest = np.concatenate([_largest(positions[follows], keys, weight, rank), alone])
    while True:
        # Behind a deletion that won, only later events remain.
        ended = np.full(count, len(keys), dtype=np.int64)
        over = newest[kinds[newest] == EventKind.DELETE]
        ended[keys[over]] = over
        rest = np.flatnonzero(positions > ended[keys]) if len(over) else over
        if not len(rest):
            return _Contest(newest, strongest, purged[purged >= 0])
        later = _largest(rest, keys, weight, rank)
        newest = np.concatenate([newest[~np.isin(keys[newest], keys[later])], later])


def _largest(among: np.ndarray, keys: np.ndarray, weight: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return the event of each key with the largest ordering value, the later one on ties, among these (ascending)."""
    # lexsort is stable: of equal values, the later one is last.
    order = among[np.lexsort((rank[among], weight[among], keys[among]))]
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)[: len(order)]
    found: np.ndarray = order[is_last]
    return found


def comparable(ordering: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that sort as the values do: first 1 for null, 2 for a value, 3 for NaN; then the rank among values.

    Values of several ordering fields are structs, compared member by member.
    """
    values = one_chunk(ordering)
    if pa.types.is_struct(values.type):
        return _comparable_members(values)
    weight = np.where(np.asarray(pc.is_valid(values)), 2, 1).astype(np.int8)
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(values, 0.0))
        weight[np.isnan(numbers)] = 3
        return weight, np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return weight, np.asarray(pc.fill_null(values, 0)).astype(np.int64)
    if pa.types.is_timestamp(kind) or (pa.types.is_time(kind) and kind.bit_width == 64):
        return weight, np.asarray(pc.fill_null(values.cast(pa.int64()), 0))
    return weight, np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)


def _comparable_members(values: pa.StructArray) -> tuple[np.ndarray, np.ndarray]:
    keys = [key for member in values.flatten() for key in comparable(member)]
    return np.where(np.asarray(pc.is_valid(values)), 2, 1).astype(np.int8), dense_ranks(keys)


def dense_ranks(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Return numbers that sort as rows do by these keys, the first one first; equal rows have equal numbers."""
    order = np.lexsort(keys[::-1])
    steps = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        steps |= key[order][1:] != key[order][:-1]
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(steps)))[: len(order)]
    return ranks


def comparable_ordering(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return ordering values of a delete block in the type of the ordering column, None if the two types do not compare.

    Java compares values of one class only, and a deletion whose value does not compare wins. Delete blocks hold dates and
    timestamps as such or as their numbers.
    """
    found = values.type
    if found == kind:
        return values
    if pa.types.is_null(found):
        return pa.chunked_array([pa.nulls(len(values), kind)])
    if pa.types.is_struct(kind):
        return _comparable_structs(values, kind)
    if pa.types.is_timestamp(kind):
        if pa.types.is_timestamp(found):
            return values.cast(pa.timestamp(found.unit)).cast(pa.timestamp(kind.unit), safe=False).cast(kind)
        return values.cast(pa.timestamp(kind.unit)).cast(kind) if found == pa.int64() else None
    if pa.types.is_date32(kind) or pa.types.is_time(kind):
        return values.cast(kind) if pa.types.is_integer(found) and found.bit_width == kind.bit_width else None
    if (pa.types.is_decimal(kind) and pa.types.is_decimal(found)) or (is_text(kind) and is_text(found)):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            return None
    return None


def _comparable_structs(values: pa.ChunkedArray, kind: pa.StructType) -> pa.ChunkedArray | None:
    """Return values of several ordering fields; None if one member does not compare."""
    if not pa.types.is_struct(values.type) or values.type.num_fields != kind.num_fields:
        return None
    one = one_chunk(values)
    members: list[pa.Array] = []
    for at in range(kind.num_fields):
        found = comparable_ordering(pa.chunked_array([one.field(at)]), kind.field(at).type)
        if found is None:
            return None
        members.append(one_chunk(found))
    mask = one.is_null() if one.null_count else None
    return pa.chunked_array([pa.StructArray.from_arrays(members, fields=list(kind), mask=mask)], kind)
