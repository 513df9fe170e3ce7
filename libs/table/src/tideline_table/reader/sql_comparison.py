"""Comparisons of a `where` as in SQL: NaN equals itself and is greater than every other value, to DuckDB and to Spark."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Compare = Callable[[Any, Any], pc.Expression]


def compared_value(compare: Compare, column: pc.Expression, kind: pa.DataType, value: pa.Scalar) -> pc.Expression:
    """Return the comparison of `column` of type `kind` with `value`. It is null for null."""
    plain = compare(column, value)
    if not pa.types.is_floating(kind):
        return plain
    nan = column.is_nan()
    if is_nan(value):
        return {
            operator.eq: nan,
            operator.ge: nan,
            operator.ne: ~nan,
            operator.lt: ~nan,
            operator.gt: nan & ~nan,
            operator.le: nan | ~nan,
        }[compare]
    return plain | nan if compare in (operator.gt, operator.ge) else plain


def compared_columns(
    compare: Compare, one: pc.Expression, one_kind: pa.DataType, other: pc.Expression, other_kind: pa.DataType
) -> pc.Expression:
    """Return the comparison of two columns. It is null where one of them is."""
    # Arrow refuses to compare an integer that the other type does not hold exactly; SQL rounds it.
    if pa.types.is_integer(one_kind) and pa.types.is_floating(other_kind):
        one, one_kind = one.cast(other_kind, safe=False), other_kind
    elif pa.types.is_integer(other_kind) and pa.types.is_floating(one_kind):
        other, other_kind = other.cast(one_kind, safe=False), one_kind
    plain = compare(one, other)
    here = one.is_nan() if pa.types.is_floating(one_kind) else None
    there = other.is_nan() if pa.types.is_floating(other_kind) else None
    if here is None and there is None:
        return plain
    here = here if here is not None else one != one  # noqa: PLR0124 - false, and null for null
    there = there if there is not None else other != other  # noqa: PLR0124
    if compare is operator.eq:
        return plain | (here & there)
    if compare is operator.ne:
        return plain & ~(here & there)
    if compare in (operator.lt, operator.le):
        here, there = there, here
    # From here on, `here` is NaN on the side that is to be greater.
    return plain | (here & ~there) if compare in (operator.gt, operator.lt) else plain | (here & (there | ~there))


def is_nan(value: pa.Scalar) -> bool:
    """Return whether `value` is NaN."""
    return bool(pa.types.is_floating(value.type) and pc.is_nan(value).as_py())


def held_numbers(literals: list[str], kind: pa.DataType, values: list[pa.Scalar]) -> list[pa.Scalar]:
    """Return `values`, the `literals` in floating type `kind`, with those as doubles that only became infinite in `kind`."""
    doubles = pa.array(literals, pa.string()).cast(pa.float64())
    overflown = pc.and_(pc.is_inf(pa.array(values, kind)), pc.is_finite(doubles)).to_pylist()
    return [double if over else value for double, value, over in zip(doubles, values, overflown, strict=True)]
