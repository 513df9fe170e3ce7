"""Conditions of Spark as Arrow expressions, as far as both certainly select the same values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def equalities(condition: Any) -> pc.Expression | None:
    """Return an expression that is true for every row for which `condition` (of an analysed plan) is true; None if there is none.

    It has the equalities and IN lists that name a column of a whole number or a text and constants of exactly that type. A cast that
    Spark's analysis put around a constant is part of the constant. Texts count in Spark's own collation only.
    """
    name = condition.getClass().getSimpleName()
    if name in ("And", "Or"):
        left, right = equalities(condition.left()), equalities(condition.right())
        if left is None or right is None:
            return (left if right is None else right) if name == "And" else None
        return left & right if name == "And" else left | right
    if name in ("EqualTo", "EqualNullSafe"):
        sides = [condition.left(), condition.right()]
        if not _is_column(sides[0]):
            sides.reverse()
        return _one_of(sides[0], [sides[1]])
    if name == "In":
        return _one_of(condition.value(), [condition.list().apply(at) for at in range(condition.list().length())])
    return None


def _is_column(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AttributeReference")


def _one_of(column: Any, constants: list[Any]) -> pc.Expression | None:
    if not _is_column(column):
        return None
    kind = column.dataType().sql()
    if kind != "STRING" and kind not in _WHOLE:
        return None
    values = []
    for constant in constants:
        if not constant.foldable() or constant.dataType().sql() != kind:
            return None
        value = constant.eval(None)
        if value is None:
            return None
        values.append(value.toString() if kind == "STRING" else int(value))
    return pc.field(column.name()).isin(pa.array(values, pa.string() if kind == "STRING" else pa.int64()))
