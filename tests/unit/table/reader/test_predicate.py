"""Filters as text: what an expression selects, checked against SQLite where SQL is the judge, and what is refused."""

import itertools
import sqlite3
import subprocess
import sys
import time as clock
from datetime import UTC, date, datetime, time
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from tideline_table.errors import InvalidPredicate
from tideline_table.reader.predicate import MAX_CONDITIONS, MAX_DEPTH, MAX_LENGTH, parse_where

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
        ("i = 0e10000000", []),
        ("i IN (1.5, 5000000000, 2)", [1]),
        ("i NOT IN (1.5, 5000000000, 2)", [0]),
        ("i NOT IN (1.5, 2.5)", [0, 1]),
        ("f IN (0.1, 'NaN', 7)", [0]),
        ("p IN (1.505, 2, 1e20)", [1]),
        ("p NOT IN (1.505, '2.00')", [0]),
        ("p < 1e30", [0, 1]),
        ("d IN ('2024-01-02', DATE '2024-01-03')", [1]),
        ("z IN ('2024-01-02', TIMESTAMP '2024-01-01 13:00:00+01:00')", [0, 1]),
        ("z NOT IN ('2024-01-02', '2024-01-03')", [0]),
        ("t IN ('02:00:00', '03:00:00')", [1]),
        ("d = DATE '2024-01-01' OR d = '2024-01-02' OR i = 1 OR i = 2", [0, 1]),
    ],
)
def test_literals_become_values_of_the_columns_type(text, selected):
    numbered = TYPED.append_column("row", pa.array(range(TYPED.num_rows)))
    assert numbered.filter(parse_where(text, TYPED.schema)).column("row").to_pylist() == selected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "ends too early"),
        ("a =", "ends too early"),
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
        ("1 = 1", "a column on at least one side"),
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
        ("DATE(" * 30 + "1" + ")" * 30, "DATE"),
        (" OR ".join(["a > 1 AND s <> 'x'"] * 1000), "2000 conditions"),
        ("a IN (1, 'x', 2)", "'x'"),
        ("a IN ()", "')'"),
        ("a = (x = 1)", "a condition"),
        ("a IN (x)", "a literal"),
        ("(a, 1) = 1", "', 1) = 1'"),
        ("a = 1e10000000", "64 bits"),
        ("a = -1e10000000", "64 bits"),
        ("a < 1e-10000000", "64 bits"),
        ("a = 1e9999999999999999999999", "64 bits"),
        ("a = 0." + "1" * 90_000, "64 bits"),
        ("a = '" + "1" * 90_000 + "'", "64 bits"),
        ("'unclosed", "parsed"),
    ],
)
def test_everything_else_is_refused_by_name(text, named):
    with pytest.raises(InvalidPredicate) as caught:
        parse_where(text, ROWS.schema)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"a IN ({','.join(map(str, range(5, 16_000)))})",
        f"a IN ('5', {','.join(map(str, range(6, 16_000)))})",
        " or ".join(f"a={i}" for i in range(5, 9_000)),
        "(a = 5 OR a = 6 OR a IN (7, 8)) OR 9 = a",
    ],
)
def test_many_values_of_a_column_are_looked_up_by_hash(text):
    started = clock.process_time()
    selected = ROWS.filter(parse_where(text, ROWS.schema))
    rest = ROWS.filter(parse_where(f"NOT ({text})", ROWS.schema))
    assert clock.process_time() - started < 10
    assert selected.num_rows == sum(row["a"] == 5 for row in PLAIN)
    assert rest.num_rows == sum(row["a"] in {0, 1} for row in PLAIN)


def test_as_many_conditions_as_may_be_joined_are_evaluated():
    """On 2 MiB of stack: Arrow recurses once for each."""
    half = MAX_CONDITIONS // 2
    text = " OR ".join(f"a > {i} AND s <> '{i}'" for i in range(half))
    deep = "NOT (" * (MAX_DEPTH // 2) + text + ")" * (MAX_DEPTH // 2)
    answer = subprocess.run([sys.executable, "-c", _COUNT_IN_THREAD], input=deep, capture_output=True, check=False, text=True)
    assert (answer.returncode, answer.stdout) == (0, "1"), answer.stderr[-500:]


_COUNT_IN_THREAD = """
import sys, threading, pyarrow as pa
from tideline_table.reader.predicate import parse_where
rows, text = pa.table({"a": [0, 600], "s": ["x", "y"]}), sys.stdin.read()
def count():
    sys.stdout.write(str(rows.filter(parse_where(text, rows.schema)).num_rows))
threading.stack_size(2 * 2**20)
thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


VALUES = [None, float("-inf"), -0.0, 0.0, 1.5, 3.4e38, float("inf"), float("nan")]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
def test_floating_numbers_compare_as_duckdb_compares_them(kind, sign):
    """NaN equals itself and is the greatest; a number that the column cannot hold is none of its values, and no infinity."""
    pairs = [(one, other) for one in VALUES for other in VALUES]
    rows = pa.table(
        {"row": range(len(pairs)), "x": pa.array([p[0] for p in pairs], kind), "y": pa.array([p[1] for p in pairs], pa.float64())}
    )
    literals = ["'nan'", "1e39", "-1e39", "'inf'", "0", "1.5", "1e300"]
    texts = [f"{negated}(x {sign} {other})" for other in (*literals, "y") for negated in ("", "not ")]
    texts += [f"not ({literal} {sign} x)" for literal in literals] + [
        "x in (1e39, 1.5)",
        "x in (1.5, 1e39, 'nan')",
        "x between 0 and 1e39",
    ]
    with duckdb.connect() as memory:
        for text in texts:
            mine = rows.filter(parse_where(text, rows.schema)).column("row").to_pylist()
            theirs = memory.sql(f"select row from rows where {text} order by row")
            assert mine == [row for (row,) in theirs.fetchall()], text


def test_zeros_and_nan_compare_as_numbers():
    rows = pa.table({"x": [0.0, -0.0, float("nan"), None, 1.0]})
    assert rows.filter(parse_where("x IN (7, 0)", rows.schema)).num_rows == 2
    assert rows.filter(parse_where("x IN (1, -0.0)", rows.schema)).num_rows == 3
    assert rows.filter(parse_where("x IN ('NaN', 'NaN', 1)", rows.schema)).num_rows == 2
    assert rows.filter(parse_where("x IN (1, 'NaN')", rows.schema)).num_rows == 2
    assert rows.filter(parse_where("x NOT IN (1, 'NaN')", rows.schema)).num_rows == 2
    assert rows.filter(parse_where("x NOT IN (0, 1)", rows.schema)).num_rows == 1


def test_numbers_of_an_integer_column_are_not_rounded():
    rows = pa.table({"n": pa.array([2**53, 2**53 + 1, None])})
    assert rows.filter(parse_where(f"n > {2**53}.5", rows.schema)).column("n").to_pylist() == [2**53 + 1]
    assert rows.filter(parse_where(f"n = {2**53}.5", rows.schema)).num_rows == 0


def test_keywords_are_also_parts_of_names():
    rows = pa.table({"order_date": ["x"], "android": [1], "date": [date(2024, 1, 1)], "Not": [True], 'q"': [1]})
    text = '''order_date IN ('x', 'it''s') AND android=1and date > DATE'2023-01-01' AND "Not" AND "q""" = + 1'''
    assert rows.filter(parse_where(text, rows.schema)).num_rows == 1


def test_all_digits_of_a_literal_count():
    rows = pa.table({"n": [1, -1], "p": pa.array([Decimal("1.5"), None], pa.decimal128(30, 7))})
    tiny = f"0.{'0' * 37}1"
    assert rows.filter(parse_where(f"n < {tiny} AND n > -{tiny} OR n = 1", rows.schema)).column("n").to_pylist() == [1]
    assert rows.filter(parse_where(f"p > 1.5{tiny[3:]} OR p > {'9' * 38}.{'9' * 38}", rows.schema)).num_rows == 0
    assert rows.filter(parse_where(f"p IN (1.5{tiny[3:]}, 1.50000)", rows.schema)).num_rows == 1


def test_what_arrow_cannot_compare_is_refused():
    schema = pa.schema([("one", pa.decimal128(38, 38)), ("other", pa.decimal128(38, 0))])
    with pytest.raises(InvalidPredicate, match="cannot be evaluated"):
        parse_where("one < other", schema)


def test_a_misspelt_column_is_guessed():
    with pytest.raises(InvalidPredicate, match="expected 'price'"):
        parse_where("prise > 1", pa.schema([("price", pa.int64()), ("x", pa.int64())]))


@pytest.mark.parametrize("groups", [MAX_DEPTH, MAX_DEPTH + 1, 8_000])
def test_nested_equalities_of_one_column_count_as_levels(groups):
    text = "(id = 1 OR " * groups + "id = 2" + ")" * groups
    schema = pa.schema([("id", pa.int64())])
    if groups <= MAX_DEPTH:
        assert pa.table({"id": [1, 2, 3, None]}, schema).filter(parse_where(text, schema)).to_pydict() == {"id": [1, 2]}
        return
    with pytest.raises(InvalidPredicate, match="nested deeper"):
        parse_where(text, schema)
