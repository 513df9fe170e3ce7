"""The bucket index of a table that Apache Hudi created, found and checked row by row before the table is shared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tideline_table.coordination.shared.hudi_rules import Bucketing
from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.names import bucket_of_file_id
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.bucket import BucketIndex, slices_by_bucket
from tideline_table.index.bucket_detection import BucketEvidence
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table
from tideline_table.table.ring_adoption import RingAdoption


@dataclass(frozen=True, slots=True)
class NamedBuckets:
    """Number of buckets and hash fields of Hudi's writers as the caller knows them; 0 and empty: to be found."""

    number: int = 0
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class BucketAdoption:
    """Reads the record keys of a table, each file slice once, and says which bucket index they follow."""

    table: Table
    named: NamedBuckets
    _evidence: BucketEvidence = field(init=False)
    _seen: set[FileSlice] = field(default_factory=set)
    _has_rings: bool = False
    _rings: RingAdoption | None = None

    def __post_init__(self) -> None:
        self._evidence = BucketEvidence(tuple(self.table.definition.keygen.key_fields), self.named.number, self.named.fields)

    def applies(self, bucketing: Bucketing) -> bool:
        """Return whether the table is bucketed, by what it shows or by what the caller names. Raises for numbers by partition."""
        bucketing.refuse_other_engines()
        self._has_rings = bool(bucketing.ring)
        return bool(bucketing.ring or bucketing.simple or self.named.number or self.named.fields)

    def look(self) -> BucketIndex:
        """Read slices that were not read before; return the index that all rows follow.

        Raises `UnsupportedTable` if rows or file groups follow none, `InvalidOption` if they leave a choice.
        """
        if not self.table.definition.has_meta_fields:
            raise UnsupportedTable("a bucket index of a table without meta fields", expected="hoodie.populate.meta.fields=true")
        if self._has_rings:
            self._rings = self._rings or RingAdoption(self.table, self.named.number, self.named.fields)
            return self._rings.look()
        found = self.table.snapshot()
        for file_slice in found.slices:
            bucket = bucket_of_file_id(file_slice.group.file_id)
            if bucket is None:
                raise UnsupportedTable(
                    f"file group {file_slice.group.file_id} in {file_slice.group.partition_path!r} without a bucket number",
                    expected="a bucket number at the beginning of each file id",
                    remedy="read the table, and write its rows into a new one",
                )
            if file_slice not in self._seen:
                for batch in replace(found, slices=(file_slice,), buckets=None).scan([MetaField.RECORD_KEY]):
                    self._evidence.add(bucket, batch.column(0))
                self._seen.add(file_slice)
        index = self._evidence.index()
        partitions: dict[str, list[FileSlice]] = {}
        for file_slice in found.slices:
            partitions.setdefault(file_slice.group.partition_path, []).append(file_slice)
        for slices in partitions.values():
            slices_by_bucket(index, slices)
        return index
