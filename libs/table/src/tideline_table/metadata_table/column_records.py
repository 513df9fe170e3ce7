"""Records of column statistics: the bounds and counts of a column as Avro data (format reference 15.3; of versions 8 and 9: 8.4).

In version 1 of these records the wrapper of a bound tells its type, and not of all types. Version 2 names the type beside the
bounds.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from tideline_table.metadata_table.records import parsed_schema, record_schema_json
from tideline_table.statistics import ColumnStatistics, FileStatistics, type_of

FILE_TYPE, PARTITION_TYPE = 3, 6
"""Types of records: of a data file, and of all files of a partition of the table."""
DECIMAL = 10
"""The ordinal of decimals, whose bounds are octets."""
_NAMESPACE = "org.apache.hudi.avro.model."
_DECIMAL_DIGITS, _DECIMAL_SCALE = 30, 15
_EVERY_DIGIT, _LAST_DIGIT = Context(prec=_DECIMAL_DIGITS), Decimal(1).scaleb(-_DECIMAL_SCALE)
"""Python's own context has 28 digits."""
_NOTHING = ColumnStatistics("string", None, None, 0)
"""Those of each column in a file without rows. Without bounds, the type of the column is not in the record."""


class ValueType(NamedTuple):
    """How version 2 says the type of bounds, and holds them."""

    ordinal: int
    wrapper: str
    information: str | None = None
    stored: Callable[[Any], Any] = lambda value: value


NULL = ValueType(1, "")
"""Of a file without rows."""


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What a record says about one column of one data file, or of one partition. Bounds are None if there are only nulls."""

    file_name: str
    column: str
    wrapper: str
    """The Avro record, without its namespace, that holds a bound."""
    minimum: Any
    maximum: Any
    values: int
    nulls: int
    size_bytes: int
    uncompressed_bytes: int
    value_type: ValueType | None = None
    """In version 2."""
    record_type: int = FILE_TYPE


def encode(stats: ColumnStats) -> bytes:
    """Return the datum of a record that is not deleted; its key is empty, because the key is in the file."""
    # The encoder takes half the time if it is told the branch of each union.
    document = {
        "fileName": ("string", stats.file_name),
        "columnName": ("string", stats.column),
        "minValue": _wrapped(stats.wrapper, stats.minimum),
        "maxValue": _wrapped(stats.wrapper, stats.maximum),
        "valueCount": ("long", stats.values),
        "nullCount": ("long", stats.nulls),
        "totalSize": ("long", stats.size_bytes),
        "totalUncompressedSize": ("long", stats.uncompressed_bytes),
        "isDeleted": False,
    }
    if stats.value_type is not None:
        named = {"typeOrdinal": stats.value_type.ordinal, "additionalInfo": stats.value_type.information}
        document["valueType"] = (f"{_NAMESPACE}HoodieValueTypeInfo", named)
    sink = io.BytesIO()
    record = {"key": "", "type": stats.record_type, "ColumnStatsMetadata": (f"{_NAMESPACE}HoodieMetadataColumnStats", document)}
    fastavro.schemaless_writer(sink, parsed_schema(record_schema_json(with_meta_fields=True)), record)
    return sink.getvalue()


def _wrapped(wrapper: str, value: Any) -> tuple[str, dict[str, Any]] | None:
    return None if value is None else (f"{_NAMESPACE}{wrapper}", {"value": value})


def has_records_of(file: FileStatistics, column: str) -> bool:
    """Return whether there is a record of the column in a file with these statistics.

    They know it, and Apache Hudi has such a type.
    """
    return column in file.columns and is_indexed(type_of(file.columns[column].kind))


def statistics_datum(
    file_name: str, column: str, file: FileStatistics, *, typed: bool = False, record_type: int = FILE_TYPE
) -> bytes:
    """Return the Avro datum of the record of a column that `has_records_of`; `typed` in version 2."""
    held = file.columns[column] if file.rows else _NOTHING
    kind = type_of(held.kind)
    wrapper = _wrapper(kind)
    assert wrapper is not None
    low, high = held.minimum, held.maximum
    if held.nans:
        # To Spark, NaN is greater than any number. With NaN itself as the maximum, Apache Hudi 1.2.0 leaves the file out of `v >
        # 1`.
        low, high = (math.inf if low is None else low), math.inf
    value_type = None
    if typed:
        # Also of a column without values: readers of Apache Hudi fail on a record of type NULL that is to widen one with bounds.
        value_type = value_type_of(kind) if file.rows else NULL
        wrapper = value_type.wrapper
        low, high = (None if end is None else value_type.stored(end) for end in (low, high))
    low, high = (_EVERY_DIGIT.quantize(end, _LAST_DIGIT) if isinstance(end, Decimal) else end for end in (low, high))
    sizes = (held.size_bytes, held.uncompressed_bytes)
    return encode(ColumnStats(file_name, column, wrapper, low, high, file.rows, held.nulls, *sizes, value_type, record_type))


def is_indexed(kind: pa.DataType) -> bool:
    """Return whether Tideline has records of columns of this type: Apache Hudi has statistics of it in version 6."""
    return _wrapper(kind) is not None


def value_type_of(kind: pa.DataType) -> ValueType:
    """Return how version 2 holds bounds of a column that `is_indexed`."""
    if pa.types.is_decimal(kind):
        scale = kind.scale
        return ValueType(DECIMAL, "BytesWrapper", f"{kind.precision},{scale}", lambda value: _unscaled(value, scale))
    if pa.types.is_timestamp(kind):
        return ValueType((15 if kind.tz else 18) + (kind.unit == "us"), "LongWrapper")
    if pa.types.is_fixed_size_binary(kind):
        return ValueType(9, "BytesWrapper")
    if pa.types.is_date(kind):
        return ValueType(12, "IntWrapper")
    wrapper = _wrapper(kind)
    assert wrapper is not None
    return ValueType(_ORDINALS[wrapper], wrapper)


def _unscaled(value: Decimal, scale: int) -> bytes:
    number = int(value.scaleb(scale, _EVERY_DIGIT))
    # The shortest two's complement, as Java makes it.
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _wrapper(kind: pa.DataType) -> str | None:
    if pa.types.is_decimal(kind):
        fits = kind.precision + _DECIMAL_SCALE - kind.scale <= _DECIMAL_DIGITS and kind.scale <= _DECIMAL_SCALE
        return "DecimalWrapper" if fits else None
    if pa.types.is_timestamp(kind):
        # Of milliseconds and microseconds, the number itself; Avro has no other.
        return "LongWrapper" if kind.unit in ("ms", "us") else None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "BytesWrapper"
    return _WRAPPERS.get(str(kind))


_WRAPPERS = {
    "bool": "BooleanWrapper",
    "int8": "IntWrapper",
    "int16": "IntWrapper",
    "int32": "IntWrapper",
    "int64": "LongWrapper",
    "float": "FloatWrapper",
    "double": "DoubleWrapper",
    "string": "StringWrapper",
    "large_string": "StringWrapper",
    "date32[day]": "DateWrapper",
}


_ORDINALS = {
    "BooleanWrapper": 2,
    "IntWrapper": 3,
    "LongWrapper": 4,
    "FloatWrapper": 5,
    "DoubleWrapper": 6,
    "StringWrapper": 7,
    "BytesWrapper": 8,
}


def decode_column_stats(entries: Iterable[tuple[bytes, bytes]], schema_json: str) -> dict[str, dict[str, Any]]:
    """Return the statistics in records by key, as Avro decodes them. Raises what fastavro raises for other bytes."""
    schema = parsed_schema(schema_json)
    found: dict[str, dict[str, Any]] = {}
    for key, datum in entries:
        record: Any = fastavro.schemaless_reader(io.BytesIO(datum), schema, None)
        found[key.decode()] = record["ColumnStatsMetadata"]
    return found
