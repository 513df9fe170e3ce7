"""The rows of an input and the file slices of a partition, by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import HashRing


def rows_by_bucket(buckets: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each bucket number of `buckets` (one for each row) with the positions of its rows, ascending."""
    order = np.argsort(buckets, kind="stable")
    numbers, starts = np.unique(buckets[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)


def slices_by_bucket(index: BucketIndex, slices: Iterable[FileSlice], ring: HashRing | None = None) -> dict[int, FileSlice]:
    """Return the slice of each bucket of one partition, which has this `ring` if there is consistent hashing.

    `index` is that of the table, with one file group in each bucket. Raises as `slices_in_buckets`.
    """
    assert (ring is not None) == index.is_consistent, "a ring for consistent hashing, and for nothing else"
    assert not index.has_several, "one slice in each bucket"
    if ring is not None:
        return ring.by_node(tuple(slices))
    return {bucket: found for bucket, (found,) in slices_in_buckets(index, slices).items()}


def slices_in_buckets(index: BucketIndex, slices: Iterable[FileSlice], ring: HashRing | None = None) -> dict[int, list[FileSlice]]:
    """Return the slices of each bucket of one partition: one, unless the index allows several. `ring` as for `slices_by_bucket`.

    Raises `UnsupportedTable` for a file group that the index does not allow: without a bucket number, with one that is too
    large, or a second one in a bucket that has one only. A row must not be written there, because no look-up by key would find
    it.
    """
    if ring is not None:
        return {node: [held] for node, held in ring.by_node(tuple(slices)).items()}
    found: dict[int, list[FileSlice]] = {}
    for file_slice in slices:
        partition, file_id = file_slice.group
        index = index.in_partition(partition)
        bucket = bucket_of_file_id(file_id)
        problem = ""
        if bucket is None:
            problem = f"file group {file_id} in {partition!r} has no bucket number"
        elif bucket >= index.number:
            problem = f"file group {file_id} in {partition!r} is of bucket {bucket}, and the table has {index.text}"
        elif bucket in found and not index.has_several:
            problem = f"file groups {found[bucket][0].group.file_id} and {file_id} in {partition!r} are of one bucket"
        if problem or bucket is None:
            raise UnsupportedTable(
                problem,
                expected=f"{'' if index.has_several else 'one file group for each of '}{index.text}",
                remedy="a writer with other settings wrote the table: read it, and write its rows into a new table",
            )
        found.setdefault(bucket, []).append(file_slice)
    return found
