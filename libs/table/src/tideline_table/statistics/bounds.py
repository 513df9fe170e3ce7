"""The bounds of one column in many files, as arrays, in the type that the table gives the column now."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.statistics.column import ColumnStatistics, FileStatistics, array_of, type_of

_UNFIT = (ValueError, TypeError, OverflowError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """By file: the bounds (null if the column has no value, or is not known), and what else the column may hold."""

    minimum: pa.Array
    maximum: pa.Array
    known: np.ndarray
    """Whether the file's statistics say anything; if not, it may hold any value, null and NaN."""
    may_be_null: np.ndarray
    may_be_nan: np.ndarray

    @property
    def may_have_value(self) -> np.ndarray:
        """Whether the column may hold something other than null."""
        found: np.ndarray = np.asarray(self.minimum.is_valid()) | self.may_be_nan | ~self.known
        return found

    def take(self, at: np.ndarray) -> ColumnBounds:
        """Return the bounds of the files with these numbers."""
        numbers = pa.array(at)
        low, high = self.minimum.take(numbers), self.maximum.take(numbers)
        return ColumnBounds(low, high, self.known[at], self.may_be_null[at], self.may_be_nan[at])

    def followed_by(self, other: ColumnBounds) -> ColumnBounds:
        """Return the bounds of these files and then of the `other` ones, of the same type."""
        low, high = pa.concat_arrays([self.minimum, other.minimum]), pa.concat_arrays([self.maximum, other.maximum])
        flags = ((self.known, other.known), (self.may_be_null, other.may_be_null), (self.may_be_nan, other.may_be_nan))
        return ColumnBounds(low, high, *(np.concatenate(pair) for pair in flags))


@dataclass(frozen=True, slots=True)
class ColumnArrays:
    """Statistics of one column in many files as arrays of stored values; all are null where the file has none in this `kind`."""

    kind: str
    minimum: pa.Array
    maximum: pa.Array
    nulls: pa.Array
    nans: pa.Array


def bounds_of_arrays(rows: pa.Array, columns: Sequence[ColumnArrays], kind: pa.DataType) -> ColumnBounds:
    """Return what `bounds_of` returns, for files with these numbers of rows (null: nothing is known of the file).

    `columns` are the statistics of one column in the kinds that it had; of each file in at most one of them.
    """
    known = np.asarray(pc.equal(rows, 0).fill_null(fill_value=False))
    low = high = pa.nulls(len(rows), kind)
    nulls, nans = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    for column in columns:
        if not _keeps_order(type_of(column.kind), kind):
            continue
        try:
            ends = [pc.coalesce(end, _converted(values, kind)) for end, values in ((low, column.minimum), (high, column.maximum))]
        except _UNFIT:  # a value that the type cannot hold, of a damaged file
            continue
        low, high = ends
        known |= np.asarray(column.nulls.is_valid())
        nulls |= np.asarray(pc.greater(column.nulls, 0).fill_null(fill_value=False))
        nans |= np.asarray(pc.not_equal(column.nans, 0).fill_null(fill_value=False))
    known &= np.asarray(rows.is_valid())
    return ColumnBounds(low, high, known, nulls | ~known, (nans & pa.types.is_floating(kind)) | ~known)


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_temporal(kind) or values.type == kind:
        return values.cast(kind)
    return values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def bounds_of(files: Sequence[FileStatistics | None], name: str, kind: pa.DataType) -> ColumnBounds:
    """Return the bounds of the column `name`, of type `kind` by now, in files with these statistics (None: not known)."""
    held = [_known(file, name, kind) for file in files]
    try:
        low, high = _ends(held, kind)
    except _UNFIT:  # a value that the type cannot hold, of a damaged entry
        held = [found if found is None or _fits(found, kind) else None for found in held]
        low, high = _ends(held, kind)
    known = np.array([found is not None for found in held], dtype=bool)
    nulls = np.array([found is None or found.nulls > 0 for found in held], dtype=bool)
    nans = np.array([found is None or found.nans != 0 for found in held], dtype=bool)
    return ColumnBounds(low, high, known, nulls, nans if pa.types.is_floating(kind) else ~known)


def _known(file: FileStatistics | None, name: str, kind: pa.DataType) -> ColumnStatistics | None:
    """Return the statistics as far as they hold for values of `kind`."""
    if file is None:
        return None
    if not file.rows:
        return ColumnStatistics(str(kind), None, None, 0)
    found = file.columns.get(name)
    if found is None or not _keeps_order(type_of(found.kind), kind):
        return None
    return found


@functools.cache
def _keeps_order(written: pa.DataType, now: pa.DataType) -> bool:
    """Return whether the stored values of a column mean the same after its type changed.

    Readers convert other types in ways of their own: a float to a double by its text, a number to a text with another order.
    """
    same = written == now
    integers = pa.types.is_signed_integer(written) and pa.types.is_signed_integer(now) and written.bit_width <= now.bit_width
    decimals = pa.types.is_decimal(written) and pa.types.is_decimal(now) and written.scale <= now.scale
    texts = _is_text(written) and _is_text(now)
    return bool(same or integers or decimals or texts)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _ends(held: Sequence[ColumnStatistics | None], kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    low = [None if found is None else found.minimum for found in held]
    high = [None if found is None else found.maximum for found in held]
    return array_of(low, kind), array_of(high, kind)


def _fits(found: ColumnStatistics, kind: pa.DataType) -> bool:
    try:
        _ends([found], kind)
    except _UNFIT:
        return False
    return True
