"""Two records of column statistics of one key become one, as in Apache Hudi."""

from __future__ import annotations

import io
import math
from typing import Any

import fastavro
import pytest

from tideline_table.errors import CorruptMetadata
from tideline_table.metadata_table.column_records import ColumnStats, ValueType, decode_column_stats, encode, statistics_datum
from tideline_table.metadata_table.records import parsed_schema, record_schema_json
from tideline_table.metadata_table.widened_bounds import widened
from tideline_table.statistics import ColumnStatistics, FileStatistics

SCHEMA = record_schema_json(with_meta_fields=True)
LONG, TEXT, OCTETS = ValueType(4, "LongWrapper"), ValueType(7, "StringWrapper"), ValueType(8, "BytesWrapper")
DOUBLE = ValueType(6, "DoubleWrapper")


def stats(low: Any, high: Any, kind: ValueType = LONG, **changed: Any) -> tuple[bytes, str]:
    datum = encode(ColumnStats("f", "v", kind.wrapper, low, high, 10, 1, 100, 200, kind))
    record: Any = fastavro.schemaless_reader(io.BytesIO(datum), parsed_schema(SCHEMA), None, return_record_name=True)
    record["ColumnStatsMetadata"][1].update(changed)
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, parsed_schema(SCHEMA), record)
    return sink.getvalue(), SCHEMA


def merged(older: tuple[bytes, str], newer: tuple[bytes, str]) -> Any:
    datum, schema = widened(older, newer)
    return decode_column_stats([(b"k", datum)], schema)["k"]


def test_bounds_widen_and_counts_add_up() -> None:
    found = merged(stats(3, 5), stats(4, 9))
    assert (found["minValue"], found["maxValue"]) == ({"value": 3}, {"value": 9})
    assert [found[name] for name in ("valueCount", "nullCount", "totalSize", "totalUncompressedSize")] == [20, 2, 200, 400]
    assert not found["isTightBound"]


def test_bounds_of_one_record_stay_beside_nulls_only() -> None:
    nulls = stats(None, None, ValueType(1, ""))
    for both in ((stats(3, 5), nulls), (nulls, stats(3, 5))):
        found = merged(*both)
        assert (found["minValue"], found["maxValue"], found["valueType"]["typeOrdinal"]) == ({"value": 3}, {"value": 5}, 4)


def test_a_column_without_values_has_its_type() -> None:
    """Apache Hudi's readers take the type of the newer record, and fail on the bounds of the older one if that is NULL."""
    held = FileStatistics(3, {"v": ColumnStatistics("double", None, None, 3)})
    datum = statistics_datum("f", "v", held, typed=True), SCHEMA
    found = merged(stats(3.0, 5.0, DOUBLE), datum)
    assert (found["minValue"], found["maxValue"], found["valueType"]["typeOrdinal"]) == ({"value": 3.0}, {"value": 5.0}, 6)
    assert decode_column_stats([(b"k", datum[0])], SCHEMA)["k"]["valueType"]["typeOrdinal"] == 6
    with pytest.raises(CorruptMetadata, match="two types"):
        widened(stats(3, 5), datum)


@pytest.mark.parametrize("newer", [stats(4, 9, isTightBound=True), stats(4, 9, isDeleted=True)])
def test_tight_bounds_and_deletions_replace(newer: tuple[bytes, str]) -> None:
    assert widened(stats(3, 5), newer) == newer


def test_a_deleted_record_widens_nothing() -> None:
    assert widened(stats(1, 99, isDeleted=True), stats(4, 9)) == stats(4, 9)


def test_nan_is_above_all_numbers_whichever_record_has_it() -> None:
    some, nan = stats(1.0, 2.0, DOUBLE), stats(math.nan, math.nan, DOUBLE)
    for both in ((some, nan), (nan, some)):
        found = merged(*both)
        assert found["minValue"] == {"value": 1.0}
        assert math.isnan(found["maxValue"]["value"])


def test_order_is_that_of_java() -> None:
    found = merged(stats("\uffff", "\uffff", TEXT), stats("\U00010000", "\U00010000", TEXT))
    assert (found["minValue"], found["maxValue"]) == ({"value": "\U00010000"}, {"value": "\uffff"})
    found = merged(stats(b"\x01", b"\x01", OCTETS), stats(b"\xff", b"\xff", OCTETS))
    assert (found["minValue"], found["maxValue"]) == ({"value": b"\xff"}, {"value": b"\x01"})


def test_decimals_are_ordered_by_their_values() -> None:
    """Version 2 holds them as octets, which Apache Hudi turns into numbers first: 3.00 is 01 2C, 1.00 is 64, -1.00 is 9C."""
    decimal = ValueType(10, "BytesWrapper", "10,2")
    found = merged(stats(b"\xff\x38", b"\x01\x2c", decimal), stats(b"\x9c", b"\x64", decimal))
    assert (found["minValue"], found["maxValue"]) == ({"value": b"\xff\x38"}, {"value": b"\x01\x2c"})
    found = merged(stats(b"\x9c", b"\x64", decimal), stats(b"\xff\x38", b"\x01\x2c", decimal))
    assert (found["minValue"], found["maxValue"]) == ({"value": b"\xff\x38"}, {"value": b"\x01\x2c"})


def test_bounds_of_two_types_are_refused() -> None:
    with pytest.raises(CorruptMetadata, match="cannot be merged"):
        widened(stats(3, 5), stats("a", "b", TEXT))
