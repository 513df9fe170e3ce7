"""Number and hash fields of a bucket index, found in rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_detection import BucketEvidence
from tideline_table.index.bucket_properties import bucket_index

USERS = pa.array([f"user:u{n % 40},page:p{n}" for n in range(400)])
IDS = pa.array([f"k{n}" for n in range(100)])


def seen(index: BucketIndex, keys: pa.Array, number: int = 0, fields: tuple[str, ...] = ()) -> BucketEvidence:
    found = BucketEvidence(index.key_fields, number, fields)
    buckets = index.buckets(keys)
    for bucket in set(buckets.tolist()):
        found.add(bucket, keys.filter(pa.array(buckets == bucket)))
    return found


@pytest.mark.parametrize("number", [1, 2, 3, 8, 64, 256, 1009])
def test_the_rows_name_the_number_of_buckets(number: int) -> None:
    index = bucket_index(number, (), ("id",))
    assert seen(index, IDS).index() == index
    assert seen(index, IDS, number).index() == index


@pytest.mark.parametrize("fields", [("user",), ("page",), ("user", "page")])
def test_the_rows_name_the_hash_fields(fields: tuple[str, ...]) -> None:
    index = bucket_index(16, fields, ("user", "page"))
    assert seen(index, USERS).index() == index
    assert seen(index, USERS, 16, fields).index() == index


def test_few_rows_leave_a_choice_that_the_caller_makes() -> None:
    index = bucket_index(8, (), ("id",))
    with pytest.raises(InvalidOption, match=r"1 row\(s\) fit .*--buckets N"):
        seen(index, IDS.slice(0, 1)).index()
    with pytest.raises(InvalidOption, match="any number of buckets"):
        seen(index, IDS.slice(0, 0)).index()
    assert seen(index, IDS.slice(0, 1), 8).index() == index
    assert seen(index, IDS.slice(0, 0), 8).index() == index


def test_rows_that_are_elsewhere_are_refused() -> None:
    index = bucket_index(8, (), ("id",))
    for number, fields in ((7, ()), (16, ()), (4, ()), (8, ("page",))):
        keys, of = (USERS, bucket_index(8, ("user",), ("user", "page"))) if fields else (IDS, index)
        with pytest.raises(UnsupportedTable, match="rows are not where it puts them"):
            seen(of, keys, number, fields).index()
    found = seen(index, IDS)
    found.add(3, IDS)
    with pytest.raises(UnsupportedTable, match="rows are not where it puts them"):
        found.index()
    with pytest.raises(InvalidOption, match="hash fields nowhere"):
        BucketEvidence(("id",), 8, ("nowhere",))
