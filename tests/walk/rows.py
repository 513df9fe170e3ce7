"""The rows of a walk: columns of all types, drawn by the seed, that change as the schema evolves."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

_DEEP = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int32()))])
_ALWAYS: tuple[tuple[str, pa.DataType], ...] = (
    ("id", pa.string()),
    ("n", pa.int32()),
    ("big_n", pa.int64()),
    ("code", pa.string()),
    ("ts", pa.int64()),
    ("part", pa.string()),
    ("price", pa.float64()),
    ("at", pa.timestamp("us", "UTC")),
    ("day", pa.date32()),
    ("flag", pa.bool_()),
    ("amount", pa.decimal128(12, 3)),
    ("place", pa.struct([("city", pa.string()), ("zip", pa.int32()), ("deep", _DEEP)])),
)
_SOMETIMES: tuple[tuple[str, pa.DataType], ...] = (
    ("quantity", pa.int32()),
    ("tags", pa.list_(pa.string())),
    ("counts", pa.map_(pa.string(), pa.int64())),
    ("f", pa.float32()),
    ("raw", pa.binary()),
    ("many", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))),
    ("wide", pa.decimal128(30, 10)),
)
_SOURCES: dict[str, tuple[tuple[str, pa.DataType], ...]] = {
    "": (),
    "dms": (("Op", pa.string()),),
    "debezium": (("_change_operation_type", pa.string()), ("_event_lsn", pa.int64())),
}
"""Columns in which tools that capture changes say what happened to a row, and when."""
_UNAVAILABLE = "__debezium_unavailable_value"
_PROMOTIONS: dict[str, pa.DataType] = {"quantity": pa.int64(), "f": pa.float64()}
_ODD = ("a b", "é漢", "100%", "+", None, "", "Ü", "'")
"""Not with `=`, which is a known difference (docs/peer-differences.md, 17)."""


class Rows:
    """Makes rows.

    What a key's row holds is drawn anew each time; partition and key parts follow from its number, unless rows move.
    """

    def __init__(self, seed: str, *, odd_partitions: bool, source: str) -> None:
        self._r = random.Random(seed)
        self._odd = odd_partitions
        self.columns = [*_ALWAYS, *(column for column in _SOMETIMES if self._r.random() < 0.6)]
        self._source = source
        self.columns.extend(_SOURCES[source])
        self._made_columns = 0
        self._time = 0

    def make(self, numbers: Iterable[int]) -> pa.Table:
        """One row for each number, one or two units of time later than the last ones (some of them late)."""
        rows = [self._row(n) for n in numbers]
        self._time += 2
        return pa.Table.from_pylist(rows, schema=pa.schema([pa.field(name, kind) for name, kind in self.columns]))

    def evolve(self) -> str:
        """Add or widen a column; what was done."""
        kind = self._r.choice(["add", "add", "widen", "nested"])
        for i, (name, old) in enumerate(self.columns):
            if kind == "widen" and name in _PROMOTIONS and old != _PROMOTIONS[name]:
                self.columns[i] = (name, _PROMOTIONS[name])
                return f"widen {name}"
            if kind == "nested" and name == "place":
                self.columns[i] = (name, pa.struct([*old, pa.field(self._new_name(), pa.string())]))
                return "add nested"
        name, added = self._new_name(), self._r.choice([pa.string(), pa.int64(), pa.float64(), pa.date32()])
        self.columns.append((name, added))
        return f"add {name} {added}"

    def drop(self, name: str) -> None:
        """Leave a column out from now on."""
        self.columns = [column for column in self.columns if column[0] != name]

    def rename(self, old: str, new: str) -> None:
        """Give a column another name."""
        self.columns = [(new if name == old else name, kind) for name, kind in self.columns]

    @property
    def droppable(self) -> list[str]:
        """Columns that nothing depends on."""
        kept = {name for name, _ in (*_ALWAYS, *_SOURCES[self._source])}
        return [name for name, _ in self.columns if name not in kept]

    def _new_name(self) -> str:
        self._made_columns += 1
        return f"extra{self._made_columns}"

    def _row(self, n: int) -> dict[str, Any]:
        r = self._r
        row = {name: self._value(kind, n) for name, kind in self.columns}
        row |= {"id": f"k{n:04}", "n": n % 4, "big_n": n, "code": None if n % 5 == 0 else f"c{n % 2}"}
        # Of as many digits as any other: Hudi may order them as texts (docs/peer-differences.md, 22).
        row |= {"ts": 100 + self._time + r.choice([0, 0, 1, -2, -1]), "day": _day(n), "flag": n % 2 == 0}
        row["part"] = _ODD[n % len(_ODD)] if self._odd and n % 3 == 0 else f"p{n % 3}"
        for name, filler in (("price", 1.0), ("amount", Decimal("1.000")), ("at", dt.datetime(2024, 1, 1, tzinfo=dt.UTC))):
            row[name] = filler if row[name] is None else row[name]
        if self._source == "dms":
            row["Op"] = r.choice("IUUD")
        elif self._source == "debezium":
            row |= {"_change_operation_type": r.choice("cuud"), "_event_lsn": row["ts"]}
            texts = [name for name, kind in self.columns if name.startswith("extra") and pa.types.is_string(kind)]
            row |= {name: _UNAVAILABLE for name in texts if r.random() < 0.3}
        # What a partition may be made of does not change with the version.
        row["at"] = row["at"].replace(day=1 + n % 2, hour=0, minute=0, second=0, microsecond=0) if n % 2 else row["at"]
        row["place"] = {**(row["place"] or dict.fromkeys(_names(self.columns, "place"))), "zip": n % 2}
        return row

    def _value(self, kind: pa.DataType, n: int, *, may_be_null: bool = True) -> Any:
        r, types = self._r, pa.types
        if may_be_null and r.random() < 0.15:
            return None
        if types.is_string(kind):
            return r.choice(["é漢😀", f"s{n}", "", "a,b:c", f"x{r.random()}"])
        if types.is_integer(kind):
            return r.choice([n, -n, 0, 2**31 - 1, r.randrange(10**6)])
        if types.is_floating(kind):
            return r.choice([n * 1.5, 0.0, -1.25, float(r.randrange(10**6))])
        if types.is_timestamp(kind):
            since = dt.timedelta(seconds=r.randrange(10**7), microseconds=r.randrange(10**6))
            return dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + since
        if types.is_date(kind):
            return _day(r.randrange(-9, 9))
        if types.is_decimal(kind):
            return Decimal(r.randrange(-(10**9), 10**9)).scaleb(-kind.scale)
        if types.is_boolean(kind):
            return r.random() < 0.5
        if types.is_binary(kind):
            return r.randbytes(r.randrange(6))
        return self._nested(kind, n)

    def _nested(self, kind: pa.DataType, n: int) -> Any:
        # Null elements of arrays are what Hudi cannot write (docs/peer-differences.md, 6).
        if pa.types.is_list(kind):
            return [self._value(kind.value_type, n, may_be_null=False) for _ in range(self._r.randrange(3))]
        if pa.types.is_map(kind):
            return [(f"k{i}", self._value(kind.item_type, n)) for i in range(self._r.randrange(3))]
        return {field.name: self._value(field.type, n) for field in kind}


def _day(n: int) -> dt.date:
    return dt.date(2024, 1, 1) + dt.timedelta(days=n % 3)


def _names(columns: list[tuple[str, pa.DataType]], name: str) -> list[str]:
    return [field.name for field in next(kind for found, kind in columns if found == name)]
