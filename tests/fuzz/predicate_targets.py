"""The parser of filters that are written as text."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal

import pyarrow as pa
from tests.fuzz.target import Target

from tideline_table.reader.predicate import parse_where

ROWS = pa.table({
    "a": pa.array([1, None], pa.int64()),
    "i": pa.array([1, None], pa.int32()),
    "x": [0.5, None],
    "p": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
    "s": ["x", None],
    "ok": [True, None],
    "d": [date(2024, 1, 1), None],
    "z": pa.array([datetime(2024, 1, 1), None], pa.timestamp("us", "UTC")),
    "l": pa.array([datetime(2024, 1, 1), None], pa.timestamp("ms")),
    "t": pa.array([time(1), None], pa.time64("us")),
    "b": [b"x", None],
    "deep": [[1], None],
})  # fmt: skip
_SEEDS = (
    b"a = 1 OR (x < -1.5e0 AND NOT s LIKE 'a%\\_b') OR 2 >= i",
    b"a IN (1, 2.5, -3) AND i NOT IN (5000000000) AND p IN (1.50, '2.00', 1e3)",
    b"\"s\" = 'it''s' AND s NOT LIKE '_' AND deep IS NOT NULL OR NOT b IS NULL",
    b"d BETWEEN DATE '2024-01-01' AND '2024-12-31' AND ok AND ok = TRUE",
    b"z > TIMESTAMP '2024-01-01 10:00:00.123456+01:00' AND l <> '2024-01-01T00:00:00' AND t < '12:30:00.5'",
    b"a = 1 OR a = 2 OR a = 3 OR x = 0 OR x = 0.1 OR a < x OR p >= a",
    b"(((a)) = ((1))) AND NOT (NOT (NOT (ok OR i > 3)))",
    b"x < 1e-400 OR x > 1e400 OR p > 0.125",
)


def _where(content: bytes) -> pa.Table:
    return ROWS.filter(parse_where(content.decode(errors="backslashreplace"), ROWS.schema))


TARGETS = (Target("predicate", _where, _SEEDS),)
