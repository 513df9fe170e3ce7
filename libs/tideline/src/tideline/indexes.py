"""How a table finds the file group of a record key: the key index that `create` keeps with the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tideline.checked import checked_init
from tideline.rows import column_list
from tideline_table.errors import InvalidOption
from tideline_table.index import RECORD_INDEX, Engine
from tideline_table.table import NamedBuckets


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


def index_request(index: KeyIndex | None) -> dict[str, Any]:
    """Return the fields of a `TableRequest` for `index`, none for None. Raises `InvalidInput` for half a request."""
    match index:
        case None:
            return {}
        case BloomIndex():
            return {"index_type": "GLOBAL_BLOOM" if index.across_partitions else "BLOOM"}
        case RecordIndex():
            return {"index_type": RECORD_INDEX}
        case BucketIndex():
            if index.buckets is None:
                raise InvalidOption("a bucket index without a number of buckets", expected="BucketIndex(8) or another number")
            return {
                "buckets": index.buckets,
                "bucket_engine": Engine.CONSISTENT if index.consistent else Engine.SIMPLE,
                "hash_fields": column_list(index.fields),
                "partition_buckets": index.partition_buckets,
                "several_file_groups": index.several_file_groups,
            }
    raise _wrong(index)


def named_buckets(index: BucketIndex | None) -> NamedBuckets:
    """Return what the caller knows of the bucket index of Hudi's writers."""
    match index:
        case None:
            return NamedBuckets()
        case BucketIndex():
            return NamedBuckets(index.buckets or 0, column_list(index.fields), index.partition_buckets)
    raise _wrong(index)


def _wrong(index: object) -> InvalidOption:
    return InvalidOption(f"argument 'index' of type {type(index).__name__}", expected="BucketIndex, BloomIndex or RecordIndex")
