"""The clustering experiment on one engine: many small files, a clustering, queries. Standard library only, as `serving`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINEAR = "linear"


@dataclass(frozen=True, slots=True)
class Input:
    """A table to make, as the parent sends it."""

    name: str
    source: str
    """A Parquet file or a folder of them."""
    key: list[str]
    ordering: str
    files: int
    """How many small files to write."""


def asked(frame: Any, column: str, low: Any, high: Any, total: str) -> str:
    """The sum of column `total` of the rows whose `column` lies between two values, both inclusive, as text."""
    values = f"date '{low}' and date '{high}'" if column.endswith("date") else f"{low!r} and {high!r}"
    row = frame.where(f"{column} between {values}").selectExpr(f"cast(sum({total}) as string)").first()
    return str(row[0])
