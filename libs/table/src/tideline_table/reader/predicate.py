r"""Filters written as text: a small SQL boolean expression over the columns of a table becomes a filter of the scan.

Comparisons (= <> != < <= > >=) of a column (or a field of a struct, `address.city`) with a literal or with another column, AND,
OR, NOT, IN, BETWEEN, IS NULL, IS NOT NULL, LIKE (% and _, \ escapes), and boolean columns by name. Literals become values of
the column's type: numbers, 'text', TRUE, FALSE, dates and timestamps as text (optional DATE or TIMESTAMP in front). As in SQL,
a comparison with NULL is neither true nor false.

The text may be hostile: the parser takes linear time without recursion, and the limits below bound the recursion in Arrow.
"""

from __future__ import annotations

import difflib
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from lark import Lark, Token
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError
from lark.visitors import Transformer_NonRecursive, v_args

from tideline_table.errors import InvalidPredicate
from tideline_table.reader.sql_comparison import Compare, compared_columns, compared_value, held_numbers, is_nan
from tideline_table.schema.arrow import field_of, field_path, is_numeric
from tideline_table.schema.text_values import REFUSALS, cast_text, expected_text

MAX_LENGTH = 100_000
"""Characters of an expression."""
MAX_CONDITIONS = 1_000
"""Conditions joined by AND and OR. An IN, or equalities of one column joined by OR, count once. Arrow recurses once per condition;
1,000 conditions fit a stack of 2 MiB."""
MAX_DEPTH = 100
"""Levels of parentheses and NOT."""
_MAX_DIGITS = 38
"""Digits before and after the point of a number compared exactly: those of a 128-bit decimal; a 256-bit one has twice as many."""
_INT64_DIGITS = 19
_SHOWN = 80
_PATH = b"tideline.path"
"""Metadata of a field inside of a struct: its dotted path."""
_SYNTAX = "comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL and LIKE over columns and literals"

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: NOT negation -> inversion
    | predicate
?predicate: operand
    | operand COMPARISON operand -> comparison
    | operand [NOT] _IN "(" operand ("," operand)* ")" -> membership
    | operand [NOT] _BETWEEN operand _AND operand -> between
    | operand [NOT] _LIKE operand -> like
    | operand _IS [NOT] NULL -> null_test
?operand: NAME -> column
    | QUOTED -> column
    | NUMBER -> number
    | TEXT -> text
    | BOOLEAN -> boolean
    | NULL -> null
    | "(" disjunction ")" -> parentheses

COMPARISON: "==" | "=" | "<>" | "!=" | "<=" | ">=" | "<" | ">"
NUMBER: /[+-]?\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?/i
TEXT.3: /((DATE|TIMESTAMPTZ|TIMESTAMP|DATETIME|TIME)\s*)?'[^']*(''[^']*)*'/i
QUOTED: /"[^"]*(""[^"]*)*"/
_OR.2: /OR\b/i
_AND.2: /AND\b/i
NOT.2: /NOT\b/i
_IN.2: /IN\b/i
_BETWEEN.2: /BETWEEN\b/i
_LIKE.2: /LIKE\b/i
_IS.2: /IS\b/i
NULL.2: /NULL\b/i
BOOLEAN.2: /(TRUE|FALSE)\b/i
NAME: /[^\W\d]\w*(\.[^\W\d]\w*)*/
%ignore /\s+/
"""

_Test = TypeVar("_Test", bound="_Condition | _Members")
_COMPARISONS: dict[str, tuple[Compare, Compare]] = {
    "=": (operator.eq, operator.eq),
    "==": (operator.eq, operator.eq),
    "<>": (operator.ne, operator.ne),
    "!=": (operator.ne, operator.ne),
    "<": (operator.lt, operator.gt),
    "<=": (operator.le, operator.ge),
    ">": (operator.gt, operator.lt),
    ">=": (operator.ge, operator.le),
}
"""Each operator with its mirror image, for a literal on the left."""


def parse_where(text: str, schema: pa.Schema) -> pc.Expression:
    """Return the filter that `text` expresses for rows of `schema`. Raises `InvalidPredicate` naming the part that does not fit."""
    if len(text) > MAX_LENGTH:
        raise InvalidPredicate(f"where of {len(text)} characters", expected=f"at most {MAX_LENGTH}")
    try:
        found = _Translation(schema).transform(_parser().parse(text))
    except UnexpectedInput as error:
        raise _unparsed(text, error) from None
    except VisitError as error:
        raise error.orig_exc from None
    expression = _condition(found).expression
    try:
        # Arrow reports types that it cannot compare when it binds the expression.
        schema.empty_table().filter(expression)
    except REFUSALS as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidPredicate(f"where {_shown(text)} cannot be evaluated ({reason})", expected=_SYNTAX) from None
    return expression


@functools.cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=True)


def _unparsed(text: str, error: UnexpectedInput) -> InvalidPredicate:
    ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    place = "the text ends too early" if ended else f"at {_shown(text[error.pos_in_stream :])}"
    return InvalidPredicate(f"where {_shown(text)} cannot be parsed: {place}", expected=_SYNTAX)


# --- what the parts of an expression are ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Literal:
    """A literal as it was written, its value as text, and its kind: number, text, boolean or null."""

    shown: str
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Condition:
    """An expression that is true, false or null for each row. `count` counts joined conditions, `depth` levels."""

    expression: pc.Expression
    count: int = 1
    depth: int = 0

    def negated(self, word: str | None = "NOT") -> _Condition:
        """Return the opposite if there is a `word` for it, else the same."""
        return _Condition(~self.expression, self.count, self.depth) if word else self


@dataclass(frozen=True, slots=True)
class _Members:
    """The test that a column equals one of these values. Such tests of one column are joined before Arrow gets any expression."""

    field: pa.Field
    values: Sequence[pa.Scalar]
    depth: int = 0

    def condition(self) -> _Condition:
        """Return the test, looked up by hash; null for null as in SQL."""
        column = _reference(self.field)
        expression = compared_value(operator.eq, column, self.field.type, self.values[0])
        if len(self.values) > 1:
            # `isin` is false for a null; the comparison keeps it null.
            expression |= column.isin(_value_set(self.field.type, self.values))
            if any(map(is_nan, self.values[1:])):
                expression |= column.is_nan()
        return _Condition(expression, depth=self.depth)


_Part: TypeAlias = _Literal | _Condition | _Members | pa.Field


def _condition(part: _Part) -> _Condition:
    if isinstance(part, _Condition):
        return part
    if isinstance(part, _Members):
        return part.condition()
    if isinstance(part, _Literal):
        raise InvalidPredicate(f"where uses the literal {_shown(part.shown)} as a condition", expected=_SYNTAX)
    if not pa.types.is_boolean(part.type):
        raise InvalidPredicate(
            f"where uses column {part.name!r} as a condition", expected=f"a comparison: the column is of type {part.type}"
        )
    return _Condition(_reference(part))


def _reference(field: pa.Field) -> pc.Expression:
    """Return the reference to a column, or to a field of a struct, of which `column` keeps the path."""
    path = (field.metadata or {}).get(_PATH)
    return pc.field(field.name) if path is None else pc.field(*path.decode().split("."))


def _joined(parts: Sequence[_Condition], join: Compare) -> _Condition:
    count = sum(part.count for part in parts)
    if count > MAX_CONDITIONS:
        raise InvalidPredicate(
            f"where joins {count} conditions",
            expected=f"at most {MAX_CONDITIONS}",
            remedy="use IN for values of one column, or filter the rows after reading",
        )
    return _Condition(_balanced([part.expression for part in parts], join), count, max(part.depth for part in parts))


def _balanced(parts: Sequence[pc.Expression], join: Compare) -> pc.Expression:
    """Return all parts joined in a tree of least depth, because Arrow walks expressions by recursion."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(parts[:middle], join), _balanced(parts[middle:], join))


def _nested(part: _Test) -> _Test:
    """Return the condition one level deeper. Raises `InvalidPredicate` below `MAX_DEPTH` levels."""
    if part.depth == MAX_DEPTH:
        raise InvalidPredicate(f"where is nested deeper than {MAX_DEPTH} levels", expected="a flatter expression")
    return replace(part, depth=part.depth + 1)


def _compares(compare: Compare, field: pa.Field, value: pa.Scalar) -> _Condition:
    return _Condition(compared_value(compare, _reference(field), field.type, value))


def _value_set(kind: pa.DataType, values: Sequence[pa.Scalar]) -> pa.Array:
    """Return the values that the column's type can hold; the column cannot equal the others."""
    found: list[pa.Scalar] = []
    for value in values:
        if value.type != kind:
            try:
                value = value.cast(kind)
            except REFUSALS:
                continue
        found.append(value)
    if not pa.types.is_floating(kind):
        return pa.array(found, kind)
    # By hash the two zeros differ. A value of another type was too large for the column (`held_numbers`).
    numbers = [value.as_py() for value in values if value.type == kind and not is_nan(value)]
    return pa.array([*numbers, *([0.0, -0.0] if 0.0 in numbers else [])], kind)


# --- from text to parts --------------------------------------------------------------------------------------------------


@v_args(inline=True)
class _Translation(Transformer_NonRecursive[Token, _Part]):
    """One method for each rule of the grammar that has a name."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self._schema = schema

    def disjunction(self, *parts: _Part) -> _Part:
        members: dict[str, list[_Members]] = {}
        others = []
        for part in parts:
            if isinstance(part, _Members):
                members.setdefault(part.field.name, []).append(part)
            else:
                others.append(_condition(part))
        found = [
            _Members(same[0].field, [value for one in same for value in one.values], max(one.depth for one in same))
            for same in members.values()
        ]
        return found[0] if len(found) == 1 and not others else _joined([*others, *map(_condition, found)], operator.or_)

    def conjunction(self, *parts: _Part) -> _Condition:
        return _joined([_condition(part) for part in parts], operator.and_)

    def inversion(self, _: Token, part: _Part) -> _Condition:
        return _nested(_condition(part)).negated()

    def parentheses(self, part: _Part) -> _Part:
        return _nested(part) if isinstance(part, _Condition | _Members) else part

    def comparison(self, left: _Part, sign: Token, right: _Part) -> _Part:
        straight, mirrored = _COMPARISONS[sign]
        if isinstance(left, pa.Field) and isinstance(right, pa.Field):
            if left.type != right.type and not (is_numeric(left.type) and is_numeric(right.type)):
                raise _mismatch(left, right, f"columns of one type, not {left.type} and {right.type}")
            if pa.types.is_nested(left.type):
                raise _mismatch(left, right, f"plain columns, not {left.type}")
            return _Condition(compared_columns(straight, _reference(left), left.type, _reference(right), right.type))
        if isinstance(right, pa.Field):
            left, right, straight = right, left, mirrored
        field, (value,) = _compared(left, [right])
        return _Members(field, [value]) if straight is operator.eq else _compares(straight, field, value)

    def membership(self, left: _Part, negated: Token | None, *items: _Part) -> _Part:
        found = _Members(*_compared(left, items))
        return found.condition().negated(negated) if negated else found

    def between(self, left: _Part, negated: Token | None, low: _Part, high: _Part) -> _Condition:
        field, (lowest, highest) = _compared(left, [low, high])
        both = _compares(operator.ge, field, lowest).expression & _compares(operator.le, field, highest).expression
        return _Condition(both).negated(negated)

    def like(self, left: _Part, negated: Token | None, pattern: _Part) -> _Condition:
        if (
            isinstance(left, pa.Field)
            and pa.types.is_string(left.type)
            and isinstance(pattern, _Literal)
            and pattern.kind == "text"
        ):
            return _Condition(pc.match_like(_reference(left), pattern.text)).negated(negated)
        raise _mismatch(left, pattern, "a text column LIKE 'pattern'")

    def null_test(self, left: _Part, negated: Token | None, _: Token) -> _Condition:
        if not isinstance(left, pa.Field):
            raise InvalidPredicate(f"where has {_part_text(left)} IS NULL", expected="a column name")
        return _Condition(_reference(left).is_null()).negated(negated)

    def column(self, name: str) -> pa.Field:
        name = name[1:-1].replace('""', '"') if name.startswith('"') else str(name)
        path = field_path(self._schema, name)
        if not path:
            near = difflib.get_close_matches(name[:_SHOWN], self._schema.names, n=1)
            known = f"{near[0]!r}?" if near else f"one of {', '.join(self._schema.names)}"
            raise InvalidPredicate(f"where names column {_shown(name)}, which the table does not have", expected=known)
        found = field_of(self._schema, path)
        return found if len(path) == 1 else found.with_metadata({_PATH: name.encode()})

    def number(self, token: Token) -> _Literal:
        return _Literal(token, "".join(token.split()).removeprefix("+"), "number")

    def text(self, token: Token) -> _Literal:
        return _Literal(token, token[token.index("'") + 1 : -1].replace("''", "'"), "text")

    def boolean(self, token: Token) -> _Literal:
        return _Literal(token, token.lower(), "boolean")

    def null(self, token: Token) -> _Literal:
        return _Literal(token, "", "null")


# --- literals as values of a column's type -------------------------------------------------------------------------------


def _compared(left: _Part, items: Sequence[_Part]) -> tuple[pa.Field, list[pa.Scalar]]:
    """Return a column and the literals that it is compared with, as values that Arrow compares with it."""
    if not isinstance(left, pa.Field):
        raise _mismatch(left, items[0], "a column on at least one side")
    literals = [_fitting(left, item) for item in items]
    try:
        return left, _values(literals, left.type)
    except (*REFUSALS, InvalidOperation):
        if len(items) > 1:
            for item in items:
                _compared(left, [item])
    raise _mismatch(left, literals[-1], f"{expected_text(left.type)}, as the column is of type {left.type}")


def _fitting(field: pa.Field, item: _Part) -> _Literal:
    """Return the literal if its kind can be compared with this column, else raise `InvalidPredicate`."""
    kind = field.type
    if not isinstance(item, _Literal):
        raise _mismatch(field, item, "a literal")
    if item.kind == "null":
        raise InvalidPredicate(
            f"where compares column {field.name!r} with NULL, which is never true", expected="IS NULL or IS NOT NULL"
        )
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        raise _mismatch(field, item, f"IS NULL or IS NOT NULL: the column is of type {kind}")
    if item.kind == "text" or (is_numeric(kind) if item.kind == "number" else pa.types.is_boolean(kind)):
        return item
    raise _mismatch(field, item, f"{expected_text(kind)} in single quotes, as the column is of type {kind}")


def _values(literals: Sequence[_Literal], kind: pa.DataType) -> list[pa.Scalar]:
    exact = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    if exact and any(literal.kind == "number" for literal in literals):
        return [_exact(v.text, kind) if v.kind == "number" else _values([v], kind)[0] for v in literals]
    texts = [literal.text for literal in literals]
    values = list(cast_text(pa.array(texts, pa.string()), kind))
    return held_numbers(texts, kind, values) if pa.types.is_floating(kind) else values


def _exact(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a number as it is, not rounded to the digits of the column."""
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    if not value:
        value, exponent = Decimal(0), 0
    if not isinstance(exponent, int) or value.adjusted() >= _MAX_DIGITS or -exponent > _MAX_DIGITS:
        raise ValueError(text)
    if pa.types.is_integer(kind) and value == value.to_integral_value():
        return pa.scalar(int(value), pa.int64())
    scale, whole = max(-exponent, 0), max(value.adjusted() + 1, 1)
    most, behind = (_INT64_DIGITS, 0) if pa.types.is_integer(kind) else (kind.precision - kind.scale, kind.scale)
    # Both sides are compared in one type that holds all digits of both.
    wide = max(whole, most) + max(scale, behind) > _MAX_DIGITS
    return pa.scalar(Decimal(f"{value:f}"), pa.decimal256(whole + scale, scale) if wide else pa.decimal128(whole + scale, scale))


def _part_text(part: _Part) -> str:
    if isinstance(part, _Literal):
        return _shown(part.shown)
    return f"column {part.name!r}" if isinstance(part, pa.Field) else "a condition"


def _mismatch(left: _Part, right: _Part, expected: str) -> InvalidPredicate:
    return InvalidPredicate(f"where compares {_part_text(left)} with {_part_text(right)}", expected=expected)


def _shown(text: str) -> str:
    return f"{str(text[:_SHOWN])!r}{'…' * (len(text) > _SHOWN)}"
