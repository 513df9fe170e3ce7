"""How a table finds the file group of a record key: the key index that `create` keeps with the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tideline_table.checked import checked_init
from tideline_table.errors import InvalidOption


@checked_init
@dataclass(frozen=True, slots=True)
class BucketIndex:
    """By a hash of the record key, or of its columns `fields`: no key is looked up (docs/design/bucket-index.md).

    Each partition has `buckets` buckets; `maintenance.resize_buckets` changes the number. `partition_buckets` give partitions other
    numbers, such as `"^dt=2026-,32;^dt=2025-,16"`: the first regular expression that is found in the partition path decides.
    `consistent` (merge-on-read only) assigns keys by a hash ring for each partition, as Apache Hudi's consistent hashing does.
    With `several_file_groups`, a bucket larger than the largest file gets more file groups, and writers look keys up in these.
    """

    buckets: int | None = None
    """Needed by `create`; without it, `maintenance.share` finds the number in the rows."""
    fields: str | Iterable[str] = ()
    partition_buckets: str = ""
    consistent: bool = False
    several_file_groups: bool = False

    @property
    def hash_fields(self) -> tuple[str, ...]:
        """The columns of the record key that decide the bucket; empty for all of them."""
        return (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)

    @property
    def says_where(self) -> bool:
        """Whether a number, fields or rules are given: what is known of the buckets of Hudi's writers."""
        return bool(self.buckets or self.fields or self.partition_buckets)


@checked_init
@dataclass(frozen=True, slots=True)
class BloomIndex:
    """By key ranges and Bloom filters of base files (docs/design/bloom-index.md). A key is unique in its partition.

    With `across_partitions` it is unique in the table, as with Hudi's index type `GLOBAL_BLOOM`.
    """

    across_partitions: bool = False


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """By a partition of the metadata table (docs/design/record-index.md). A key is unique in the table."""


KeyIndex = BucketIndex | BloomIndex | RecordIndex


def wrong_index(index: object) -> InvalidOption:
    """Return the error of an argument that is no key index."""
    return InvalidOption(f"argument 'index' of type {type(index).__name__}", expected="BucketIndex, BloomIndex or RecordIndex")
