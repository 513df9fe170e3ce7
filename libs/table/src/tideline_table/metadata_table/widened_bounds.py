"""Merge two records of column statistics of one key, as Apache Hudi's readers and compactions do."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import fastavro

from tideline_table.errors import CorruptMetadata
from tideline_table.metadata_table.column_records import DECIMAL, NULL
from tideline_table.metadata_table.records import parsed_schema

_COUNTS = ("valueCount", "nullCount", "totalSize", "totalUncompressedSize")
Datum = tuple[bytes, str]
"""An Avro datum and its schema."""


def widened(older: Datum, newer: Datum) -> Datum:
    """Return the newer record, widened by the older one unless the newer one is tight, or one of them deletes.

    Raises `CorruptMetadata` for records that are none of column statistics, and for bounds of two types.
    """
    try:
        record = _decoded(newer)
        before, now = _decoded(older)["ColumnStatsMetadata"][1], record["ColumnStatsMetadata"][1]
        if now["isDeleted"] or now.get("isTightBound") or before["isDeleted"]:
            return newer
        _widen(before, now)
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed_schema(newer[1]), record)
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise CorruptMetadata(
            f"column statistics that cannot be merged ({type(error).__name__}: {error})", expected="records of one type"
        ) from None
    return sink.getvalue(), newer[1]


def _decoded(datum: Datum) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(datum[0]), parsed_schema(datum[1]), None, return_record_name=True)


def _widen(before: Mapping[str, Any], now: dict[str, Any]) -> None:
    for count in _COUNTS:
        now[count] = None if now[count] is None and before[count] is None else (now[count] or 0) + (before[count] or 0)
    held = [of for of in (before, now) if of["minValue"] is not None and of["maxValue"] is not None]
    # Tideline once wrote NULL as the type of a column without bounds.
    is_typed = now.get("valueType") is not None and now["valueType"][1]["typeOrdinal"] != NULL.ordinal
    types = {repr(of.get("valueType")) for of in ([*held, now] if is_typed else held)}
    if len({repr((of["minValue"][0], of["maxValue"][0])) for of in held}) > 1 or len(types) > 1:
        raise ValueError("bounds of two types")
    if held:
        now["valueType"] = held[0].get("valueType")
        order = partial(_order, is_decimal=now["valueType"] is not None and now["valueType"][1]["typeOrdinal"] == DECIMAL)
        now["minValue"] = min((of["minValue"] for of in held), key=order)
        now["maxValue"] = max((of["maxValue"] for of in held), key=order)


def _order(bound: tuple[str, Any], *, is_decimal: bool) -> Any:
    """Return what orders bounds as in Apache Hudi: texts by UTF-16 units, octets by signed ones, decimals by value, NaN last."""
    value = bound[1]["value"]
    if is_decimal:
        return int.from_bytes(value, "big", signed=True)  # of one scale
    if isinstance(value, float):
        return math.isnan(value), value, math.copysign(1, value)
    if isinstance(value, str):
        return value.encode("utf-16-be", "surrogatepass")
    return [octet - 256 if octet > 127 else octet for octet in value] if isinstance(value, bytes) else value
