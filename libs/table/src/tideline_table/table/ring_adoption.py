"""The consistent hashing of a table that Apache Hudi created, read from its hashing metadata and checked row by row."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tideline_table.coordination.shared.hudi_rules import check_rings
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.bucket import BucketIndex, Engine
from tideline_table.index.bucket_kinds import RingIndex
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.hash_ring import FIRST_INSTANT, HashRing, check_number
from tideline_table.index.ring_store import RingStore
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table

_MOST_SUBSETS = 6
_REMEDY = "read the table, or write it with Apache Hudi"


@dataclass(slots=True)
class RingAdoption:
    """Reads the rings and the record keys of a table, each file slice once, and says which index they follow."""

    table: Table
    number: int
    """The number of buckets that the caller names, 0 for none: the rings say it."""
    fields: tuple[str, ...]
    """The hash fields that the caller names, empty for none: the rows show them."""
    _fitting: list[tuple[str, ...]] = field(init=False)
    _seen: set[FileSlice] = field(default_factory=set)
    _rows: int = 0

    def __post_init__(self) -> None:
        keys = tuple(self.table.definition.keygen.key_fields)
        if self.fields:
            self._fitting = [bucket_index(1, self.fields, keys).fields]
            return
        sizes = range(len(keys), 0, -1) if len(keys) <= _MOST_SUBSETS else (len(keys), 1)
        self._fitting = [chosen for size in sizes for chosen in itertools.combinations(keys, size)]

    def find(self) -> BucketIndex:
        """Read slices that were not read before; return the index that all rows follow.

        Raises `UnsupportedTable` for rings that Apache Hudi resized or resizes, and for rows that are not where the rings put them,
        `CorruptMetadata` for torn metadata, `InvalidOption` if the rows leave a choice of hash fields.
        """
        if not self.table.definition.has_logs:
            raise UnsupportedTable("consistent hashing in a copy-on-write table", expected="a merge-on-read table", remedy=_REMEDY)
        check_rings(self.table.state)
        found, store = self.table.snapshot(), RingStore(self.table.storage)
        rings: dict[str, HashRing] = {}
        for file_slice in found.slices:
            partition = file_slice.group.partition_path
            if partition not in rings:
                rings[partition] = self._ring(store, partition)
            (node,) = rings[partition].by_node([file_slice])
            if file_slice not in self._seen:
                for batch in replace(found, slices=(file_slice,), buckets=None).scan([MetaField.RECORD_KEY]):
                    self._rows += batch.num_rows
                    self._fitting = [f for f in self._fitting if self._fits(f, batch.column(0), rings[partition], node)]
                self._seen.add(file_slice)
        return self._index(next(iter(rings.values())).number if rings else self.number)

    def _ring(self, store: RingStore, partition: str) -> HashRing:
        ring = store.read(partition, FIRST_INSTANT)
        if ring is None:
            raise UnsupportedTable(
                f"partition {partition!r} with file groups of a hash ring and without its metadata",
                expected=HashRing.first(partition, 1).path,
                remedy=_REMEDY,
            )
        # The number of the caller, or of the partition that was read first.
        self.number = self.number or ring.number
        check_number(ring, self.number)
        return ring

    def _fits(self, fields: tuple[str, ...], keys: pa.Array, ring: HashRing, node: int) -> bool:
        index = RingIndex(ring.number, fields, tuple(self.table.definition.keygen.key_fields), ring=ring)
        return bool(np.all(index.buckets(keys) == node))

    def _index(self, number: int) -> BucketIndex:
        if not self._fitting:
            raise UnsupportedTable(
                f"a table with Apache Hudi's consistent hashing, and {self._rows} row(s) that are not where it puts them",
                expected="each row in the file group of its node",
                remedy="check the hash fields of its Hudi writers; a table whose rows are misplaced must be written anew",
            )
        if len(self._fitting) > 1 or not number:
            shown = "; ".join(",".join(fields) for fields in self._fitting[:5])
            raise InvalidOption(
                f"a table with Apache Hudi's consistent hashing whose {self._rows} row(s) fit the hash fields {shown}",
                expected="one number of buckets and its hash fields",
                remedy="name those of its Hudi writers: tideline share PATH --buckets N --hash-fields a,b",
            )
        keys = tuple(self.table.definition.keygen.key_fields)
        return bucket_index(number, self._fitting[0], keys, Engine.CONSISTENT)
