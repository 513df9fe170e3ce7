"""Folding what the log of a file slice says about each key, and applying it to base rows (format reference 10.3, 10.4).

Pure functions on columns. Positions count the events of all blocks in the order in which they apply.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.merge.mode import MergeMode
from tideline_table.merge.ordering import incoming_wins


class EventKind(enum.IntEnum):
    """What one entry of a block does to its key."""

    RECORD = 0
    DELETE = 1
    """A deletion that carries an ordering value."""
    PURGE = 2
    """A deletion that wins over everything before it, whatever the ordering values (Hudi's commit-time delete)."""


@dataclass(frozen=True, slots=True)
class LogEvents:
    """Entries of the blocks that count, in the order in which they apply. `ordering` is None where the mode needs none."""

    keys: pa.ChunkedArray
    kinds: np.ndarray
    ordering: pa.ChunkedArray | None = None


@dataclass(frozen=True, slots=True)
class LogOutcome:
    """What the log says in the end: one event per key, ascending by position."""

    positions: np.ndarray
    keys: pa.Array
    kinds: np.ndarray
    ordering: pa.ChunkedArray | None
    mode: MergeMode

    def against_base(self, keys: pa.ChunkedArray, ordering: pa.ChunkedArray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """For base rows with these keys and ordering values: True where the row stays; and True for each event that lost to a base row.

        `ordering` may be left out where `needs_ordering` is false. Of rows with the same key only the first one meets the event, as in Apache Hudi.
        """
        rows, targets = first_matches(keys, self.keys)
        wins = np.ones(len(targets), dtype=bool)
        if self.needs_ordering and len(targets):
            assert ordering is not None
            assert self.ordering is not None
            mine = self.ordering.take(pa.array(targets))
            wins = incoming_wins(ordering.take(pa.array(rows)), mine) | (self.kinds[targets] == EventKind.PURGE)
        stays = np.ones(len(keys), dtype=bool)
        stays[rows[wins]] = False
        lost = np.zeros(len(self.keys), dtype=bool)
        lost[targets[~wins]] = True
        return stays, lost

    @property
    def needs_ordering(self) -> bool:
        """Whether ordering values of base rows decide anything."""
        return self.mode is MergeMode.EVENT_TIME and bool((self.kinds != EventKind.PURGE).any())


def first_matches(keys: pa.ChunkedArray, events: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a base file, by their `keys`, that an event is about, ascending, and which one; each event counts for the first such row."""
    found = pc.index_in(keys, value_set=events)
    rows = np.flatnonzero(np.asarray(pc.is_valid(found)))
    targets = np.asarray(found.drop_null())
    seen, first = np.unique(targets, return_index=True)
    if len(seen) < len(targets):
        first.sort()
        rows, targets = rows[first], targets[first]
    return rows, targets


def fold_events(events: LogEvents, mode: MergeMode) -> LogOutcome:
    """One event per key.

    By commit time the last one. By event time the largest ordering value since the last purge, the later one on ties; nulls lose against
    all values, NaN wins against all. A purge stays until a later record or deletion of the key.
    """
    codes = one_chunk(pc.dictionary_encode(events.keys))
    number = codes.indices.to_numpy(zero_copy_only=False)
    if len(codes.dictionary) == len(number):
        winners = np.arange(len(number))
    else:
        winners = np.empty(len(codes.dictionary), dtype=np.int64)
        winners[number] = np.arange(len(number))
        if mode is MergeMode.EVENT_TIME:
            assert events.ordering is not None
            contested = np.flatnonzero(np.bincount(number)[number] > 1)
            best = _newest(number[contested], events.kinds[contested], events.ordering.take(pa.array(contested)))
            winners[number[contested[best]]] = contested[best]
        winners.sort()
    chosen = pa.array(winners)
    return LogOutcome(
        positions=winners,
        keys=one_chunk(events.keys.take(chosen)),
        kinds=events.kinds[winners],
        ordering=events.ordering.take(chosen) if events.ordering is not None else None,
        mode=mode,
    )


def _newest(keys: np.ndarray, kinds: np.ndarray, ordering: pa.ChunkedArray) -> np.ndarray:
    """Position of the winner of each key, by event time."""
    positions = np.arange(len(keys))
    purged = np.full(int(keys.max()) + 1, -1, dtype=np.int64)
    purges = np.flatnonzero(kinds == EventKind.PURGE)
    purged[keys[purges]] = purges
    live = np.flatnonzero(positions >= purged[keys])
    weight, rank = comparable(ordering)
    weight[purges] = 0
    # lexsort is stable: of equal values the later one comes last.
    order = live[np.lexsort((rank[live], weight[live], keys[live]))]
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)
    found: np.ndarray = order[is_last]
    return found


def comparable(ordering: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that sort as the values do: first 1 for null, 2 for a value, 3 for NaN; then the rank among values.

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
    keys: list[np.ndarray] = []
    for member in values.flatten():
        weight, rank = comparable(member)
        keys += [weight, rank]
    order = np.lexsort(keys[::-1])
    steps = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        steps |= key[order][1:] != key[order][:-1]
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(steps)))[: len(order)]
    return np.where(np.asarray(pc.is_valid(values)), 2, 1).astype(np.int8), ranks


def comparable_ordering(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Ordering values of a delete block as values of the ordering column's type, None where the two do not compare.

    Java compares values of one class only, and a deletion whose value does not compare wins. Dates and timestamps stand in delete blocks
    as dates and timestamps or as their numbers.
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
    if (pa.types.is_decimal(kind) and pa.types.is_decimal(found)) or (_is_text(kind) and _is_text(found)):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            return None
    return None


def _comparable_structs(values: pa.ChunkedArray, kind: pa.StructType) -> pa.ChunkedArray | None:
    """Values of several ordering fields; None where one member does not compare."""
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def one_chunk(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """`values` as one array."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    combined = values.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
