"""The bucket index of a table that Apache Hudi created, found and checked row by row before the table is shared."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tideline_table.coordination.shared.hudi_rules import Bucketing
from tideline_table.coordination.shared.partition_numbers import adopted_rules
from tideline_table.errors import InvalidOption, ObjectExists, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_detection import BucketEvidence, RuledEvidence
from tideline_table.index.partition_rules import FIRST_INSTANT, PartitionRules, RulesFile
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table
from tideline_table.table.key_index import BucketIndex as AskedBuckets
from tideline_table.table.ring_adoption import RingAdoption


@dataclass(slots=True)
class BucketAdoption:
    """Reads the record keys of a table, each file slice once, and says which bucket index they follow."""

    table: Table
    named: AskedBuckets
    """The buckets of Hudi's writers as the caller knows them: the table shows no rules that these writers only have as options."""
    _evidence: BucketEvidence = field(init=False)
    _ruled: RuledEvidence | None = None
    _rules: RulesFile | None = None
    _seen: set[FileSlice] = field(default_factory=set)
    _has_rings: bool = False
    _rings: RingAdoption | None = None

    def __post_init__(self) -> None:
        self._evidence = BucketEvidence(
            tuple(self.table.definition.keygen.key_fields), self.named.buckets or 0, self.named.hash_fields
        )

    def applies(self, bucketing: Bucketing) -> bool:
        """Return whether the table is bucketed, by what it shows or by what the caller names. Raises for other engines."""
        bucketing.refuse_other_engines()
        self._has_rings = bool(bucketing.ring)
        return bool(bucketing.ring or bucketing.simple or self.named.says_where)

    def find(self) -> BucketIndex:
        """Read slices that were not read before; return the index that all rows follow.

        Raises `UnsupportedTable` if rows or file groups follow none, `InvalidOption` if they leave a choice.
        """
        if not self.table.definition.has_meta_fields:
            raise UnsupportedTable("a bucket index of a table without meta fields", expected="hoodie.populate.meta.fields=true")
        if self._has_rings and not self.named.partition_buckets:
            self._rings = self._rings or RingAdoption(self.table, self.named.buckets or 0, self.named.hash_fields)
            return self._rings.find()
        self._take_rules()
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
                    self._add(file_slice.group.partition_path, bucket, batch.column(0))
                self._seen.add(file_slice)
        index = self._evidence.index() if self._ruled is None else self._ruled.index()
        partitions: dict[str, list[FileSlice]] = {}
        for file_slice in found.slices:
            partitions.setdefault(file_slice.group.partition_path, []).append(file_slice)
        for slices in partitions.values():
            index.group_of_each(slices)
        return index

    def keep_rules(self) -> None:
        """Write the file of rules that the caller named, where Apache Hudi's readers find them.

        Before the properties, as at a creation.
        """
        if self._rules is not None and self._rules.instant == FIRST_INSTANT:
            with contextlib.suppress(ObjectExists):  # found there, not named
                self.table.storage.put_if_absent(self._rules.path, self._rules.content)

    def _add(self, partition_path: str, bucket: int, keys: pa.Array) -> None:
        if self._ruled is None:
            self._evidence.add(bucket, keys)
        else:
            self._ruled.add(partition_path, bucket, keys)

    def _take_rules(self) -> None:
        """Find the partition rules that hold now; begin anew if they changed since the last call.

        Raises `InvalidOption` if the caller named others, or rules without a number.
        """
        named = self.named
        rules = adopted_rules(self.table.storage, self.table.timeline.format)
        if rules is None and named.partition_buckets:
            if not named.buckets:
                raise InvalidOption(
                    f"partition rules {named.partition_buckets} without buckets", expected="the number of buckets otherwise, too"
                )
            rules = RulesFile(FIRST_INSTANT, PartitionRules.parse(named.partition_buckets).given, named.buckets)
        elif rules is not None and (
            (named.buckets and named.buckets != rules.number)
            or (named.partition_buckets and PartitionRules.parse(named.partition_buckets) != rules.rules)
        ):
            raise InvalidOption(
                f"{named.buckets or 0} buckets and the partition rules {named.partition_buckets or 'of the table'}",
                expected=f"{rules.number} and {rules.expressions}, as {rules.path} says",
            )
        if rules == self._rules:
            return
        key_fields = self.table.definition.keygen.key_fields
        self._rules, self._seen = rules, set()
        self._ruled = RuledEvidence.of(rules.number, rules.rules, named.hash_fields, key_fields) if rules is not None else None
        self._evidence = BucketEvidence(tuple(key_fields), named.buckets or 0, named.hash_fields)
