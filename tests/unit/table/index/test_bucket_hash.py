"""Bucket numbers of record keys: equal to those of Apache Hudi 1.2 on tables that it wrote, and to a plain reading of its rule."""

from __future__ import annotations

import pickle
from functools import reduce

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tideline_table.errors import InvalidOption, InvalidRecord, UnsupportedTable
from tideline_table.hudi.file_names import bucket_of_file_id, new_bucket_file_id
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_kinds import RingIndex, SeveralGroupsIndex
from tideline_table.index.bucket_properties import bucket_index, declared_index, with_numbers_of
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.java_hash import string_hashes
from tideline_table.index.key_values import hash_values
from tideline_table.index.ring_change import renewed_ring

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
KEY_TEXT = st.one_of(TEXT, st.text("ab:,é漢😀", max_size=12), st.sampled_from(["__null__", "__empty__", "", "id:1,n:2"]))


def java_string_hash(text: str) -> int:
    """`String.hashCode` as Java's documentation defines it."""
    units = text.encode("utf-16-be")
    return reduce(lambda total, at: (31 * total + int.from_bytes(units[at : at + 2])) % 2**32, range(0, len(units), 2), 0)


def java_list_hash(values: list[str | None]) -> int:
    """`List.hashCode` as Java's documentation defines it."""
    total = 1
    for value in values:
        total = (31 * total + (0 if value is None else java_string_hash(value))) % 2**32
    return total


def bucket(key: str, number: int, fields: str = "id", key_fields: str = "id") -> int:
    index = bucket_index(number, fields.split(","), key_fields.split(","))
    (found,) = index.buckets(pa.array([key]))
    return int(found)


@pytest.mark.parametrize(
    ("key", "of_4", "of_8", "of_256"),
    [
        ("k0000", 2, 2, 10),
        ("k0007", 1, 1, 17),
        ("abc", 1, 1, 129),
        ("key1", 1, 1, 209),
        ("é漢😀", 3, 3, 155),
        ("polygenelubricants", 3, 7, 31),
    ],
)
def test_simple_keys_have_the_buckets_that_apache_hudi_gives_them(key: str, of_4: int, of_8: int, of_256: int) -> None:
    assert [bucket(key, n) for n in (4, 8, 256)] == [of_4, of_8, of_256]


@pytest.mark.parametrize(
    ("key", "fields", "of_16"),
    [
        ("a:b", "id", 8),
        ("a,b", "id", 6),
        ("a:b,c:d", "id", 9),
        ("id:1,n:2", "id", 0),
        ("id:__null__", "id", 5),
        ("id:__null__,n:__empty__", "id", 15),
        ("2024-01-01 10:20:30", "id", 13),
        ("é:漢,😀:ü", "id", 15),
        ("id:k001,n:1,w:a:b", "id,w", 4),
        ("id:k015,n:15,w:__null__", "id,w", 8),
        ("id:k024,n:24,w:__empty__", "id,w", 10),
        ("id:k016,n:16,w:c:d,e:f", "id,w", 4),
        ("id:k:,,n:18,w:12:30:00", "id,w", 8),
    ],
)
def test_keys_with_separators_have_the_buckets_that_apache_hudi_gives_them(key: str, fields: str, of_16: int) -> None:
    assert bucket(key, 16, fields, "id" if fields == "id" else "id,n,w") == of_16


@pytest.mark.parametrize(
    ("key", "fields", "values"),
    [
        ("abc", "f1", ["abc"]),
        ("f1:abc,f2:bcd", "f2", ["bcd"]),
        ("f1:abc,f2:bcd", "f1,f2", ["abc", "bcd"]),
        ("f1:abc,f2:bcd", "f2,f1", ["abc", "bcd"]),
        ("id:1,w:a:b", "id", ["1"]),
        ("id:1,w:a:b", "w", ["a:b"]),
    ],
)
def test_hash_values_are_cut_out_of_the_text_of_the_key(key: str, fields: str, values: list[str]) -> None:
    assert hash_values(key, fields.split(",")) == values


@given(st.lists(st.one_of(st.none(), TEXT), max_size=30), st.integers(0, 5))
@example(["x" * 300_000, "a", "", "é" * 700_000, "b"], 1)
@settings(deadline=None)
def test_string_hashes_are_those_of_java(texts: list[str | None], start: int) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    wanted = [0 if text is None else java_string_hash(text) for text in texts[start:]]
    assert string_hashes(column).tolist() == wanted
    assert string_hashes(pa.chunked_array([column, column])).tolist() == wanted * 2


@given(st.lists(st.tuples(KEY_TEXT, KEY_TEXT, KEY_TEXT), min_size=1, max_size=20), st.sampled_from(["a", "b", "c", "a,c", "a,b,c"]))
def test_composite_keys_hash_the_values_of_their_hash_fields(rows: list[tuple[str, str, str]], fields: str) -> None:
    keys = [f"a:{x},b:{y},c:{z}" for x, y, z in rows]
    index = bucket_index(997, fields.split(","), ["a", "b", "c"])
    wanted = [(java_list_hash(hash_values(key, fields.split(","))) & 0x7FFFFFFF) % 997 for key in keys]
    assert index.buckets(pa.array(keys)).tolist() == wanted


@given(st.lists(KEY_TEXT, max_size=20), st.integers(1, 99_999))
def test_every_simple_key_has_a_bucket(keys: list[str], number: int) -> None:
    index = bucket_index(number, [], ["id"])
    wanted = [(java_list_hash(hash_values(key, ["id"])) & 0x7FFFFFFF) % number for key in keys]
    found = index.buckets(pa.chunked_array([keys[:3], keys[3:]], pa.string()))
    assert found.tolist() == wanted
    assert ((found >= 0) & (found < number)).all()
    assert found.dtype == np.int64


@given(st.text("xyz", min_size=1), st.text("xyz", min_size=1), st.sampled_from(["a", "b", "a,b"]))
def test_values_without_separators_come_back_whole(x: str, y: str, fields: str) -> None:
    values = {"a": x, "b": y}
    assert hash_values(f"a:{x},b:{y}", fields.split(",")) == [values[name] for name in fields.split(",")]


@pytest.mark.parametrize(("number", "fields"), [(0, "id"), (-1, "id"), (100_000, "id"), (4, "other"), (4, "id,id")])
def test_impossible_requests_are_refused(number: int, fields: str) -> None:
    with pytest.raises(InvalidOption):
        bucket_index(number, fields.split(","), ["id", "n"])


def test_a_null_hash_field_is_named() -> None:
    index = bucket_index(4, ["n"], ["id", "n"])
    index.check_values(pa.chunked_array([["id:__null__,n:1", "id:__null__x,n:__empty__"]]))
    with pytest.raises(InvalidRecord, match="null hash field"):
        index.check_values(pa.chunked_array([["id:1,n:1", "id:2,n:__null__"]]))


@pytest.mark.parametrize(
    "changed",
    [
        {"hoodie.bucket.index.num.buckets": "0"},
        {"hoodie.bucket.index.num.buckets": "many"},
        {"hoodie.bucket.index.hash.field": "price"},
        {"hoodie.index.bucket.engine": "EXTENDIBLE"},
    ],
)
def test_properties_that_no_writer_can_follow_are_refused(changed: dict[str, str]) -> None:
    index = bucket_index(4, ["n"], ["id", "n"])
    assert declared_index(index.properties, ["id", "n"]) == index
    assert declared_index({}, ["id", "n"]) is None
    with pytest.raises(UnsupportedTable, match="bucket index"):
        declared_index({**index.properties, **changed}, ["id", "n"])


def test_file_ids_begin_with_the_bucket_number() -> None:
    first = new_bucket_file_id("20240101000000000", "p0", 7)
    assert (first[:9], first[-2:], len(first)) == ("00000007-", "-0", 38)
    assert bucket_of_file_id(first) == 7
    assert first != new_bucket_file_id("20240101000000000", "p1", 7)
    assert bucket_of_file_id("5f1d2a9c-6c4b-5c0e-9d8e-0b6f3b1f7a11-0") is None


@pytest.mark.parametrize("kind", [BucketIndex, RingIndex, SeveralGroupsIndex])
def test_each_kind_of_index_is_declared_as_itself_and_knows_its_file_groups(kind: type[BucketIndex]) -> None:
    index = bucket_index(4, (), ("id",), kind.engine, has_several=kind is SeveralGroupsIndex)
    same = [declared_index(index.properties, ("id",)), with_numbers_of(index, index.text), pickle.loads(pickle.dumps(index))]
    assert [(type(found), found) for found in same] == 3 * [(kind, index)]
    ring = HashRing.first("p", 4) if kind is RingIndex else None
    own = index.in_partition("p", ring)
    first = own.new_file_id("20260101000000000", "p", 2)
    assert own.bucket_of(first) == 2
    own.check_members(first, pa.chunked_array([keys_of(own, 2)]))
    with pytest.raises(UnsupportedTable, match="row\\(s\\) of other buckets"):
        own.check_members(first, pa.chunked_array([keys_of(own, 3)]))
    moved = own.moved_file_id(first, "20260102000000000", "p", 0)
    after = index.in_partition("p", None if ring is None else renewed_ring(ring, "20260102000000000"))
    assert (moved != first, after.bucket_of(moved)) == (True, 2)


def keys_of(own: BucketIndex, bucket: int) -> pa.Array:
    keys = pa.array([f"k{number}" for number in range(64)])
    return keys.filter(pa.array(own.buckets(keys) == bucket))
