"""The rows that a table of `tests.walk.both` must hold after the writes of either side."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.conformance.both_in_turn import SCHEMA

Row = dict[str, Any]
ADDED = (pa.string(), pa.int64(), pa.float64())
"""The types of the columns that writes add, in turn."""


def plain(rows: Iterable[Row], columns: list[str]) -> list[str]:
    """The rows as comparable text, sorted."""
    return sorted(
        repr([f"{value:.2f}" if isinstance(value := row.get(column), Decimal) else value for column in columns]) for row in rows
    )


@dataclass
class Model:
    """Number → row, the columns that writes added, and the merge rule."""

    merge: str
    draw: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    added: dict[str, pa.DataType] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*SCHEMA, *self.added.items()])

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    def copied(self) -> Model:
        return Model(self.merge, self.draw, dict(self.rows), dict(self.added))

    def grown(self) -> Model:
        """The model with one column more, which has no values yet."""
        grown = self.copied()
        grown.added[f"x{len(self.added)}"] = ADDED[len(self.added) % len(ADDED)]
        return grown

    # --- rows of a write -----------------------------------------------------------------------------------------------------

    def make(self, numbers: Iterable[int], ts: int, *, late: bool = False) -> list[Row]:
        """New rows, some cells null. Late ones have any ordering value up to `ts`."""
        rate = 0.35 if self.merge == "partial_update" else 0.1
        return [self._row(n, self.draw.randrange(ts + 1) if late else ts, rate, late=late) for n in numbers]

    def _row(self, n: int, ts: int, rate: float, *, late: bool) -> Row:
        extra = 0.25 if late else 0.0
        row: Row = {
            "id": f"k{n:04}",
            "ts": ts,
            "price": n * 1.5 + ts + extra,
            "amount": Decimal(n * ts + int(late)).scaleb(-2),
            "tags": [f"t{n}", str(ts), *(["late"] * late)] if n % 2 or late else None,
            "part": f"p{n % 2}",
        }
        for name, kind in self.added.items():
            row[name] = f"x{n}.{ts}" if pa.types.is_string(kind) else n * 100 + ts + (extra if pa.types.is_floating(kind) else late)
        return {
            name: None if name not in ("id", "ts", "part") and self.draw.random() < rate else value for name, value in row.items()
        }

    def table(self, rows: list[Row]) -> pa.Table:
        return pa.Table.from_pylist(rows, self.schema)

    # --- what a write does ---------------------------------------------------------------------------------------------------

    def put(self, rows: Iterable[Row]) -> None:
        for row in rows:
            number = int(row["id"][1:])
            self.rows[number] = self._merged(self.rows.get(number), row)

    def _merged(self, old: Row | None, new: Row) -> Row:
        if old is None or self.merge == "commit_time":
            return new
        top, below = (new, old) if new["ts"] >= old["ts"] else (old, new)
        if self.merge == "event_time":
            return top
        return {name: below.get(name) if value is None else value for name, value in top.items()} | {
            name: value for name, value in below.items() if name not in top
        }

    def take(self, gone: Callable[[int], bool]) -> None:
        self.rows = {n: row for n, row in self.rows.items() if not gone(n)}

    @property
    def plain(self) -> list[str]:
        return plain(self.rows.values(), self.columns)
