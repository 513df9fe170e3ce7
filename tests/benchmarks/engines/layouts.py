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


def asked(frame: Any, where: str, result: str) -> str:
    """The one value that `result` makes of the rows for which `where` is true, as text."""
    row = frame.where(where).selectExpr(f"cast({result} as string)").first()
    return str(row[0])
