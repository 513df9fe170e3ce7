"""A batch of records, and which of its rows a later tombstone of the same key makes void."""

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
    """Records in order of topic, partition and offset; `next` are the offsets behind them, markers of transactions included."""

    records: tuple[Received, ...]
    next: Mapping[Place, int]
    began_s: float
    """Monotonic, when its first record came."""

    def without(self, cut: Mapping[Place, int]) -> Batch:
        """What lies before the cut of each partition; the rest is for a later batch."""
        kept = tuple(r for r in self.records if r.offset < cut.get(r.place, r.offset + 1))
        return Batch(kept, {**self.next, **cut}, self.began_s)


@dataclass(frozen=True, slots=True)
class Order:
    """What the order of rows and tombstones of the same keys asks for.

    `cut`: a key that comes back behind its tombstone waits, with all that follows in its partition, for the next batch: one commit cannot
    hold both. `stays`: False for rows that a later tombstone of the batch removes. Where something is cut, `stays` means nothing.
    """

    cut: Mapping[Place, int]
    stays: np.ndarray


def order_of(
    records: Sequence[Received], rows: Sequence[int], row_ids: pa.ChunkedArray, removed: Sequence[int], removed_ids: pa.ChunkedArray
) -> Order:
    """`rows` and `removed` are positions in `records` of what was decoded, `*_ids` say which row of the table each is about."""
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
