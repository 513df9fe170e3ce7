"""A table of trips on a local disk, by the public API alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tideline

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("fare", pa.float64()), ("updated_at", pa.int64())])
Trip = tuple[str, str, float | None, int]
FIRST = (("a", "mon", 90.0, 1), ("b", "mon", 200.0, 1), ("c", "tue", None, 1))


def trips_of(*trips: Trip) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, trip, strict=True)) for trip in trips], SCHEMA)


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("id").to_pylist()


def ids(rows: pa.Table | Iterable[dict[str, Any]]) -> list[str]:
    return sorted(row["id"] for row in (rows.to_pylist() if isinstance(rows, pa.Table) else rows))


@pytest.fixture(params=["cow", "mor"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tideline.Table:
    """Both types, with the rows of `FIRST`."""
    made = tideline.create(tmp_path / "trips", schema=SCHEMA, key="id", partition="day", ordering="updated_at", type=request.param)
    made.upsert(trips_of(*FIRST))
    return made
