"""Rows that are equal in the columns of a query by buckets are in buckets of one number, unless the key check refuses them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import few, some

from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch, UnsupportedTable
from tideline_table.file_group import FileGroupId, FileSlice
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.bucket_pruning import BucketPruning
from tideline_table.index.colocation import BucketTable, colocated_groups, colocated_join, sampled_slices, slices_by_part
from tideline_table.keygen import KeyGenerator, KeyGeneratorType

TEXTS = st.text(alphabet="ab:,_", max_size=8) | st.sampled_from(
    ["__null__", "__empty__", "user:a", "a,user:b", "a:1,b:2", "x,user:9", ",page:"]
)
NUMBERS = st.tuples(st.sampled_from([1, 2, 4, 6, 9]), st.sampled_from([1, 2, 4, 6, 12]))


def bucket_table(
    key: tuple[str, ...], fields: tuple[str, ...], number: int, *, exclusive: bool = True, plain: bool = False, **more: object
) -> BucketTable:
    schema = pa.schema([(name, more.get(name, pa.string())) for name in (*key, "more")])  # type: ignore[misc]
    types = {name: schema.field(name).type for name in key}
    keygen = KeyGenerator(key, (), declared_type=KeyGeneratorType.COMPLEX if more.get("prefixed") else None)
    pruning = BucketPruning(bucket_index(number, fields, key), keygen, types, cuts_alike=exclusive, has_plain_values=plain)
    return BucketTable("t", pruning, schema)


def buckets(table: BucketTable, rows: pa.Table) -> np.ndarray:
    """Return the bucket of each row, as writers of the table find it. Raises `InvalidRecord` for rows that they refuse."""
    keys = table.pruning.keygen.record_keys(rows)
    table.index.check_values(keys)
    if table.pruning.has_plain_values:
        table.index.check_plain(keys)
    return table.index.buckets(keys)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("key", [("user", "page"), ("page", "user"), ("a", "user", "page")])
@some
@given(user=TEXTS, others=st.lists(st.tuples(TEXTS, TEXTS), min_size=2, max_size=2))
def test_one_hash_value_has_one_bucket_in_a_table(
    plain: bool, key: tuple[str, ...], user: str, others: list[tuple[str, str]]
) -> None:
    table = bucket_table(key, ("user",), 97, plain=plain)
    columns = {"user": [user] * 2, "page": [p for p, _ in others], "a": [a for _, a in others], "more": ["", ""]}
    rows = pa.table({name: pa.array(columns[name]) for name in (*key, "more")})
    with suppress(InvalidRecord):
        found = buckets(table, rows)
        colocated_groups(table, ["user"]).check(rows)
        assert found[0] == found[1]


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((("user", "page"), ("user",)), (("user",), ("user",))),
        ((("page", "user"), ("user",)), (("user", "page"), ("user",))),
        ((("user", "page"), ("user", "page")), (("user", "page"), ("user", "page"))),
        ((("user", "page", "z"), ("user", "page")), (("user", "page"), ("user", "page"))),
        ((("user",), ("user",)), (("user",), ("user",))),
    ],
)
@few
@given(numbers=NUMBERS, user=TEXTS, page=TEXTS, other=TEXTS)
def test_equal_values_of_two_tables_are_in_one_part(
    exclusive: bool,
    left: tuple[tuple[str, ...], tuple[str, ...]],
    right: tuple[tuple[str, ...], tuple[str, ...]],
    numbers: tuple[int, int],
    user: str,
    page: str,
    other: str,
) -> None:
    tables = [
        bucket_table(*side, number, exclusive=exclusive, plain=exclusive)
        for side, number in zip((left, right), numbers, strict=True)
    ]
    on = [("user", "user"), ("page", "page")] if len(left[1]) == 2 else [("user", "user")]
    if np.gcd(*numbers) == 1 < min(numbers):
        with pytest.raises(InvalidOption, match="common divisor"):
            colocated_join(tables[0], tables[1], on)
        return
    found = colocated_join(tables[0], tables[1], on)
    assert found.parts == np.gcd(*numbers)
    values = [
        {"user": user, "page": page, "z": other, "more": ""},
        {"user": user, "page": page if len(on) == 2 else other, "more": ""},
    ]
    rows = [pa.table({name: [own[name]] for name in table.schema.names}) for table, own in zip(tables, values, strict=True)]
    with suppress(InvalidRecord):
        places = [int(buckets(table, own)[0]) for table, own in zip(tables, rows, strict=True)]
        found.left.check(rows[0])
        found.right.check(rows[1])
        assert places[0] % found.parts == places[1] % found.parts


def test_the_trap_that_the_check_is_for() -> None:
    """Without the check, this key of both tables would be in two parts."""
    left, right = bucket_table(("user", "page"), ("user",), 4, plain=True), bucket_table(("user",), ("user",), 4)
    rows = [pa.table({"user": ["a:1,b:2"], "page": ["p"]}), pa.table({"user": ["a:1,b:2"]})]
    assert buckets(left, rows[0]) != buckets(right, rows[1])
    found = colocated_join(left, right, [("user", "user")])
    for check, own in ((found.left, rows[0]), (found.right, rows[1])):
        with pytest.raises(InvalidRecord, match="a:1,b:2"):
            check.check(own)
    null = pa.table({"user": ["__null__"], "page": ["p"]})
    with pytest.raises(InvalidRecord, match="__null__"):
        found.right.check(null)
    shared = colocated_groups(bucket_table(("user",), ("user",), 4, exclusive=False), ["user"])
    with pytest.raises(InvalidRecord, match="x:y"):
        shared.check(pa.table({"user": ["x:y"]}))


def test_types_and_key_generators_with_other_texts_are_refused() -> None:
    key = ("user",)
    text = bucket_table(key, key, 4)
    on = [("user", "user")]
    for kind in (pa.int64(), pa.bool_(), pa.date32()):
        with pytest.raises(SchemaMismatch, match="is string"):
            colocated_join(text, bucket_table(key, key, 4, user=kind), on)
    for kind in (pa.timestamp("us", "UTC"), pa.decimal128(9, 2)):
        same = bucket_table(key, key, 4, user=kind)
        with pytest.raises(SchemaMismatch, match="texts, whole numbers"):
            colocated_join(same, same, on)
        assert not colocated_groups(same, key).columns
    assert colocated_join(bucket_table(key, key, 8, user=pa.int32()), bucket_table(key, key, 4, user=pa.int64()), on).parts == 4
    prefixed = bucket_table(key, key, 4, prefixed=True)
    with pytest.raises(UnsupportedTable, match="holds the name"):
        colocated_join(text, prefixed, on)
    assert colocated_join(prefixed, prefixed, on).parts == 4
    number = bucket_table(key, key, 4, user=pa.int64())
    assert not colocated_groups(BucketTable("t", replace(number.pruning, created_types={}), number.schema), key).columns
    for unknown in ({}, {"user": pa.float64()}):
        changed = BucketTable("t", BucketPruning(text.index, text.pruning.keygen, unknown), text.schema)
        with pytest.raises(UnsupportedTable, match="hash field 'user'"):
            colocated_groups(changed, key)


def placed(*numbers: int) -> list[FileSlice]:
    ids = [f"{number:08}-aaaa-4bbb-8ccc-{at:012}-0" for at, number in enumerate(numbers)]
    return [FileSlice(FileGroupId(f"p{at % 2}", name), "20260101000000000", f"{name}.parquet", 1, 1) for at, name in enumerate(ids)]


def test_parts_and_samples_hold_each_slice_once_or_say_why_not() -> None:
    index = bucket_index(4, key := ("id",), key)
    slices = placed(0, 0, 1, 2, 3, 3)
    assert [len(part) for part in slices_by_part(index, slices, 2)] == [3, 3]
    assert [len(part) for part in slices_by_part(index, slices, 4)] == [2, 1, 1, 2]
    assert sampled_slices(index, slices, [1], 2) == (slices[2], slices[4], slices[5])
    with pytest.raises(InvalidOption, match="out of 3"):
        sampled_slices(index, slices, [1], 3)
    for stray in (placed(4), placed(1, 0, 1)):
        with pytest.raises(UnsupportedTable, match=r"bucket 4|of one bucket"):
            slices_by_part(index, stray, 4)
