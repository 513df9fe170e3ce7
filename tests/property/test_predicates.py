"""Filters as text: any expression selects what SQLite selects, and any text is a filter or a typed error."""

import itertools
import sqlite3

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import quick

from tideline_table.errors import InvalidPredicate
from tideline_table.reader.predicate import parse_where

PLAIN = [*itertools.product([None, -1, 0, 1, 2], [None, "", "a", "b'"], [None, -1.5, 0.0, 2.0], [None, True, False])]
SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string()), ("x", pa.float64()), ("ok", pa.bool_())])
ROWS = pa.table(
    [pa.array(column, field.type) for column, field in zip(zip(*PLAIN, strict=True), SCHEMA, strict=True)], schema=SCHEMA
)

numbers = st.sampled_from(["-1", "0", "1", "2", "7", "1.5", "-1.5", "2.0", "+1", "1e0", "5000000000", "-0.0"])
texts = st.sampled_from(["''", "'a'", "'b'''", "'A'"])
signs = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
columns = st.one_of(st.tuples(st.sampled_from(["n", "x", '"n"', "(x)"]), st.just(numbers)), st.just(("s", texts)))


@st.composite
def conditions(draw):
    column, literals = draw(columns)
    kind, negation = draw(st.integers(0, 5)), draw(st.sampled_from(["", "NOT "]))
    if kind == 0:
        return f"{column} {negation}IN ({', '.join(draw(st.lists(literals, min_size=1, max_size=5)))})"
    if kind == 1:
        return f"{column} {negation}BETWEEN {draw(literals)} AND {draw(literals)}"
    if kind == 2:
        return draw(st.sampled_from(["ok", "ok = TRUE", "false = ok", "n < x", "x = n", f"{column} IS {negation}NULL"]))
    if kind == 3:
        return f"{draw(literals)} {draw(signs)} {column}"
    return f"{column} {draw(signs)} {draw(literals)}"


expressions = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " or ", " OR "]), inner).map("".join),
        inner.map(lambda text: f"NOT {text}"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def database():
    with sqlite3.connect(":memory:") as found:
        found.execute("CREATE TABLE t (row INTEGER, n INTEGER, s TEXT, x REAL, ok BOOLEAN)")
        found.executemany("INSERT INTO t VALUES (?,?,?,?,?)", [(i, *row) for i, row in enumerate(PLAIN)])
        yield found
    found.close()


@quick
@given(text=expressions)
def test_any_expression_selects_what_sqlite_selects(database, text):
    numbered = ROWS.append_column("row", pa.array(range(len(PLAIN))))
    found = numbered.filter(parse_where(text, SCHEMA)).column("row").to_pylist()
    assert found == [row for (row,) in database.execute(f"SELECT row FROM t WHERE {text} ORDER BY row")]


words = st.sampled_from(
    [*"()=<>,;-+.*'\"%", " ", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "n", "s", "1", "'a'", "DATE", "1e9", "é"]
)


@quick
@given(st.lists(words, max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_filter_or_a_typed_error(text):
    try:
        ROWS.filter(parse_where(text, SCHEMA))
    except InvalidPredicate as error:
        assert error.found and error.expected  # noqa: PT017, PT018 - either outcome is fine, an empty explanation is not
