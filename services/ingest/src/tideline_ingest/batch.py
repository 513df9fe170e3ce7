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
    """Records ordered by topic, partition and offset.

    `next` has the offset to read next by partition, after transaction markers, too.
    """

    records: tuple[Received, ...]
    next: Mapping[Place, int]
    began_s: float
    """Monotonic time at which the first record arrived."""

    def without(self, cut: Mapping[Place, int]) -> Batch:
        """Return the batch without the records from the offset `cut` on in each partition.

        A later batch reads these records again.
        """
        kept = tuple(r for r in self.records if r.offset < cut.get(r.place, r.offset + 1))
        return Batch(kept, {**self.next, **cut}, self.began_s)


@dataclass(frozen=True, slots=True)
class Order:
    """The consequences of the order of rows and tombstones of the same keys in a batch.

    `cut`: offsets by partition. A key that reappears after its tombstone waits for the next batch, with all later records of
    its partition, because one commit cannot hold both. `stays`: False for rows that a later tombstone of the batch removes.
    With a `cut`, `stays` is meaningless.
    """

    cut: Mapping[Place, int]
    stays: np.ndarray


def order_of(
    records: Sequence[Received], rows: Sequence[int], row_ids: pa.ChunkedArray, removed: Sequence[int], removed_ids: pa.ChunkedArray
) -> Order:
    """Return the consequences of the order of `records`.

    `rows` and `removed` are the positions of rows and tombstones in `records`; `row_ids` and `removed_ids` identify the table
    row of each.
    """
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
