"""What only tables with hash rings, and tables whose buckets have several file groups, know of their buckets."""
# ruff: noqa: ARG002 - arguments are those of `BucketIndex`

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id, in_bucket, new_file_id
from tideline_table.index.bucket import SEVERAL_FILE_GROUPS, BucketIndex, Engine
from tideline_table.index.hash_ring import MAX_NODES, HashRing
from tideline_table.index.key_values import Texts, joined_hashes
from tideline_table.index.ring_change import renewed_file_id


@dataclass(frozen=True, slots=True)
class RingIndex(BucketIndex):
    """Consistent hashing (format reference 12.2): a row belongs to a node of the ring of its partition (`hash_ring`).

    A bucket number is the position of a node in that ring. The index of a partition needs it.
    """

    ring: HashRing | None = None

    engine: ClassVar[Engine] = Engine.CONSISTENT
    most: ClassVar[int] = MAX_NODES
    has_rules: ClassVar[bool] = False
    adjective: ClassVar[str] = "consistent "

    def in_partition(self, partition_path: str, ring: HashRing | None = None) -> RingIndex:
        """Return the index of the partition with this ring."""
        return self if ring is None else replace(self, ring=ring)

    @property
    def _own_properties(self) -> dict[str, str]:
        return {}

    @property
    def _known_ring(self) -> HashRing:
        assert self.ring is not None, "the index of a partition knows its ring"
        return self.ring

    def hash_codes(self, keys: Texts) -> np.ndarray:
        """Return the hash of each record key, 0 to 2^31 - 1, which decides its node."""
        return joined_hashes(keys, self.fields)

    def buckets_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the position of the node of each hash."""
        return self._known_ring.nodes_of(codes)

    def bucket_of(self, file_id: str) -> int | None:
        """Return the position of the node with this file group, None if no node has it."""
        return self._known_ring.position_of(file_id)

    def new_file_id(self, instant: str, partition_path: str, bucket: int) -> str:
        """Return the file id of a node."""
        return self._known_ring.file_ids[bucket]

    def moved_file_id(self, file_id: str, instant: str, partition_path: str, task: int) -> str:
        """Return the file id of the same node in the next ring."""
        return renewed_file_id(self._known_ring, file_id, instant)

    def groups(self, slices: Iterable[FileSlice]) -> dict[int, list[FileSlice]]:
        """Return the slice of each node. Raises `UnsupportedTable` for a file group of no node."""
        return {node: [held] for node, held in self._known_ring.by_node(tuple(slices)).items()}

    def skew(self, partitions: Iterable[Sequence[FileSlice]]) -> float | None:
        """Return None: the sizes of buckets decide which are split and merged."""
        return None

    def check_resizable(self, name: str) -> None:
        """Raise `UnsupportedTable`."""
        raise UnsupportedTable(
            f"table {name!r} with {self.text}",
            expected="no number of buckets: the sizes of its buckets decide which are split and merged",
            remedy="tideline resize-buckets PATH --option hoodie.bucket.index.max.num.buckets=N",
        )

    def check_comparable(self, root: str) -> None:
        """Raise `UnsupportedTable`."""
        raise UnsupportedTable(
            f"{root} has a bucket index by consistent hashing",
            expected="a table created with --index bucket and the simple engine",
            remedy="read the table without buckets",
        )

    def check_rewritten(self, partition_path: str, file_id: str, keys: pa.ChunkedArray) -> None:
        """Check nothing: tables with rings are merge-on-read tables, and their compaction knows the ring."""


class SeveralGroupsIndex(BucketIndex):
    """Buckets that grow by file groups (pattern 2 of RFC-29)."""

    __slots__ = ()

    one_group_per_bucket: ClassVar[bool] = False
    suffix: ClassVar[str] = ", several file groups each"

    @property
    def _own_properties(self) -> dict[str, str]:
        return {**super()._own_properties, SEVERAL_FILE_GROUPS: "true"}

    def moved_file_id(self, file_id: str, instant: str, partition_path: str, task: int) -> str:
        """Return a new file id with the number of the bucket."""
        bucket, moved = bucket_of_file_id(file_id), new_file_id(instant, str(task))
        return moved if bucket is None else in_bucket(moved, bucket)

    def check_resizable(self, name: str) -> None:
        """Raise `UnsupportedTable`."""
        raise UnsupportedTable(
            f"table {name!r} with {self.text}",
            expected="one file group in each bucket: a bucket with several grows by file groups",
            remedy="for another number, write the rows into a new table",
        )

    def check_shareable(self, name: str) -> None:
        """Raise `UnsupportedTable`."""
        raise UnsupportedTable(
            f"table {name!r} with {self.text}",
            expected="one file group in each bucket: Apache Hudi's writers know no other",
            remedy="write its rows into a new table without several file groups in a bucket, and share that",
        )
