"""Statistics of columns: their types and values, their form in JSON, and how rows that are written and footers give them.

A *stored value* is what a statistic holds: the number behind a date, a time or a timestamp, else the value itself.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.schema.arrow import field_of, field_path, named_values

Stored: TypeAlias = bool | int | float | str | bytes | Decimal

_FIXED: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    )
}
_SIZED = re.compile(
    r"fixed_size_binary\[(\d{1,9})\]|decimal(128|256)\((\d{1,2}), (-?\d{1,2})\)|timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]"
)


@functools.lru_cache(maxsize=1024)
def is_supported(kind: pa.DataType) -> bool:
    """Return whether columns of this type have statistics: all types without parts but null, half floats and durations.

    Dictionaries of such values have those of the values.
    """
    if pa.types.is_dictionary(kind):
        return is_supported(kind.value_type)
    return str(kind) in _FIXED or _SIZED.fullmatch(str(kind)) is not None


@functools.cache
def type_of(name: str) -> pa.DataType:
    """Return the type with this name. Raises `ValueError` for any other text."""
    if name in _FIXED:
        return _FIXED[name]
    found = _SIZED.fullmatch(name)
    if found is None:
        raise ValueError(f"a column type {name!r}")
    width, bits, precision, scale, unit, zone = found.groups()
    if width is not None:
        return pa.binary(int(width))
    if unit is not None:
        return pa.timestamp(unit, zone)
    return (pa.decimal128 if bits == "128" else pa.decimal256)(int(precision), int(scale))


def stored_value(value: pa.Scalar) -> Stored | None:
    """Return the stored value of a scalar of a supported type, None for a null.

    The two zeros are equal in comparisons; which of them `min_max` returns is left open, so both are stored as one.
    """
    if not value.is_valid:
        return None
    found: Stored = value.value if pa.types.is_temporal(value.type) else value.as_py()
    return 0.0 if isinstance(found, float) and found == 0 else found


def array_of(values: Sequence[Stored | None], kind: pa.DataType) -> pa.Array:
    """Return stored values as an array of the type.

    Raises `ValueError`, `TypeError` or `OverflowError` for values it cannot hold.
    """
    if not pa.types.is_temporal(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


_LONGEST = 64
"""Characters, or bytes, of a bound: longer ones are cut, as their use is to compare files, not rows."""
_LAST, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of one column in one file. Every value that is neither null nor NaN lies between the bounds (both inclusive).

    `kind` names the type (`type_of`). The bounds are stored values, both None if the column has no such value. They are values of
    the column, but for long texts and bytes: `minimum` is then a prefix, `maximum` is above all values with the prefix.
    `nans` is -1 if unknown. Sizes are those of the column in a base file, 0 in a log file.
    """

    kind: str
    minimum: Stored | None
    maximum: Stored | None
    nulls: int
    nans: int = 0
    size_bytes: int = 0
    uncompressed_bytes: int = 0

    def union(self, other: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of both parts of a column together. Both have the same kind."""
        assert self.kind == other.kind
        nans = -1 if self.nans < 0 or other.nans < 0 else self.nans + other.nans
        return replace(
            self,
            minimum=_least(self.minimum, other.minimum),
            maximum=_greatest(self.maximum, other.maximum),
            nulls=self.nulls + other.nulls,
            nans=nans,
            size_bytes=self.size_bytes + other.size_bytes,
            uncompressed_bytes=self.uncompressed_bytes + other.uncompressed_bytes,
        )

    def shortened(self) -> ColumnStatistics:
        """Return the statistics with bounds of at most `_LONGEST` characters or bytes."""
        low, high = self.minimum, self.maximum
        if isinstance(low, str | bytes) and len(low) > _LONGEST:
            low = low[:_LONGEST]
        if isinstance(high, str | bytes) and len(high) > _LONGEST:
            high = _above(high[:_LONGEST]) or high
        return self if (low, high) == (self.minimum, self.maximum) else replace(self, minimum=low, maximum=high)


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """Statistics of one data file. A column that is not in `columns` is not known, unless the file has no rows."""

    rows: int
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)

    def union(self, other: FileStatistics) -> FileStatistics:
        """Return the statistics of the rows of both; of columns that only one of them knows, nothing is known."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        shared = {
            name: held.union(other.columns[name])
            for name, held in self.columns.items()
            if name in other.columns and other.columns[name].kind == held.kind
        }
        return FileStatistics(self.rows + other.rows, shared)


def _least(one: Stored | None, other: Stored | None) -> Stored | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _greatest(one: Stored | None, other: Stored | None) -> Stored | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _above(prefix: str | bytes) -> str | bytes | None:
    """Return the least text (by code points) or bytes above everything with this prefix, None if there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    kept_text = prefix.rstrip(chr(_LAST))
    if not kept_text:
        return None
    following = ord(kept_text[-1]) + 1
    return kept_text[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def statistics_json(files: Mapping[str, FileStatistics]) -> dict[str, Any]:
    """Return the JSON document of statistics by path of a file."""
    columns = list({(name, held.kind): None for file in files.values() for name, held in file.columns.items()})
    return {
        "columns": [list(column) for column in columns],
        "files": {path: [file.rows, [_values(file, *column) for column in columns]] for path, file in files.items()},
    }


def _values(file: FileStatistics, name: str, kind: str) -> list[Any] | None:
    held = file.columns.get(name)
    if held is None or held.kind != kind:
        return None
    return [_written(held.minimum), _written(held.maximum), held.nulls, held.nans, held.size_bytes, held.uncompressed_bytes]


def _written(value: Stored | None) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    # JSON has no infinity, and no decimals of more than 17 digits.
    return str(value) if isinstance(value, float | Decimal) else value


def statistics_from(document: Mapping[str, Any]) -> dict[str, FileStatistics]:
    """Parse the document. Raises `ValueError`, `KeyError`, `TypeError` or another exception in `errors.MALFORMED`."""
    columns = [(str(name), str(kind)) for name, kind in document["columns"]]
    return {
        str(path): FileStatistics(
            int(rows),
            {name: _column(kind, values) for (name, kind), values in zip(columns, found, strict=True) if values is not None},
        )
        for path, (rows, found) in document["files"].items()
    }


def _column(kind: str, values: list[Any]) -> ColumnStatistics:
    low, high, nulls, nans, size, plain = values
    return ColumnStatistics(kind, _read(low, kind), _read(high, kind), int(nulls), int(nans), int(size), int(plain))


def _read(value: Any, kind: str) -> Stored | None:
    if value is None:
        return None
    arrow = type_of(kind)
    if pa.types.is_boolean(arrow):
        return bool(value)
    if pa.types.is_integer(arrow) or pa.types.is_temporal(arrow):
        return int(value)
    if pa.types.is_floating(arrow):
        return float(value)
    if pa.types.is_decimal(arrow):
        if not (found := Decimal(str(value))).is_finite():
            raise ValueError(f"a decimal {value!r}")
        return found
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return str(value)
    return base64.b64decode(str(value), validate=True)


_OWN_WRITER = "parquet-cpp-arrow "
"""How `created_by` begins in footers of Arrow, whose statistics leave out NaN and say nothing of columns without values.

Those of parquet-mr, which Apache Hudi writes, name 0 as the minimum and maximum of a column with a NaN: pruning on them loses rows.
"""


def of_column(values: pa.ChunkedArray, *, is_whole: bool = False) -> ColumnStatistics:
    """Return the statistics of a column of a supported type, or of a dictionary of such values.

    `is_whole`: each value of its dictionaries occurs.
    """
    if pa.types.is_dictionary(values.type):
        parts = [chunk.dictionary for chunk in values.chunks] if is_whole else [values.unique().cast(values.type.value_type)]
        return replace(of_column(pa.chunked_array(parts, values.type.value_type)), nulls=values.null_count)
    nulls, nans = values.null_count, 0
    if pa.types.is_floating(values.type):
        not_a_number = pc.is_nan(values)
        nans = pc.sum(not_a_number).as_py() or 0
        values = values.filter(pc.invert(not_a_number)) if nans else values
    ends = pc.min_max(values)
    return ColumnStatistics(str(values.type), stored_value(ends["min"]), stored_value(ends["max"]), nulls, nans)


@dataclass(slots=True)
class StatisticsCollector:
    """Takes the statistics of `columns` (or fields of structs, by dotted paths) from the rows of one file, which come in parts."""

    columns: Sequence[str]
    _found: FileStatistics = field(default_factory=lambda: FileStatistics(0))

    def add(self, rows: pa.Table, whole: Collection[str] = ()) -> None:
        """Add rows of the file. `whole`: the columns that are dictionaries of which each value occurs."""
        wanted = named_values(rows, self.columns)
        known = {
            field.name: of_column(wanted.column(field.name), is_whole=field.name in whole)
            for field in wanted.schema
            if is_supported(field.type)
        }
        self._found = self._found.union(FileStatistics(rows.num_rows, known))

    def result(self, footer: pq.FileMetaData | None = None) -> FileStatistics:
        """Return the statistics of all rows; with the footer of a base file, also the sizes of the columns."""
        sizes = column_sizes(footer) if footer is not None else {}
        return FileStatistics(
            self._found.rows,
            {
                name: replace(held.shortened(), size_bytes=size, uncompressed_bytes=plain)
                for name, held in self._found.columns.items()
                for size, plain in (sizes.get(name, (0, 0)),)
            },
        )


def column_sizes(footer: pq.FileMetaData) -> dict[str, tuple[int, int]]:
    """Return the bytes of each column, or field of structs by its dotted path, in a base file, compressed and not."""
    sizes: dict[str, tuple[int, int]] = {}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            size, plain = sizes.get(chunk.path_in_schema, (0, 0))
            sizes[chunk.path_in_schema] = (size + chunk.total_compressed_size, plain + chunk.total_uncompressed_size)
    return sizes


def of_footer(footer: pq.FileMetaData, schema: pa.Schema, columns: Collection[str]) -> FileStatistics | None:
    """Return the statistics in the footer of a base file with the stored `schema`; None if another writer than Tideline's wrote it.

    Columns whose statistics are missing in a part of the file are left out. A footer does not say how many NaN a column has.
    """
    if not (footer.created_by or "").startswith(_OWN_WRITER):
        return None
    sizes = column_sizes(footer)
    found: dict[str, ColumnStatistics] = {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        path = field_path(schema, name)
        if name not in columns or not path or not is_supported(field_of(schema, path).type):
            continue
        kind = field_of(schema, path).type
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        parts = [_of_chunk(group.column(at).statistics, group.num_rows, kind) for group in groups]
        if parts and (whole := _together(parts)) is not None:
            size, plain = sizes[name]
            found[name] = replace(whole.shortened(), size_bytes=size, uncompressed_bytes=plain)
    return FileStatistics(footer.num_rows, found)


def _of_chunk(known: Any, rows: int, kind: pa.DataType) -> ColumnStatistics | None:
    nans = -1 if pa.types.is_floating(kind) else 0
    if known is None or not known.has_null_count:
        return None
    if not known.has_min_max:
        return ColumnStatistics(str(kind), None, None, known.null_count, nans) if known.null_count == rows else None
    try:
        low, high = (stored_value(pa.scalar(value, kind)) for value in (known.min, known.max))
    except (ValueError, TypeError, OverflowError, pa.ArrowException):  # a value that the stored type cannot hold
        return None
    return ColumnStatistics(str(kind), low, high, known.null_count, nans)


def _together(parts: Iterable[ColumnStatistics | None]) -> ColumnStatistics | None:
    whole: ColumnStatistics | None = None
    for part in parts:
        if part is None:
            return None
        whole = part if whole is None else whole.union(part)
    return whole
