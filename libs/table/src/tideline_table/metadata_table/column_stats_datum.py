"""The Avro datum of a record of `column_stats`, of which a commit has one for each column of each file (format reference 15.3).

A general Avro encoder resolves the branches of all unions in each record, which takes more than twice as long. Decimals still go through it.
"""

from __future__ import annotations

import functools
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro

from tideline_table.metadata_table.records import parsed_schema, record_schema_json

_TYPE = 3
_NAMESPACE = "org.apache.hudi.avro.model."
_BOUND = "minValue"


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What a record says about one column of one data file. Bounds are None where the file has only nulls."""

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


def encode(stats: ColumnStats) -> bytes:
    """Return the datum of a record that is not deleted; its key is empty, because the key is in the file."""
    head, tail = _around()
    branch, write = _branches().get(stats.wrapper, 0), _WRITERS.get(stats.wrapper)
    bounds = (stats.minimum, stats.maximum)
    if write is None:
        return encode_generally(stats)
    texts = b"".join(b"\x02" + _octets(text.encode()) for text in (stats.file_name, stats.column))
    ends = b"".join(b"\0" if value is None else _long(branch) + write(value) for value in bounds)
    counts = (stats.values, stats.nulls, stats.size_bytes, stats.uncompressed_bytes)
    return b"".join((head, texts, ends, *(b"\x02" + _long(count) for count in counts), tail))


def encode_generally(stats: ColumnStats) -> bytes:
    """Return the same datum by a general Avro encoder."""
    document = {
        "fileName": stats.file_name,
        "columnName": stats.column,
        "minValue": _wrapped(stats.wrapper, stats.minimum),
        "maxValue": _wrapped(stats.wrapper, stats.maximum),
        "valueCount": stats.values,
        "nullCount": stats.nulls,
        "totalSize": stats.size_bytes,
        "totalUncompressedSize": stats.uncompressed_bytes,
        "isDeleted": False,
    }
    sink = io.BytesIO()
    schema = parsed_schema(record_schema_json(with_meta_fields=True))
    fastavro.schemaless_writer(sink, schema, {"key": "", "type": _TYPE, "ColumnStatsMetadata": document})
    return sink.getvalue()


def _wrapped(wrapper: str, value: Any) -> tuple[str, dict[str, Any]] | None:
    return None if value is None else (f"{_NAMESPACE}{wrapper}", {"value": value})


@functools.cache
def _around() -> tuple[bytes, bytes]:
    """Return what comes before the file name, and from `isDeleted` on, in each record."""
    none = encode_generally(ColumnStats("", "", "IntWrapper", None, None, 0, 0, 0, 0))
    # Two empty texts, two bounds without a value, and four counts of 0.
    between = b"\x02\0" * 2 + b"\0" * 2 + b"\x02\0" * 4
    head, _, tail = none.rpartition(between)
    return head, tail


@functools.cache
def _branches() -> dict[str, int]:
    """Return the number of each wrapper in the union of a bound."""
    (statistics,) = (
        branch
        for field in json.loads(record_schema_json(with_meta_fields=True))["fields"]
        if field["name"] == "ColumnStatsMetadata"
        for branch in field["type"]
        if branch != "null"
    )
    (union,) = (field["type"] for field in statistics["fields"] if field["name"] == _BOUND)
    return {branch["name"]: number for number, branch in enumerate(union) if branch != "null"}


def _long(number: int) -> bytes:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    if rest < 128:
        return bytes((rest,))
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _octets(value: bytes) -> bytes:
    return _long(len(value)) + value


_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "BooleanWrapper": lambda value: b"\x01" if value else b"\0",
    "IntWrapper": _long,
    "LongWrapper": _long,
    "DateWrapper": _long,
    "FloatWrapper": struct.Struct("<f").pack,
    "DoubleWrapper": struct.Struct("<d").pack,
    "BytesWrapper": _octets,
    "StringWrapper": lambda value: _octets(value.encode()),
}
