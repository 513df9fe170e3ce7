"""Column statistics from rows that are written, and from footers of base files that Tideline wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.schema.nested import field_of, field_path, named_values
from tideline_table.statistics.column import ColumnStatistics, FileStatistics
from tideline_table.statistics.kinds import is_supported, stored_value

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
