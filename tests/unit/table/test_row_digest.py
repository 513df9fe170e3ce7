"""Digests of rows: independent of order and layout, sensitive to every value, for all types of columns."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from tideline_table import row_digest
from tideline_table.row_digest import RowDigest, digest_rows, row_hashes, seed_of

VALUES = {
    "text": (pa.string(), ["a", "", "b\x00", "b", "é漢😀", "x" * 8, "x" * 9, "y" * 300, "y" * 301]),
    "large text": (pa.large_string(), ["a", "", "b"]),
    "bytes": (pa.binary(), [b"\x00", b"", b"\x00\x00", b"\xff" * 256, b"\xff" * 257]),
    "small": (pa.int8(), [0, 1, -1, 127]),
    "number": (pa.int64(), [0, 1, -1, 2**62]),
    "wide": (pa.decimal128(38, 2), [Decimal(0), Decimal("1.25"), Decimal("-1.25"), Decimal(10**30)]),
    "real": (pa.float64(), [0.0, -0.0, 1.5, float("inf")]),
    "half": (pa.float32(), [0.0, 1.5, -1.5]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [dt.date(2026, 1, 1), dt.date(1969, 12, 31)]),
    "time": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 1, tzinfo=dt.UTC)]),
    "fixed": (pa.binary(5), [b"abcde", b"abcdf"]),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": "a"}, {"x": 1, "y": None}],
    ),
    "list": (pa.list_(pa.int64()), [[1, 2], [2, 1], [], [1], [1, 2, 3], [None]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 2)], [("b", 1)], []]),
    "lists of structs": (pa.list_(pa.struct([("x", pa.string())])), [[{"x": "a"}], [{"x": "b"}], [{"x": "a"}, {"x": "a"}], [None]]),
}


def table_of(kind, values):
    return pa.table({"v": pa.array(values, kind)})


@pytest.mark.parametrize("name", VALUES)
def test_all_values_of_a_type_and_null_have_hashes_of_their_own(name):
    kind, values = VALUES[name]
    hashes = row_hashes(table_of(kind, [*values, None]), ["v"], 1)
    assert len(set(hashes.tolist())) == len(values) + 1
    assert row_hashes(table_of(kind, [*values, None]), ["v"], 2).tolist() != hashes.tolist()


@pytest.mark.parametrize("name", VALUES)
def test_neither_order_nor_slices_nor_chunks_change_a_digest(name):
    kind, values = VALUES[name]
    rows = [*values, None, *values]
    whole = table_of(kind, rows)
    found = digest_rows(whole, ["v"], 7)
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    assert digest_rows(table_of(kind, shuffled), ["v"], 7) == found
    parts = [whole.slice(0, 2), whole.slice(2, 1), whole.slice(3)]
    assert digest_rows(pa.concat_tables(parts), ["v"], 7) == found
    assert sum((digest_rows(part, ["v"], 7) for part in parts), RowDigest()) == found
    assert row_hashes(whole.slice(3), ["v"], 7).tolist() == row_hashes(whole, ["v"], 7).tolist()[3:]


def test_what_differs_between_sets_shows():
    rows = pa.table({"k": ["a", "b", "c", "d"], "ts": [1, 2, 3, 4]})
    found = digest_rows(rows, ["k", "ts"], 7)
    changed = {
        "a value": pa.table({"k": ["a", "b", "c", "d"], "ts": [1, 2, 3, 5]}),
        "values changed places": pa.table({"k": ["a", "b", "c", "d"], "ts": [2, 1, 3, 4]}),
        "a row for another": pa.table({"k": ["a", "a", "c", "d"], "ts": [1, 1, 3, 4]}),
        "a pair for another": pa.table({"k": ["a", "a", "b", "b"], "ts": [1, 1, 2, 2]}),
        "a row less": rows.slice(1),
        "a null": pa.table({"k": ["a", "b", "c", None], "ts": [1, 2, 3, 4]}),
    }
    for name, other in changed.items():
        assert digest_rows(other, ["k", "ts"], 7) != found, name
    assert digest_rows(rows, ["ts", "k"], 7) != found
    assert digest_rows(rows.slice(0, 0), ["k", "ts"], 7) == RowDigest()


def test_many_random_sets_have_different_digests():
    choose, seen = random.Random(5), set()
    for _ in range(2000):
        keys = [choose.choice("abc") for _ in range(choose.randint(0, 4))]
        seen.add((tuple(sorted(keys)), digest_rows(pa.table({"k": pa.array(keys, pa.string())}), ["k"], 3)))
    assert len({keys for keys, _ in seen}) == len({digest for _, digest in seen}) == len(seen)


def test_the_seed_of_a_text_is_stable():
    assert seed_of("20260101000000000") == seed_of("20260101000000000") != seed_of("20260101000000001")


def test_digests_of_texts_are_those_of_earlier_releases():
    """Receipts of commits hold them: texts of one length, of several, and with a few that are much longer than the others."""
    short = [f"k{n:07}" for n in range(100)]
    mixed = [f"key {n * n}, line {n}" for n in range(100)] + ["", "é漢😀", "a\x00"]
    uneven = [*mixed, "y" * 200, "z" * 300]
    assert [digest_rows(table_of(pa.string(), texts), ["v"], 7).text for texts in (short, mixed, uneven)] == [
        "83ed3776dc85e998d5fb3a32245553f6",
        "f557f1e0ebc7957665fc6b4904852f8f",
        "a470c5d6b5cfac1e3cf2ad6841c033d8",
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()], ids=str)
def test_the_layout_of_texts_does_not_change_their_digest(kind, monkeypatch):
    texts = table_of(pa.string(), ["", "a", "ab" * 5, "\x00" * 9, "x" * 40] * 3).column("v").cast(kind)
    laid_out = digest_rows(pa.table({"v": texts}), ["v"], 7)
    monkeypatch.setattr(row_digest, "_MOST_PADDING", 0)
    assert digest_rows(pa.table({"v": texts}), ["v"], 7) == laid_out
