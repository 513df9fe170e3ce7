"""Texts as rows of bytes: those of the texts, and zeros behind them, for all types with offsets and for slices."""

import pyarrow as pa
import pytest

from tideline_table.text_words import text_rows

TEXTS = ["", "a", "b\x00c", "é漢😀", "x" * 16]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("width", [16, 24])
def test_rows_are_the_bytes_of_the_texts_and_zeros(kind, width):
    texts = pa.array([text.encode() for text in TEXTS], pa.binary()).cast(kind)
    expected = [text.encode().ljust(width, b"\x00") for text in TEXTS]
    assert [row.tobytes() for row in text_rows(texts, width)] == expected
    assert [row.tobytes() for row in text_rows(texts.slice(2, 2), width)] == expected[2:4]


def test_bytes_need_not_be_utf_8_and_a_null_takes_a_row():
    found = text_rows(pa.array([b"\xff\xfe", None, b"\x80"], pa.binary()), 4)
    assert (found.shape, found[0].tobytes(), found[2].tobytes()) == ((3, 4), b"\xff\xfe\x00\x00", b"\x80\x00\x00\x00")


def test_texts_without_a_byte_have_rows_of_zeros():
    assert not text_rows(pa.array(["", ""], pa.string()), 8).any()
