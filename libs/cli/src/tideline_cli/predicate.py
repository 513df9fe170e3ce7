r"""`--where`: a small SQL boolean expression over the columns of a table, as a filter of the scan.

Comparisons (= <> != < <= > >=) of a column with a literal or with another column, AND, OR, NOT, IN, BETWEEN, IS NULL, IS NOT NULL, LIKE
(% and _, \ escapes), and boolean columns by name. Literals become values of the column's type: numbers, 'text', TRUE and FALSE, dates
and timestamps as text (with or without DATE or TIMESTAMP in front). NULL follows SQL: a comparison with it is neither true nor false.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tideline_cli.errors import InvalidPredicate
from tideline_cli.typed_values import BadValue, column_from_text, expected_text

MAX_LENGTH = 100_000
"""Characters of an expression."""
_GRAMMAR = "comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL and LIKE over columns and literals"
_TEXT_CASTS = {exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.DATETIME, exp.DType.TIME}

Compare = Callable[[pc.Expression, pc.Expression], pc.Expression]
_COMPARISONS: dict[type[exp.Expr], tuple[Compare, Compare]] = {
    exp.EQ: (operator.eq, operator.eq),
    exp.NEQ: (operator.ne, operator.ne),
    exp.LT: (operator.lt, operator.gt),
    exp.LTE: (operator.le, operator.ge),
    exp.GT: (operator.gt, operator.lt),
    exp.GTE: (operator.ge, operator.le),
}
"""Each with its mirror image, for a literal on the left."""


def parse_where(text: str, schema: pa.Schema) -> pc.Expression:
    """The filter that `text` says for rows of `schema`. Raises `InvalidPredicate` naming the part that does not fit."""
    if len(text) > MAX_LENGTH:
        raise InvalidPredicate(f"--where of {len(text)} characters", expected=f"at most {MAX_LENGTH}")
    try:
        return _Translation(schema).condition(_parsed(text))
    except RecursionError:
        raise InvalidPredicate("--where is nested too deep", expected="a flatter expression") from None


def _parsed(text: str) -> exp.Expr:
    try:
        parsed = sqlglot.parse(text)
    except SqlglotError as error:
        details = (getattr(error, "errors", None) or [{}])[0]
        near = f" near {details['highlight']!r}" if details.get("highlight") else ""
        raise InvalidPredicate(f"--where {text!r} cannot be parsed{near}", expected=_GRAMMAR) from None
    if len(parsed) != 1 or parsed[0] is None:
        raise InvalidPredicate(f"--where {text!r} is not one expression", expected=_GRAMMAR)
    return parsed[0]


class _Translation:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: exp.Expr) -> pc.Expression:
        """A node that is true, false or null."""
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.Not):
            return ~self.condition(node.this)
        if isinstance(node, exp.And):
            return _balanced([self.condition(part) for part in node.flatten()], operator.and_)
        if isinstance(node, exp.Or):
            return _balanced([self.condition(part) for part in node.flatten()], operator.or_)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if isinstance(node, exp.In | exp.Between | exp.Like):
            found = self._membership(node)
            return ~found if node.args.get("negate") else found
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return pc.field(self._column(node.this).name).is_null()
        if isinstance(node, exp.Column):
            field = self._column(node)
            if not pa.types.is_boolean(field.type):
                raise _refusal(node, f"a condition: column {field.name!r} is of type {field.type}")
            return pc.field(field.name)
        raise _refusal(node, _GRAMMAR)

    def _membership(self, node: exp.In | exp.Between | exp.Like) -> pc.Expression:
        field = self._column(node.this)
        column = pc.field(field.name)
        if isinstance(node, exp.In):
            _only(node, "this", "expressions", "negate")
            # Equalities, not is_in: that one calls NULL a member or not, where SQL says unknown.
            return _balanced([column == _literal(item, field) for item in node.expressions], operator.or_)
        if isinstance(node, exp.Between):
            _only(node, "this", "low", "high", "negate")
            return (column >= _literal(node.args["low"], field)) & (column <= _literal(node.args["high"], field))
        _only(node, "this", "expression", "negate")
        if not pa.types.is_string(field.type) or not (isinstance(node.expression, exp.Literal) and node.expression.is_string):
            raise _refusal(node, "a text column LIKE 'pattern'")
        return pc.match_like(column, node.expression.this)

    def _comparison(self, node: exp.Expr) -> pc.Expression:
        straight, mirrored = _COMPARISONS[type(node)]
        left, right = _bare(node.this), _bare(node.expression)
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            one, other = self._column(left), self._column(right)
            if one.type != other.type and not (_is_number(one.type) and _is_number(other.type)):
                raise _refusal(node, f"columns of one type, not {one.type} and {other.type}")
            if pa.types.is_nested(one.type):
                raise _refusal(node, f"plain columns, not {one.type}")
            return straight(pc.field(one.name), pc.field(other.name))
        if isinstance(left, exp.Column):
            field = self._column(left)
            return straight(pc.field(field.name), _literal(right, field))
        if isinstance(right, exp.Column):
            field = self._column(right)
            return mirrored(pc.field(field.name), _literal(left, field))
        raise _refusal(node, "a column on one side at least")

    def _column(self, node: exp.Expr) -> pa.Field:
        node = _bare(node)
        if not isinstance(node, exp.Column) or len(node.parts) > 1 or not isinstance(node.this, exp.Identifier):
            raise _refusal(node, "a column name")
        if node.name not in self._schema.names:
            near = difflib.get_close_matches(node.name, self._schema.names, n=1)
            known = f"{near[0]!r}?" if near else f"one of {', '.join(self._schema.names)}"
            raise InvalidPredicate(f"--where names column {node.name!r}, which the table does not have", expected=known)
        return self._schema.field(node.name)


def _literal(node: exp.Expr, field: pa.Field) -> pc.Expression:
    node = _bare(node)
    if isinstance(node, exp.Null):
        raise InvalidPredicate(
            f"--where compares column {field.name!r} with NULL, which is never true", expected="IS NULL or IS NOT NULL"
        )
    text = _literal_text(node, field)
    try:
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type):
            raise _refusal(node, f"IS NULL or IS NOT NULL: column {field.name!r} is of type {field.type}")
        return pc.scalar(_scalar(text, field.type, is_number=not _is_text(node)))
    except (BadValue, pa.ArrowInvalid, OverflowError):
        raise _refusal(node, f"{expected_text(field.type)}, as column {field.name!r} is of type {field.type}") from None


def _literal_text(node: exp.Expr, field: pa.Field) -> str:
    """The literal as text, if it is of a kind that a column of this type may be compared with."""
    if isinstance(node, exp.Boolean) and pa.types.is_boolean(field.type):
        return str(node.this).lower()
    if _is_text(node):
        literal = node.this if isinstance(node, exp.Cast) else node
        return str(literal.this)
    if _is_number(field.type):
        if isinstance(node, exp.Literal):
            return str(node.this)
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return f"-{node.this.this}"
    if isinstance(node, exp.Literal | exp.Boolean | exp.Neg):
        raise _refusal(node, f"{expected_text(field.type)} in single quotes, as column {field.name!r} is of type {field.type}")
    raise _refusal(node, f"a literal to compare column {field.name!r} with")


def _scalar(text: str, kind: pa.DataType, *, is_number: bool) -> pa.Scalar:
    if is_number and pa.types.is_integer(kind):
        value = Decimal(text)
        return pa.scalar(int(value), pa.int64()) if value == int(value) else pa.scalar(float(value))
    if is_number and pa.types.is_decimal(kind):
        # More digits than the column has are compared as they are, not rounded.
        return pa.scalar(Decimal(f"{Decimal(text):f}"))
    return column_from_text(pa.array([text], pa.string()), kind)[0]


def _is_text(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return isinstance(node.to, exp.DataType) and node.to.this in _TEXT_CASTS and _is_text(node.this)
    return isinstance(node, exp.Literal) and bool(node.is_string)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _only(node: exp.Expr, *known: str) -> None:
    if any(value for name, value in node.args.items() if name not in known):
        raise _refusal(node, _GRAMMAR)


def _balanced(parts: Sequence[pc.Expression], join: Compare) -> pc.Expression:
    """All parts joined in a tree of least depth: Arrow walks expressions by recursion."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(parts[:middle], join), _balanced(parts[middle:], join))


def _refusal(node: exp.Expr, expected: str) -> InvalidPredicate:
    return InvalidPredicate(f"--where has {node.sql()!r}", expected=expected)
