"""Positions of rows on a space-filling curve (Z-order or Hilbert) over columns of any sortable types.

Each column is cut into buckets with about as many rows each (by a sample), so that a skewed column fills the curve as evenly as any
other. The position of a row is the point of its bucket numbers on the curve. Nulls have a bucket of their own, the last one; NaN is
larger than any number. The order among rows of one position follows the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch

MAX_COLUMNS = 16
_POSITION_BITS = 64
_MAX_BITS = 16
POSITION = "_position"

Positions = Callable[[Sequence[np.ndarray], int], np.ndarray]
"""Returns the positions on a curve for bucket numbers (an array for each column) of so many bits."""


def z_order_positions(buckets: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """Return positions on the Z-order curve: the bits of all columns interleaved, the first column first."""
    position = np.zeros(len(buckets[0]), dtype=np.uint64)
    for bit in reversed(range(bits)):
        for column in buckets:
            position = (position << np.uint64(1)) | ((column >> np.uint64(bit)) & np.uint64(1))
    return position


def hilbert_positions(buckets: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """Return positions on the Hilbert curve, by J. Skilling's transformation (Programming the Hilbert curve, 2004)."""
    axes = [column.astype(np.uint64) for column in buckets]
    one = np.uint64(1)
    for bit in reversed(range(1, bits)):
        mask = np.uint64((1 << bit) - 1)
        for axis, column in enumerate(axes):
            is_set = ((column >> np.uint64(bit)) & one).astype(bool)
            swapped = np.where(is_set, np.uint64(0), (axes[0] ^ column) & mask)
            axes[0] = axes[0] ^ np.where(is_set, mask, swapped)
            if axis:
                axes[axis] = column ^ swapped
    for axis in range(1, len(axes)):
        axes[axis] = axes[axis] ^ axes[axis - 1]
    gray = np.zeros(len(axes[0]), dtype=np.uint64)
    for bit in reversed(range(1, bits)):
        is_set = ((axes[-1] >> np.uint64(bit)) & one).astype(bool)
        gray ^= np.where(is_set, np.uint64((1 << bit) - 1), np.uint64(0))
    return z_order_positions([axis ^ gray for axis in axes], bits)


@dataclass(frozen=True)
class CurveOrder:
    """The order of rows along a curve: sort keys are the position, then the columns."""

    bounds: dict[str, pa.Array]
    """For each column, sorted values at equal distances in the sample: the bounds of its buckets."""
    positions: Positions

    @classmethod
    def of(cls, sample: pa.Table, positions: Positions) -> CurveOrder:
        """Return the order along a curve over all columns of `sample`, whose values decide the buckets."""
        bits = _bits(sample.num_columns)
        return cls({name: _bucket_bounds(sample.column(name), (1 << bits) - 2) for name in sample.column_names}, positions)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the sort keys of rows."""
        bits = _bits(len(self.bounds))
        last = (1 << bits) - 1
        buckets = []
        for name, bounds in self.bounds.items():
            column = rows.column(name)
            bucket = passed_bounds(column, bounds) * ((last - 1) // max(1, len(bounds)))
            if column.null_count:
                bucket[pc.is_null(column).to_numpy()] = last
            buckets.append(bucket.astype(np.uint64))
        return rows.select(list(self.bounds)).add_column(0, POSITION, pa.array(self.positions(buckets, bits)))


def passed_bounds(column: pa.ChunkedArray, bounds: pa.Array) -> np.ndarray:
    """Return, for each value, how many of the sorted `bounds` are not larger, in Arrow's order of values; nulls pass all."""
    values = pa.chunked_array([bounds, *column.chunks], column.type)
    # Bounds first on ties, so that a value equal to a bound has passed it: the sort is stable.
    order = pc.sort_indices(values).to_numpy()
    is_bound = order < len(bounds)
    passed = np.empty(len(order), dtype=np.int64)
    passed[order] = np.cumsum(is_bound)
    return passed[len(bounds) :]


def check_columns(columns: Sequence[str], schema: pa.Schema, *, on_a_curve: bool) -> None:
    """Raise `SchemaMismatch` unless the schema has the columns, of types that sort, and not too many for a curve."""
    for name in columns:
        if name not in schema.names:
            raise SchemaMismatch(f"sort column {name!r} is not in the schema", expected=f"columns among {', '.join(schema.names)}")
        kind = schema.field(name).type
        try:
            pc.sort_indices(pa.chunked_array([], kind))
        except pa.ArrowException:  # Arrow raises another class for structs than for lists
            raise SchemaMismatch(f"sort column {name!r} of type {kind}", expected="a type with an order of values") from None
    if on_a_curve and len(columns) > MAX_COLUMNS:
        raise SchemaMismatch(
            f"a space-filling curve over {len(columns)} sort columns",
            expected=f"at most {MAX_COLUMNS}",
            remedy="name the columns that queries filter by; each further one makes the others less selective",
        )


def _bits(columns: int) -> int:
    return min(_MAX_BITS, _POSITION_BITS // columns)


def _bucket_bounds(column: pa.ChunkedArray, most: int) -> pa.Array:
    values = column.drop_null()
    if not len(values):
        return pa.array([], column.type)
    ordered = values.take(pc.sort_indices(values))
    # Repeated values are kept: the bucket of a value is its rank among all rows, so that a column with few values fills the
    # curve, too.
    at = np.linspace(0, len(ordered) - 1, min(most, len(ordered))).astype(np.int64)
    return ordered.take(pa.array(at)).combine_chunks()
