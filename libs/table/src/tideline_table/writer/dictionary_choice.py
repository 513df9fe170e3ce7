"""Which columns of a base file are encoded with a dictionary: not those in which it would need more bytes than the plain values.

Such a column is hashed for nothing: the encoder of columns of nearly distinct values takes two to three times as long with a
dictionary, and the file grows. A sample of the rows decides, because a count of all distinct values would take as long as the
hashing.
"""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.schema.meta_fields import MetaField

_UNIQUE_COLUMNS = (MetaField.COMMIT_SEQNO.value, MetaField.RECORD_KEY.value)
_BLOCKS = 8
_BLOCK_ROWS = 256
_LEAST_ROWS = 8 * _BLOCKS * _BLOCK_ROWS
"""Fewer rows are encoded in the time that the choice takes."""
_CLEARLY_REPEATED = 0.75
_LENGTH_BYTES = 4
"""Bytes that Parquet adds to a text."""


def dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the columns to encode with a dictionary in a base file that begins with `rows`, which include the meta fields."""
    names = [name for name in rows.schema.names if name not in _UNIQUE_COLUMNS]
    if rows.num_rows < _LEAST_ROWS:
        return names
    gap = (rows.num_rows - _BLOCK_ROWS) // (_BLOCKS - 1)
    return [name for name in names if _is_shorter(rows.column(name), gap)]


def _is_shorter(column: pa.ChunkedArray, gap: int) -> bool:
    """Return whether a dictionary shortens the column, by blocks that begin `gap` rows apart.

    It stays where the sample cannot tell.
    """
    width = _width(column.type)
    if width is None or _is_repeated(column.slice(len(column) // 2, _BLOCK_ROWS)):
        return True
    blocks = [column.slice(at * gap, _BLOCK_ROWS) for at in range(_BLOCKS)]
    sample = pa.chunked_array([chunk for block in blocks for chunk in block.chunks], column.type)
    if _is_repeated(sample):
        return True
    filled, different = len(sample) - sample.null_count, _distinct(sample)
    if width == 0:
        width = _LENGTH_BYTES + sample.nbytes / len(sample)
    # Repetitions among neighbours, as in rows that are sorted by another column, and repetitions all over the rows.
    near = filled if different == filled else sum(map(_distinct, blocks))
    repeated = near - different
    count = len(column) * filled / len(sample)
    distinct = count * near / filled
    if repeated:
        # Pairs of blocks show so many repetitions if all rows have about this number of equally frequent values.
        values = near**2 * (1 - 1 / _BLOCKS) / (2 * repeated)
        distinct = values * -math.expm1(-distinct / values)
    number_bits = math.ceil(math.log2(max(2.0, distinct)))
    return bool(distinct * width + count * number_bits / 8 < count * width)


def _is_repeated(values: pa.ChunkedArray) -> bool:
    return bool(_distinct(values) <= _CLEARLY_REPEATED * (len(values) - values.null_count))


def _distinct(values: pa.ChunkedArray) -> int:
    return int(pc.count_distinct(values).as_py())


def _width(kind: pa.DataType) -> float | None:
    """Return the bytes of a plain value in Parquet; 0 where they depend on the value, None for types that are not examined."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 0
    if pa.types.is_decimal(kind):
        return math.ceil((int(kind.precision) * math.log2(10) + 1) / 8)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)):
        return None
    return max(4, int(kind.bit_width) // 8)
