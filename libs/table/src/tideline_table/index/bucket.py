"""The bucket index: the record key alone says which bucket of its partition holds a row (RFC-29).

Apache Hudi's simple engine, bit for bit (format reference 12.1): the values of the hash fields are cut out of the text of the
record key, hashed as a Java list of strings, and counted off by the number of buckets. The first eight characters of a file id
are the bucket number. A bucket is one file group (pattern 1 of the RFC), so tagging reads no file, or several (pattern 2),
among which key ranges and Bloom filters find the one of a key.

`BucketIndex` is the index of most tables; what only tables with hash rings or with several file groups in a bucket meet is in
`bucket_kinds`. With rules (12.3), the path of a partition says how many buckets it has. Therefore code asks the index of a
partition (`BucketIndex.in_partition`) for buckets, file groups and file ids, and never which kind of index it is.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import (
    BUCKET_ENGINE,
    BUCKET_HASH_FIELD,
    BUCKET_NUMBER,
    BUCKET_PARTITION_RULE_TYPE,
    BUCKET_PARTITION_RULES,
    INDEX_TYPE,
)
from tideline_table.errors import InvalidOption, InvalidRecord, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import MAX_BUCKETS, bucket_of_file_id, new_bucket_file_id, new_file_id
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.key_values import Texts, hash_values, list_hashes
from tideline_table.index.partition_rules import NO_RULES, RULE_TYPE, PartitionRules
from tideline_table.keygen import NULL_KEY

BUCKET = "BUCKET"
RESIZING = "tideline.bucket.index.resizing"
"""The number of buckets before a resize that has not completed, in place of the properties of the index that Apache Hudi reads."""
SEVERAL_FILE_GROUPS = "tideline.bucket.index.several.file.groups"
"""Property of a table whose buckets grow by file groups (pattern 2 of RFC-29); absent otherwise."""
PLAIN_KEYS = "tideline.bucket.index.plain.keys"
"""Property of a table all of whose writers refuse what `BucketIndex.check_plain` refuses."""
BY_PARTITION = ", by partition "
"""In `BucketIndex.text`: before the rules."""
_OTHER_WRITER = "a writer with other settings wrote the table: read it, and write its rows into a new table"


class Engine(enum.StrEnum):
    """How a hash is assigned to a bucket. The values are those of `hoodie.index.bucket.engine`."""

    SIMPLE = "SIMPLE"
    CONSISTENT = "CONSISTENT_HASHING"


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """`number` buckets in each partition, by the hash of `fields` (columns of the record key, in its order)."""

    number: int
    """With consistent hashing, the number of buckets with which each partition begins; with rules, that of partitions without
    one."""
    fields: tuple[str, ...]
    key_fields: tuple[str, ...]
    rules: PartitionRules = NO_RULES
    """Numbers of buckets by partition path. With rules, only the index of a partition (`in_partition`) has bucket numbers."""

    engine: ClassVar[Engine] = Engine.SIMPLE
    most: ClassVar[int] = MAX_BUCKETS
    has_rules: ClassVar[bool] = True
    """Whether partitions may have numbers of buckets of their own, by rules."""
    one_group_per_bucket: ClassVar[bool] = True
    """Whether the bucket of a key names its file group. Otherwise the key is looked up in those of its bucket."""
    adjective: ClassVar[str] = ""
    suffix: ClassVar[str] = ""

    @property
    def text(self) -> str:
        """The number of buckets, the hash fields and the rules, for messages and comparison."""
        rules = f"{BY_PARTITION}{self.rules.text}" if self.rules else ""
        return f"{self.number} {self.adjective}bucket(s) by {','.join(self.fields)}{rules}{self.suffix}"

    def in_partition(self, partition_path: str, ring: HashRing | None = None) -> BucketIndex:  # noqa: ARG002 - of hash rings
        """Return the index of one partition, which has no rules. `ring` is that of the partition if there is consistent hashing."""
        if not self.rules:
            return self
        return replace(self, number=self.rules.number_of(partition_path, self.number), rules=NO_RULES)

    def common_number(self, partitions: Iterable[str]) -> int:
        """Return the greatest common divisor of the numbers of buckets of all these partitions.

        Modulo it, equal keys have equal bucket numbers.

        Rows with one hash are in buckets that are equal modulo this number. Raises `InvalidOption` if it is 1 because of the rules.
        """
        numbers = {self.in_partition(name).number for name in partitions} if self.rules else {self.number}
        found = math.gcd(*numbers) or self.number
        if found == 1 and len(numbers) > 1:
            raise InvalidOption(
                f"partitions with {', '.join(map(str, sorted(numbers)[:5]))} buckets",
                expected="numbers with a common divisor, such as N and multiples of N: the buckets of one hash have no common "
                "number",
                remedy="read the table without buckets",
            )
        return found

    @property
    def properties(self) -> dict[str, str]:
        """The properties that keep the index with the table. Apache Hudi's Spark writers take them as defaults of their options."""
        return {
            INDEX_TYPE.key: BUCKET,
            BUCKET_ENGINE.key: self.engine.value,
            BUCKET_NUMBER.key: str(self.number),
            BUCKET_HASH_FIELD.key: ",".join(self.fields),
            **self._own_properties,
        }

    @property
    def _own_properties(self) -> dict[str, str]:
        """An empty text without rules: with the key in its place, Apache Hudi refuses writers whose options name rules."""
        return {BUCKET_PARTITION_RULES.key: self.rules.given, **({BUCKET_PARTITION_RULE_TYPE.key: RULE_TYPE} if self.rules else {})}

    def hash_codes(self, keys: Texts) -> np.ndarray:
        """Return the hash of each record key, 0 to 2^31 - 1, which decides its bucket."""
        return list_hashes(keys, self.fields, self.key_fields)

    def buckets(self, keys: Texts) -> np.ndarray:
        """Return the bucket number of each record key of a partition."""
        return self.buckets_of(self.hash_codes(keys))

    def buckets_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the bucket number of each result of `hash_codes`."""
        assert not self.rules, "the index of a partition says the bucket"
        return codes % self.number

    def bucket_of(self, file_id: str) -> int | None:
        """Return the bucket number of a file group of a partition, None if it has none."""
        return bucket_of_file_id(file_id)

    def new_file_id(self, instant: str, partition_path: str, bucket: int) -> str:
        """Return the id of the first file group of a bucket."""
        return new_bucket_file_id(instant, partition_path, bucket)

    def moved_file_id(self, file_id: str, instant: str, partition_path: str, task: int) -> str:
        """Return the id of the file group to which a clustering task moves the rows of one, in the same bucket."""
        bucket = bucket_of_file_id(file_id)
        return new_file_id(instant, str(task)) if bucket is None else self.new_file_id(instant, partition_path, bucket)

    def groups(self, slices: Iterable[FileSlice]) -> dict[int, list[FileSlice]]:
        """Return the slices of each bucket of one partition: one, unless the index allows several.

        Raises `UnsupportedTable` for a file group that the index does not allow: without a bucket number, with one that is too
        large, or a second one in a bucket that has one only. A row must not be written there, because no look-up by key would
        find it.
        """
        found: dict[int, list[FileSlice]] = {}
        for file_slice in slices:
            partition, file_id = file_slice.group
            own = self.in_partition(partition)
            bucket, problem = bucket_of_file_id(file_id), ""
            if bucket is None:
                problem = f"file group {file_id} in {partition!r} has no bucket number"
            elif bucket >= own.number:
                problem = f"file group {file_id} in {partition!r} is of bucket {bucket}, and the table has {own.text}"
            elif bucket in found and self.one_group_per_bucket:
                problem = f"file groups {found[bucket][0].group.file_id} and {file_id} in {partition!r} are of one bucket"
            if problem or bucket is None:
                one = "one file group for each of " if self.one_group_per_bucket else ""
                raise UnsupportedTable(problem, expected=f"{one}{own.text}", remedy=_OTHER_WRITER)
            found.setdefault(bucket, []).append(file_slice)
        return found

    def group_of_each(self, slices: Iterable[FileSlice]) -> dict[int, FileSlice]:
        """Return the slice of each bucket of one partition, of an index with one file group in each. Raises as `groups`."""
        return {bucket: found for bucket, (found,) in self.groups(slices).items()}

    def skew(self, partitions: Iterable[Sequence[FileSlice]]) -> float | None:
        """Return the rows of the largest bucket in multiples of the mean of its partition, over the partitions with rows.

        1 for none, None for an index whose numbers do not say how many buckets there are. `partitions` holds the slices of each
        partition, one at least.
        """
        worst = 1.0
        for members in partitions:
            number = self.in_partition(members[0].group.partition_path).number
            rows = np.zeros(number)
            for file_slice in members:
                bucket = bucket_of_file_id(file_slice.group.file_id)
                if bucket is not None and bucket < number:
                    rows[bucket] += max(file_slice.rows, 0)
            if rows.sum() >= 10 * number:
                worst = max(worst, float(rows.max() / rows.mean()))
        return worst

    def check_resizable(self, name: str) -> None:
        """Raise `UnsupportedTable` if the table `name` cannot get a named number of buckets."""

    def check_shareable(self, name: str) -> None:
        """Raise `UnsupportedTable` if Apache Hudi's writers could not write the table `name`."""

    def check_comparable(self, root: str) -> None:
        """Raise `UnsupportedTable` if equal hashes say nothing about the buckets of the table at `root` and of another one."""

    def check_values(self, keys: pa.ChunkedArray) -> None:
        """Raise `InvalidRecord` if a hash field is null in one of these composite keys.

        Hudi gives all such rows the hash of nothing. A key of one column is never null.
        """
        if len(self.key_fields) < 2:
            return
        suspects = pc.filter(keys, pc.match_substring(keys, NULL_KEY))
        for key in suspects.to_pylist():
            if None in hash_values(key, self.fields):
                raise InvalidRecord(
                    f"a null hash field in the record key {key!r}",
                    expected=f"values in {', '.join(self.fields)}: all rows with null values would be in few buckets",
                    remedy="fill the column, or create the table with other hash fields",
                )

    @property
    def is_cut_from_keys(self) -> bool:
        """Whether only some columns of the key decide: their values are cut out of a text that holds others, too."""
        return len(self.fields) < len(self.key_fields)

    def check_plain(self, keys: pa.ChunkedArray) -> None:
        """Raise `InvalidRecord` if a record key holds a text that is cut like the pair of a hash field, such as `,user:` in a page.

        Readers could not tell the bucket of such a row from the hash fields alone.
        """
        for name in self.fields if self.is_cut_from_keys else ():
            pair = f",{name}:"
            expected = 0 if name == self.key_fields[0] else 1
            wrong = pc.filter(keys, pc.not_equal(pc.count_substring(keys, pair), expected))
            if len(wrong):
                raise InvalidRecord(
                    f"{len(wrong)} record key(s) such as {wrong[0].as_py()!r}, in which {pair!r} is part of a value",
                    expected=f"no key column that holds {pair!r}: the bucket index reads it as the hash field {name}",
                    remedy="change the value, or create the table with all key columns as hash fields",
                )

    def check_members(self, file_id: str, keys: pa.ChunkedArray) -> None:
        """Raise `UnsupportedTable` if a file group of a partition holds a record key of another bucket.

        A writer with other settings wrote it.
        """
        bucket = self.bucket_of(file_id)
        strays = len(keys) if bucket is None else int((self.buckets(keys) != bucket).sum())
        if strays:
            raise UnsupportedTable(
                f"file group {file_id} holds {strays} row(s) of other buckets",
                expected=f"rows of one of {self.text}",
                remedy=_OTHER_WRITER,
            )

    def check_rewritten(self, partition_path: str, file_id: str, keys: pa.ChunkedArray) -> None:
        """Check the keys of a base file of which a write makes the next one, as `check_members`."""
        self.in_partition(partition_path).check_members(file_id, keys)


def rows_by_bucket(buckets: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each bucket number of `buckets` (one for each row) with the positions of its rows, ascending."""
    order = np.argsort(buckets, kind="stable")
    numbers, starts = np.unique(buckets[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)
