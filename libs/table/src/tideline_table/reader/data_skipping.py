"""Which files can hold a row for which a filter is true, by the statistics of their columns (data skipping).

The filter is walked once for all files. For each part of it, three arrays say for each file whether a row may make the part
true, false or null. A comparison is decided by evaluating it on the bounds of its column with Arrow, so that it means what it
means on rows: the same conversions take place. What this module does not know may be anything, and leaves every file in.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.reader.expression import Call, Column, Literal, Node, parts_of
from tideline_table.schema.arrow import field_path, is_numeric, is_text, named_field
from tideline_table.statistics import ColumnBounds

Bounds: TypeAlias = Callable[[str], ColumnBounds | None]
"""Returns the bounds of a column, None if nothing is known of it."""

_AT = "\0at"
_Operator: TypeAlias = Callable[[Any, Any], pc.Expression]
_OPERATORS: dict[str, _Operator] = {
    "equal": lambda one, other: one == other,
    "not_equal": lambda one, other: one != other,
    "less": lambda one, other: one < other,
    "less_equal": lambda one, other: one <= other,
    "greater": lambda one, other: one > other,
    "greater_equal": lambda one, other: one >= other,
}
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_OPPOSITE = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}
_UNDECIDED = (ValueError, TypeError, OverflowError, IndexError, KeyError, RecursionError, pa.ArrowException)
"""What Arrow and Python raise for values that cannot be compared: the query itself may raise, or not meet them."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """For each file, whether a row may make a condition true, false, null."""

    true: np.ndarray
    false: np.ndarray
    null: np.ndarray


@dataclass(frozen=True, slots=True)
class _Operand:
    """A column, or a conversion of it that keeps the order of its values."""

    name: str
    expression: pc.Expression
    bounds: ColumnBounds


def may_match(where: pc.Expression | None, schema: pa.Schema, files: int, bounds: Bounds) -> np.ndarray:
    """Return for each of `files` files whether it may hold a row for which `where` is true; `schema` is that of the rows."""
    if where is None:
        return np.ones(files, dtype=bool)
    try:
        return _Evaluation(schema, files, bounds).outcome(parts_of(where)).true
    except RecursionError:
        return np.ones(files, dtype=bool)


class _Evaluation:
    def __init__(self, schema: pa.Schema, files: int, bounds: Bounds) -> None:
        self._schema = schema
        self._files = files
        self._bounds = bounds
        self._anything = _Outcome(*(np.ones(files, dtype=bool) for _ in range(3)))

    def outcome(self, node: Node) -> _Outcome:
        """Return what a boolean part of the filter may be."""
        try:
            found = self._outcome(node)
        except _UNDECIDED:
            found = None
        return self._anything if found is None else found

    def _outcome(self, node: Node) -> _Outcome | None:
        if isinstance(node, Literal):
            return self._constant(node.value)
        if isinstance(node, Column):
            return self._flag(node)
        if not isinstance(node, Call):
            return None
        name, arguments = node.function, node.arguments
        if name in ("and_kleene", "and", "or_kleene", "or") and len(arguments) == 2:
            left, right = (self.outcome(argument) for argument in arguments)
            null = left.null | right.null
            if name.startswith("and"):
                return _Outcome(left.true & right.true, left.false | right.false, null)
            return _Outcome(left.true | right.true, left.false & right.false, null)
        if name == "invert":
            inner = self.outcome(arguments[0])
            return _Outcome(inner.false, inner.true, inner.null)
        if name in _OPERATORS:
            return self._comparison(name, *arguments)
        decide = {
            "is_null": self._is_null,
            "is_valid": self._is_valid,
            "is_nan": self._is_nan,
            "is_in": self._is_in,
            "starts_with": self._has_prefix,
            "match_like": self._has_prefix,
        }.get(name)
        return None if decide is None else decide(node)

    def _none(self) -> np.ndarray:
        return np.zeros(self._files, dtype=bool)

    def _all(self) -> np.ndarray:
        return np.ones(self._files, dtype=bool)

    def _constant(self, value: pa.Scalar) -> _Outcome | None:
        if not pa.types.is_boolean(value.type):
            return None
        is_true = value.as_py()
        return _Outcome(*(self._all() if is_true is wanted else self._none() for wanted in (True, False, None)))

    def _flag(self, column: Column) -> _Outcome | None:
        operand = self._operand(column)
        if operand is None or not pa.types.is_boolean(self._kind(column)):
            return None
        known, held = operand.bounds.known, operand.bounds
        false = np.asarray(pc.equal(held.minimum, pa.scalar(value=False)).fill_null(fill_value=False))
        return _Outcome(self._at_maximum(operand, operand.expression) | ~known, false | ~known, held.may_be_null)

    # --- comparisons ---------------------------------------------------------------------------------------------------------

    def _comparison(self, name: str, left: Node, right: Node) -> _Outcome | None:
        if isinstance(left, Literal):
            name, left, right = _MIRRORED.get(name, name), right, left
        one = self._operand(left)
        if one is None:
            return None
        if isinstance(right, Literal):
            if not right.value.is_valid or _is_nan(right.value):
                return None
            return self._with_value(name, one, right.value)
        other = self._operand(right)
        return None if other is None or other.name == one.name else self._with_column(name, one, other)

    def _with_value(self, name: str, one: _Operand, value: pa.Scalar) -> _Outcome:
        def may(name: str) -> np.ndarray:
            compare, column = _OPERATORS[name], one.expression
            if name == "equal":
                return _and(self._at_minimum(one, column <= value), self._at_maximum(one, column >= value))
            if name == "not_equal":
                return _or(self._at_minimum(one, column != value), self._at_maximum(one, column != value))
            at = self._at_maximum if name.startswith("greater") else self._at_minimum
            return at(one, compare(column, value))

        return self._either(name, may, ~one.bounds.known, one.bounds.may_be_nan, one.bounds.may_be_null)

    def _with_column(self, name: str, one: _Operand, other: _Operand) -> _Outcome:
        here, there = one.bounds, other.bounds

        def ends(*, low: bool) -> pa.Table:
            # The most distant ends in favour of `one < other` (low), or of `one > other`.
            first, second = (here.minimum, there.maximum) if low else (here.maximum, there.minimum)
            return pa.table([first, second, np.arange(self._files)], names=[one.name, other.name, _AT])

        def may(name: str) -> np.ndarray:
            if name == "equal":
                smaller = self._true_in(ends(low=True), one.expression <= other.expression)
                return _and(smaller, self._true_in(ends(low=False), one.expression >= other.expression))
            if name == "not_equal":
                return _and(np.asarray(here.minimum.is_valid()), np.asarray(there.minimum.is_valid()))
            return self._true_in(ends(low=name.startswith("less")), _OPERATORS[name](one.expression, other.expression))

        unknown = ~here.known | ~there.known
        return self._either(name, may, unknown, here.may_be_nan | there.may_be_nan, here.may_be_null | there.may_be_null)

    def _either(
        self, name: str, may: Callable[[str], np.ndarray], unknown: np.ndarray, nan: np.ndarray, null: np.ndarray
    ) -> _Outcome:
        # A comparison with NaN is false, but for `!=`, which is true.
        true, false = may(name) | unknown, may(_OPPOSITE[name]) | unknown
        return _Outcome(true | nan, false, null) if name == "not_equal" else _Outcome(true, false | nan, null)

    def _at_minimum(self, one: _Operand, condition: pc.Expression) -> np.ndarray:
        return self._true_in(pa.table([one.bounds.minimum, np.arange(self._files)], names=[one.name, _AT]), condition)

    def _at_maximum(self, one: _Operand, condition: pc.Expression) -> np.ndarray:
        return self._true_in(pa.table([one.bounds.maximum, np.arange(self._files)], names=[one.name, _AT]), condition)

    def _true_in(self, rows: pa.Table, condition: pc.Expression) -> np.ndarray:
        found = self._none()
        found[np.asarray(rows.filter(condition).column(_AT))] = True
        return found

    def _operand(self, node: Node) -> _Operand | None:
        if isinstance(node, Column):
            path = field_path(self._schema, node.name)
            if not path or self._schema.names.count(path[0]) != 1:
                return None
            # The tables of bounds have columns with dotted names.
            bounds = self._bounds(node.name)
            return None if bounds is None else _Operand(node.name, pc.field(node.name), bounds)
        if not isinstance(node, Call) or node.function != "cast" or node.options is None or not node.arguments:
            return None
        inner = self._operand(node.arguments[0])
        wanted = node.options["to_type"].type
        is_exact = not any(node.options[name].as_py() for name in node.options.type.names if name.startswith("allow_"))
        if inner is None or not is_exact or not isinstance(node.arguments[0], Column):
            return None
        held = self._kind(node.arguments[0])
        return _Operand(inner.name, inner.expression.cast(wanted), inner.bounds) if _keeps_order(held, wanted) else None

    def _kind(self, column: Column) -> pa.DataType:
        return named_field(self._schema, column.name).type

    # --- tests of one column -------------------------------------------------------------------------------------------------

    def _is_null(self, call: Call) -> _Outcome | None:
        if call.options is not None and call.options["nan_is_null"].as_py():
            return None
        return self._validity(call, null=True)

    def _is_valid(self, call: Call) -> _Outcome | None:
        return self._validity(call, null=False)

    def _validity(self, call: Call, *, null: bool) -> _Outcome | None:
        (argument,) = call.arguments
        operand = self._operand(argument)
        if operand is not None:
            without, with_value = operand.bounds.may_be_null, operand.bounds.may_have_value
        elif isinstance(argument, Call):
            inner = self.outcome(argument)
            without, with_value = inner.null, inner.true | inner.false
        else:
            return None
        return _Outcome(without, with_value, self._none()) if null else _Outcome(with_value, without, self._none())

    def _is_nan(self, call: Call) -> _Outcome | None:
        operand = self._operand(call.arguments[0])
        if operand is None:
            return None
        held = operand.bounds
        return _Outcome(held.may_be_nan, np.asarray(held.minimum.is_valid()) | ~held.known, held.may_be_null)

    def _is_in(self, call: Call) -> _Outcome | None:
        (argument,), options = call.arguments, call.options
        if not isinstance(argument, Column) or options is None or (operand := self._operand(argument)) is None:
            return None
        members, kind = options["value_set"].values, self._kind(argument)
        if members is None or not (
            members.type == kind or any(of(members.type) and of(kind) for of in (is_text, pa.types.is_integer))
        ):
            return None
        held = operand.bounds
        values = _comparable(members.drop_null())
        wanted = sorted(value for value in values if value == value)  # noqa: PLR0124 - a NaN differs from itself
        lows, highs = _comparable(held.minimum), _comparable(held.maximum)
        true = np.fromiter((_meets(wanted, low, high) for low, high in zip(lows, highs, strict=True)), bool, self._files)
        true |= ~held.known
        if members.null_count:
            true |= held.may_be_null
        if len(wanted) < len(values):
            true |= held.may_be_nan
        return _Outcome(true, self._all(), self._all())

    def _has_prefix(self, call: Call) -> _Outcome | None:
        (argument,), options = call.arguments, call.options
        if not isinstance(argument, Column) or options is None or options["ignore_case"].as_py():
            return None
        operand = self._operand(argument)
        prefix = _prefix(options["pattern"].as_py(), is_like=call.function == "match_like")
        if operand is None or not prefix or not is_text(self._kind(argument)):
            return None
        lows, highs = operand.bounds.minimum.to_pylist(), operand.bounds.maximum.to_pylist()
        # A text below the prefix may be the bound of longer ones that have it; one above it and without it is above all that have
        # it.
        true = [
            low is not None and high >= prefix and (low < prefix or low.startswith(prefix))
            for low, high in zip(lows, highs, strict=True)
        ]
        return _Outcome(np.array(true, dtype=bool) | ~operand.bounds.known, self._all(), self._all())


def _and(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    both: np.ndarray = one & other
    return both


def _or(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    either: np.ndarray = one | other
    return either


def _keeps_order(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a conversion never turns a smaller value into a larger one."""
    is_numbers = is_numeric(held) and is_numeric(wanted)
    dates = (pa.types.is_date, pa.types.is_timestamp)
    return is_numbers or (any(is_kind(held) for is_kind in dates) and any(is_kind(wanted) for is_kind in dates))


def _is_nan(value: pa.Scalar) -> bool:
    return bool(pa.types.is_floating(value.type) and pc.is_nan(value).as_py())


def _comparable(values: pa.Array) -> list[Any]:
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return list(values.to_pylist())


def _meets(wanted: list[Any], low: Any, high: Any) -> bool:
    """Return whether one of the sorted values lies between the bounds."""
    if low is None:
        return False
    at = bisect.bisect_left(wanted, low)
    return at < len(wanted) and wanted[at] <= high


def _prefix(pattern: str, *, is_like: bool) -> str:
    """Return the text with which every match begins."""
    if not is_like:
        return pattern
    return pattern[: min((at for at in map(pattern.find, "%_\\") if at >= 0), default=len(pattern))]
