"""Records of column statistics have the bytes that a general Avro encoder gives them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tideline_table.metadata_table.column_stats_datum import ColumnStats, encode, encode_generally

_LONGS = st.integers(-(2**63), 2**63 - 1)
_BOUNDS: dict[str, st.SearchStrategy[Any]] = {
    "BooleanWrapper": st.booleans(),
    "IntWrapper": st.integers(-(2**31), 2**31 - 1),
    "LongWrapper": _LONGS,
    "FloatWrapper": st.floats(width=32, allow_nan=False),
    "DoubleWrapper": st.floats(allow_nan=False),
    "BytesWrapper": st.binary(max_size=300),
    "StringWrapper": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    "DateWrapper": st.integers(-(2**31), 2**31 - 1),
    "DecimalWrapper": st.integers(-(10**25), 10**25).map(lambda number: Decimal(number).scaleb(-15)),
}


@st.composite
def _stats(draw: st.DrawFn) -> ColumnStats:
    wrapper = draw(st.sampled_from(sorted(_BOUNDS)))
    low, high = (draw(st.none() | _BOUNDS[wrapper]) for _ in range(2))
    name, column = draw(st.text(st.characters(exclude_categories=["Cs"]))), draw(st.text(st.characters(exclude_categories=["Cs"])))
    return ColumnStats(name, column, wrapper, low, high, *(draw(_LONGS) for _ in range(4)))


@given(_stats())
def test_a_record_is_encoded_as_by_a_general_encoder(stats: ColumnStats) -> None:
    assert encode(stats) == encode_generally(stats)
