"""Conditions of Spark as Arrow expressions, as far as both certainly select the same values."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_COMPARISONS: dict[str, tuple[Callable[[Any, Any], pc.Expression], Callable[[Any, Any], pc.Expression]]] = {
    "LessThan": (operator.lt, operator.gt),
    "LessThanOrEqual": (operator.le, operator.ge),
    "GreaterThan": (operator.gt, operator.lt),
    "GreaterThanOrEqual": (operator.ge, operator.le),
}
"""Each comparison with its mirror image, for a constant on the left."""


def implied(condition: Any) -> pc.Expression | None:
    """Return an expression that is true for every row for which `condition` (of an analysed plan) is true; None if there is none.

    It has the equalities, IN lists, comparisons and tests for null of columns and fields of structs, of whole numbers, texts,
    decimals, dates and timestamps, with constants of exactly that type. A cast that Spark's analysis put around a constant is
    part of the constant. Texts count in Spark's own collation only. Floating numbers do not: to Spark, NaN is greater than all
    of them.
    """
    name = condition.getClass().getSimpleName()
    if name in ("And", "Or"):
        left, right = implied(condition.left()), implied(condition.right())
        if left is None or right is None:
            return (left if right is None else right) if name == "And" else None
        return left & right if name == "And" else left | right
    if name in ("IsNull", "IsNotNull"):
        column = condition.child()
        if not _path_of(column) or _type_of(column) is None:
            return None
        field = pc.field(*_path_of(column))
        return field.is_null() if name == "IsNull" else field.is_valid()
    if name in ("EqualTo", "EqualNullSafe"):
        sides = [condition.left(), condition.right()]
        if not _path_of(sides[0]):
            sides.reverse()
        return _one_of(sides[0], [sides[1]])
    if name in _COMPARISONS:
        return _compared(name, condition.left(), condition.right())
    if name == "In":
        return _one_of(condition.value(), [condition.list().apply(at) for at in range(condition.list().length())])
    return None


def _path_of(expression: Any) -> tuple[str, ...]:
    """Return the names from a column to the field of a struct that an expression refers to, one for a column.

    Empty for another one.
    """
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference":
        return (expression.name(),)
    if kind != "GetStructField":
        return ()
    above = _path_of(expression.child())
    return (*above, expression.extractFieldName()) if above else ()


def _compared(name: str, left: Any, right: Any) -> pc.Expression | None:
    straight, mirrored = _COMPARISONS[name]
    if not _path_of(left):
        left, right, straight = right, left, mirrored
    values = _values(left, [right])
    return None if values is None else straight(pc.field(*_path_of(left)), values[0])


def _one_of(column: Any, constants: list[Any]) -> pc.Expression | None:
    values = _values(column, constants)
    return None if values is None else pc.field(*_path_of(column)).isin(values)


def _values(column: Any, constants: list[Any]) -> pa.Array | None:
    """Return constants that are compared with a column as Arrow values, None for another comparison."""
    if not _path_of(column) or (kind := _type_of(column)) is None:
        return None
    name = column.dataType().sql()
    values = []
    for constant in constants:
        if not constant.foldable() or constant.dataType().sql() != name:
            return None
        value = constant.eval(None)
        if value is None:
            return None
        try:
            values.append(_value(value, name))
        except OverflowError:  # a date or time that Python does not have
            return None
    return pa.array(values, kind)


def _type_of(column: Any) -> pa.DataType | None:
    name = column.dataType().sql()
    if name in _WHOLE:
        return pa.int64()
    if name.startswith("DECIMAL"):
        return pa.decimal128(column.dataType().precision(), column.dataType().scale())
    known = {
        "STRING": pa.string(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
    }
    return known.get(name)


def _value(value: Any, name: str) -> Any:
    """Return a constant in Spark's internal form as a value for Arrow."""
    if name == "STRING":
        return value.toString()
    if name.startswith("DECIMAL"):
        return Decimal(value.toString())
    if name == "DATE":
        return dt.date(1970, 1, 1) + dt.timedelta(days=int(value))
    if name.startswith("TIMESTAMP"):
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(value))
        return moment if name == "TIMESTAMP" else moment.replace(tzinfo=None)
    return int(value)
