"""`--where`: what an expression selects, checked against SQLite where SQL is the judge, and what is refused."""

import itertools
import sqlite3
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from tideline_cli.errors import InvalidPredicate
from tideline_cli.predicate import MAX_LENGTH, parse_where

PLAIN = [
    {"a": a, "s": s, "x": x, "ok": ok}
    for a, s, x, ok in itertools.product([None, 0, 1, 5], [None, "", "ab", "a%b", "Ab"], [None, -1.5, 5.0], [None, True, False])
]
ROWS = pa.Table.from_pylist(
    PLAIN, schema=pa.schema([("a", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("ok", pa.bool_())])
)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1",
        "a == 1",
        "1 < a",
        "0 >= a",
        "a <> 1",
        "a != 1",
        "NOT a = 1",
        "a > -1",
        "a >= 0.5",
        "a = x",
        "a < x",
        "x = -1.5e0",
        "(a = 1) OR s = 'ab'",
        "a = 1 AND s = 'ab' OR x > 0",
        "a = 1 AND (s = 'ab' OR x > 0)",
        "NOT (a = 1 AND x > 0)",
        "NOT (a = 1 OR x > 0)",
        "a IN (0, 5)",
        "a NOT IN (0, 5)",
        "NOT (a IN (0, 5) OR s = 'ab')",
        "s IN ('', 'Ab')",
        "a BETWEEN 1 AND 5",
        "a NOT BETWEEN 1 AND 5",
        "s IS NULL",
        "s IS NOT NULL AND NOT a IS NULL",
        "s LIKE 'a%'",
        "s LIKE '_b'",
        "s NOT LIKE '%b'",
        "s LIKE ''",
        "ok",
        "NOT ok",
        "ok = TRUE",
        "ok AND a = 1",
        "TRUE = ok",
        '"a" = 5',
        "s = 'AB'",
        "((((a)))) = ((5))",
    ],
)
def test_selects_what_sql_selects(text):
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA case_sensitive_like = ON")
    database.execute("CREATE TABLE t (row INTEGER, a INTEGER, s TEXT, x REAL, ok BOOLEAN)")
    database.executemany("INSERT INTO t VALUES (?,?,?,?,?)", [(i, *row.values()) for i, row in enumerate(PLAIN)])
    expected = [row for (row,) in database.execute(f"SELECT row FROM t WHERE {text} ORDER BY row")]
    database.close()

    numbered = ROWS.append_column("row", pa.array(range(len(PLAIN))))
    assert numbered.filter(parse_where(text, ROWS.schema)).column("row").to_pylist() == expected


TYPED = pa.table(
    {
        "i": pa.array([1, 2, None], pa.int32()),
        "f": pa.array([0.1, 0.2, None], pa.float32()),
        "p": pa.array([Decimal("1.50"), Decimal("2.00"), None], pa.decimal128(10, 2)),
        "d": pa.array([date(2024, 1, 1), date(2024, 1, 2), None]),
        "z": pa.array([datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "l": pa.array(["2024-01-01T12:00:00", "2024-01-02T00:00:00", None]).cast(pa.timestamp("ms")),
        "t": pa.array([time(1), time(2), None], pa.time64("us")),
        "b": pa.array([b"1", b"2", None]),
        "list": pa.array([[1], [2], None]),
        "odd name": pa.array(["x", "y", None]),
    }
)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("f = 0.1", [0]),
        ("p > 1.505", [1]),
        ("p = 1.5", [0]),
        ("p BETWEEN 1 AND 1e2", [0, 1]),
        ("p = '2.00'", [1]),
        ("i < 5000000000", [0, 1]),
        ("i < 1.5", [0]),
        ("d = DATE '2024-01-02'", [1]),
        ("d < '2024-01-02'", [0]),
        ("z >= '2024-01-02'", [1]),
        ("z = TIMESTAMP '2024-01-01 13:00:00+01:00'", [0]),
        ("z = '2024-01-01T12:00:00Z'", [0]),
        ("l = TIMESTAMP '2024-01-01 12:00:00.000'", [0]),
        ("t > '01:30:00'", [1]),
        ("b IS NULL", [2]),
        ("list IS NOT NULL", [0, 1]),
        ("\"odd name\" = 'x'", [0]),
        ("NOT list IS NULL AND i IN (1, 7)", [0]),
    ],
)
def test_literals_become_values_of_the_columns_type(text, selected):
    numbered = TYPED.append_column("row", pa.array(range(TYPED.num_rows)))
    assert numbered.filter(parse_where(text, TYPED.schema)).column("row").to_pylist() == selected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not one expression"),
        ("a =", "'='"),
        ("a = 1; DROP TABLE t", "DROP"),
        ("a = 1 b", "b"),
        ("SELECT 1", "SELECT 1"),
        ("b = 1", "column 'b'"),
        ("other.a = 1", "other.a"),
        ("a + 1 = 2", "a + 1"),
        ("UPPER(s) = 'A'", "UPPER(s)"),
        ("a = 'one'", "'one'"),
        ("a = TRUE", "TRUE"),
        ("s = 1", "quotes"),
        ("ok = 1", "true or false"),
        ("a = NULL", "IS NULL"),
        ("a IN (1, NULL)", "IS NULL"),
        ("a IN (SELECT 1)", "SELECT"),
        ("1 = 1", "a column on one side"),
        ("a", "int64"),
        ("TRUE", "TRUE"),
        ("a LIKE '1%'", "text column"),
        ("s LIKE a", "LIKE"),
        ("s LIKE 'a!%' ESCAPE '!'", "ESCAPE"),
        ("s ILIKE 'a'", "ILIKE"),
        ("a = s", "one type"),
        ("a IS TRUE", "IS TRUE"),
        ("a IS DISTINCT FROM 1", "IS DISTINCT FROM"),
        ("a = 99999999999999999999", "64 bits"),
        ("s = CAST(1 AS TEXT)", "CAST"),
        ("EXISTS (SELECT 1)", "EXISTS"),
        ("*", "*"),
        ("a = 1 OR " * (MAX_LENGTH // 9) + "a = 1", "characters"),
        ("(" * 5000 + "a = 1" + ")" * 5000, "nested"),
        ("NOT " * 5000 + "a = 1", "nested"),
        ("'unclosed", "parsed"),
    ],
)
def test_everything_else_is_refused_by_name(text, named):
    with pytest.raises(InvalidPredicate) as caught:
        parse_where(text, ROWS.schema)
    assert named in str(caught.value)


def test_a_long_chain_is_no_deep_tree():
    values = " OR ".join(f"a = {i}" for i in range(5, 2000))
    assert ROWS.filter(parse_where(values, ROWS.schema)).num_rows == sum(row["a"] == 5 for row in PLAIN)


def test_a_misspelt_column_is_guessed():
    with pytest.raises(InvalidPredicate, match="expected 'price'"):
        parse_where("prise > 1", pa.schema([("price", pa.int64()), ("x", pa.int64())]))
