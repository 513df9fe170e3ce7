"""Batches of records, and the rows of a batch that a later tombstone of the same key removes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_ingest.offsets import Place

Headers = Sequence[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Received:
    """One record. `value` is None for a tombstone."""

    place: Place
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records ordered by topic, partition and offset. `next` holds the offsets after them and after any transaction markers."""

    records: tuple[Received, ...]
    next: Mapping[Place, int]
    began_s: float
    """Monotonic time at which the first record arrived."""

    def without(self, cut: Mapping[Place, int]) -> Batch:
        """Return the batch up to `cut` of each partition. The rest is read again in a later batch."""
        kept = tuple(r for r in self.records if r.offset < cut.get(r.place, r.offset + 1))
        return Batch(kept, {**self.next, **cut}, self.began_s)


@dataclass(frozen=True, slots=True)
class Order:
    """What follows from the order of rows and tombstones of the same keys.

    `cut`: a key that reappears after its tombstone waits for the next batch, with all later records of its partition, because one
    commit cannot hold both. `stays`: False for rows that a later tombstone of the batch removes. After a `cut`, it is meaningless.
    """

    cut: Mapping[Place, int]
    stays: np.ndarray


def order_of(
    records: Sequence[Received], rows: Sequence[int], row_ids: pa.ChunkedArray, removed: Sequence[int], removed_ids: pa.ChunkedArray
) -> Order:
    """Return what their order requires. `rows` and `removed` are positions in `records`; `*_ids` identify the table row of each."""
    first: dict[str, int] = {}
    for position, identity in zip(removed, removed_ids.to_pylist(), strict=True):
        first.setdefault(identity, position)
    touched = np.asarray(pc.is_in(row_ids, value_set=pc.unique(removed_ids)))
    cut: dict[Place, int] = {}
    for at in np.flatnonzero(touched).tolist():
        position = rows[at]
        if position > first[row_ids[at].as_py()]:
            record = records[position]
            cut[record.place] = min(cut.get(record.place, record.offset), record.offset)
    return Order(cut, ~touched)
