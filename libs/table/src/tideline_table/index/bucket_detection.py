"""Which bucket index a table follows, judged by its rows: Apache Hudi keeps number and hash fields nowhere in table version 6.

A row with hash H in bucket b says that the number of buckets divides H - b. The greatest common divisor of all rows leaves few
numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.hudi.file_names import MAX_BUCKETS
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.partition_rules import PartitionRules

_MOST_SUBSETS = 6
"""With more key columns than this, only each alone and all together are tried as hash fields."""


@dataclass(slots=True)
class RuledEvidence:
    """Which of several indexes with known numbers of buckets, also by partition, fit the rows seen so far.

    They differ in their hash fields.
    """

    fitting: list[BucketIndex]
    rows: int = 0

    @classmethod
    def of(cls, number: int, rules: PartitionRules, fields: Sequence[str], key_fields: Sequence[str]) -> RuledEvidence:
        """Begin with the hash `fields`, or without any with each choice of key columns.

        Raises `InvalidOption` as `bucket_index`.
        """
        choices = [tuple(fields)] if fields else hash_field_choices(key_fields)
        return cls([bucket_index(number, chosen, key_fields, rules=rules) for chosen in choices])

    def add(self, partition_path: str, bucket: int, keys: pa.ChunkedArray | pa.Array) -> None:
        """Add record keys of a file group of this bucket and partition."""
        self.rows += len(keys)
        self.fitting = [index for index in self.fitting if bool(np.all(index.in_partition(partition_path).buckets(keys) == bucket))]

    def index(self) -> BucketIndex:
        """Return the one index that fits. Raises `UnsupportedTable` if none does, `InvalidOption` if the rows leave a choice."""
        if len(self.fitting) == 1:
            return self.fitting[0]
        if self.fitting:
            shown = "; ".join(sorted(index.text for index in self.fitting)[:5])
            raise InvalidOption(
                f"a table with Apache Hudi's bucket index whose {self.rows} row(s) fit {shown}",
                expected="one choice of hash fields",
                remedy="name those of its Hudi writers: tideline share PATH --hash-fields a,b",
            )
        raise UnsupportedTable(
            "a table with Apache Hudi's bucket index whose rows are not where numbers of buckets by partition put them",
            expected="each row in the file group of its bucket",
            remedy="check numbers, rules and hash fields of its Hudi writers; a table whose rows are misplaced must be written "
            "anew",
        )


def hash_field_choices(key_fields: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the choices of hash fields that are tried."""
    count = len(key_fields)
    sizes = [size for size in range(count, 0, -1) if count <= _MOST_SUBSETS or size in (1, count)]
    return [chosen for size in sizes for chosen in itertools.combinations(key_fields, size)]


@dataclass(slots=True)
class BucketEvidence:
    """What the rows seen so far say about number and hash fields. `number` 0 and empty `fields`: to be found."""

    key_fields: tuple[str, ...]
    number: int = 0
    fields: tuple[str, ...] = ()
    rows: int = 0
    largest: int = -1
    _divisors: dict[tuple[str, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Checks what was named.
        bucket_index(self.number or 1, self.fields, self.key_fields)
        self._divisors = dict.fromkeys(self._candidates(), 0)

    def _candidates(self) -> Iterator[tuple[str, ...]]:
        if self.fields or self.number:
            # Without hash fields, Apache Hudi takes the whole key.
            yield bucket_index(1, self.fields, self.key_fields).fields
            return
        yield from hash_field_choices(self.key_fields)

    def add(self, bucket: int, keys: pa.ChunkedArray | pa.Array) -> None:
        """Add record keys of a file group of this bucket."""
        self.rows += len(keys)
        self.largest = max(self.largest, bucket)
        for fields, divisor in self._divisors.items():
            if len(keys):
                codes = BucketIndex(1, fields, self.key_fields).hash_codes(keys)
                self._divisors[fields] = math.gcd(divisor, int(np.gcd.reduce(np.abs(codes - bucket))))

    def found(self) -> list[BucketIndex]:
        """Return the indexes that fit all rows; those that fit any number of buckets are not among them, unless it was named."""
        return [
            BucketIndex(number, fields, self.key_fields)
            for fields, divisor in self._divisors.items()
            for number in self._numbers(divisor)
        ]

    def _numbers(self, divisor: int) -> Sequence[int]:
        if self.number:
            return [self.number] if divisor % self.number == 0 and self.largest < self.number else []
        if not divisor:
            return []
        low = [n for n in range(1, min(math.isqrt(divisor), MAX_BUCKETS) + 1) if divisor % n == 0]
        return sorted({n for d in low for n in (d, divisor // d) if self.largest < n <= MAX_BUCKETS})

    def index(self) -> BucketIndex:
        """Return the one index that fits. Raises `UnsupportedTable` if none does, `InvalidOption` if the rows leave a choice."""
        fitting = self.found()
        named = f" ({self.number or 'unknown'} bucket(s) by {','.join(self.fields or self.key_fields)})" if self.number else ""
        if len(fitting) == 1:
            return fitting[0]
        if fitting or (not self.number and not any(self._divisors.values())):
            shown = "; ".join(sorted(index.text for index in fitting)[:5]) or "any number of buckets"
            raise InvalidOption(
                f"a table with Apache Hudi's bucket index whose {self.rows} row(s) fit {shown}",
                expected="one number of buckets and its hash fields",
                remedy="name those of its Hudi writers: tideline share PATH --buckets N --hash-fields a,b",
            )
        raise UnsupportedTable(
            f"a table whose file ids show Apache Hudi's bucket index{named}, and whose rows are not where it puts them",
            expected="each row in the file group of its bucket",
            remedy="check number and hash fields of its Hudi writers; a table whose rows are misplaced must be written anew",
        )
