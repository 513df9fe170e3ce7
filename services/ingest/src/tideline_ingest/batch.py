"""Batches of records, and what rows and deletions of the same keys in a batch come to."""

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
    """The consequences of the order of rows and deletions of the same keys in a batch.

    `cut`: offsets by partition. A key that reappears after its deletion waits for the next batch, with all later records of
    its partition, if one commit cannot hold both. `stays`: False for rows that a later deletion of the batch removes. `removes`:
    False for deletions that a later row makes needless. With a `cut`, the other two are meaningless.
    """

    cut: Mapping[Place, int]
    stays: np.ndarray
    removes: np.ndarray


def order_of(
    records: Sequence[Received],
    rows: Sequence[int],
    row_ids: pa.ChunkedArray,
    removed: Sequence[int],
    removed_ids: pa.ChunkedArray,
    *,
    last_wins: bool = False,
) -> Order:
    """Return the consequences of the order of `records`.

    `rows` and `removed` are the positions of rows and deletions in `records`; `row_ids` and `removed_ids` identify the table
    row of each. With `last_wins`, a written row is what the table holds, whatever it held before, so that nothing is cut.
    """
    touched = np.asarray(pc.is_in(row_ids, value_set=pc.unique(removed_ids)))
    deleted = list(zip(removed_ids.to_pylist(), removed, strict=True))
    later = [(at, row_ids[at].as_py()) for at in np.flatnonzero(touched).tolist()]
    if last_wins:
        last = dict(deleted)
        stays = ~touched
        revived = {identity for at, identity in later if rows[at] > last[identity]}
        for at, identity in later:
            stays[at] = rows[at] > last[identity]
        return Order({}, stays, np.array([identity not in revived for identity, _ in deleted], np.bool_))
    first = dict(reversed(deleted))
    cut: dict[Place, int] = {}
    for at, identity in later:
        if rows[at] > first[identity]:
            record = records[rows[at]]
            cut[record.place] = min(cut.get(record.place, record.offset), record.offset)
    return Order(cut, ~touched, np.ones(len(deleted), np.bool_))
