"""Converts Arrow columns to JSON values; the reverse of `typed_values`. Integers are JSON numbers of any size.

Dates, times and timestamps are ISO 8601 text (timestamps with a zone in UTC, with Z; three digits of seconds if exact, else six).
Decimals are JSON numbers with all digits, bytes are base64, NaN and the infinities are "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import simplejson


def json_rows(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield each row as one JSON object in UTF-8, without a line end."""
    columns = [json_column(column) for column in batch.columns]
    names = batch.schema.names
    for row in zip(*columns, strict=True):
        document = dict(zip(names, row, strict=True))
        yield simplejson.dumps(document, ensure_ascii=False, separators=(",", ":"), use_decimal=True).encode()


def json_column(column: pa.Array) -> list[Any]:
    """Return the values of `column` as `json` writes them."""
    kind = column.type
    if pa.types.is_floating(kind):
        return [v if v is None or math.isfinite(v) else _number_word(v) for v in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
    if pa.types.is_temporal(kind):
        texts: list[Any] = text_column(column).to_pylist()
        return texts
    if pa.types.is_map(kind):
        entries = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        return [
            None if pairs is None else {p[kind.key_field.name]: p[kind.item_field.name] for p in pairs} for pairs in _lists(entries)
        ]
    if pa.types.is_list(kind):
        return _lists(column)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = zip(*(json_column(child) for child in column.flatten()), strict=True) if names else iter([()] * len(column))
        valid = column.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]
    values: list[Any] = column.to_pylist()
    return values


def text_column(column: pa.Array) -> pa.Array:
    """Return a temporal or decimal column as the text that JSON and CSV contain."""
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return column.cast(pa.string())
    local = column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit)) if kind.tz is not None else column
    text = pc.replace_substring(local.cast(pa.string()), " ", "T", max_replacements=1)
    text = pc.replace_substring_regex(text, r"(\.\d{3})000$", r"\1")
    return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")


def _lists(column: pa.Array) -> list[Any]:
    flat = json_column(column.flatten())
    found: list[Any] = []
    at = 0
    for length in pc.list_value_length(column).to_pylist():
        found.append(None if length is None else flat[at : at + length])
        at += length or 0
    return found


def _number_word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
