"""Deterministic rows of the stories."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal

import pyarrow as pa

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678, tzinfo=dt.UTC)

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("part", pa.string()),
    ]
)

PartOf = Callable[[int], str | None]


def two_parts(number: int) -> str:
    """Partitions p0 and p1."""
    return f"p{number % 2}"


def trips(numbers: Iterable[int], ts: int | Callable[[int], int | None], part: PartOf = two_parts) -> pa.Table:
    """Rows `k0000`…; values depend on the number and on `ts`, the ordering value."""
    found = []
    for n in numbers:
        at = ts(n) if callable(ts) else ts
        found.append(
            {
                "id": f"k{n:04}",
                "ts": at,
                "price": n * 1.5 + (at or 0) if n % 5 else None,
                "quantity": n * 10 + (at or 0) if n % 4 else None,
                "at": AT + dt.timedelta(minutes=n),
                "day": AT.date() + dt.timedelta(days=n),
                "amount": Decimal(n * 100 + (at or 0)).scaleb(-2),
                "flag": n % 3 == 0,
                # Apache Hudi cannot write an array with a null element: see docs/peer-differences.md.
                "tags": [f"t{n}", "é漢😀"] if n % 2 else None,
                "place": {"city": f"c{n}", "zip": n if n % 3 else None} if n % 6 else None,
                "counts": [("a", n), ("b", None)],
                "part": part(n),
            }
        )
    return pa.Table.from_pylist(found, schema=SCHEMA)


def marked_deleted(rows: pa.Table) -> pa.Table:
    """The same rows as soft deletions."""
    return rows.append_column("_hoodie_is_deleted", pa.array([True] * rows.num_rows))
