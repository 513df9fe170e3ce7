"""The rows of each table, read from outside of the cluster by this engine and by hudi-rs, against all rows that were acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from tests.conformance.peers.hudi_rs import read_hudi_rs

import tideline
from e2e.fleet.source import TableKind
from e2e.fleet.tables import base_path


@dataclass(frozen=True)
class Check:
    """One table read by one reader. `difference` is empty if the rows are the expected ones."""

    table: str
    reader: str
    rows: int
    difference: str


def verify(kind: TableKind, expected: pa.Table) -> list[Check]:
    """Compare a table with the expected rows, by each reader."""
    path = base_path(kind.name)
    readers: dict[str, Callable[[], pa.Table]] = {
        "tideline": lambda: tideline.open(path).read(),
        "hudi-rs": lambda: read_hudi_rs(path),
    }
    checks = []
    for reader, read in readers.items():
        rows = read().select(kind.schema.names).cast(kind.schema)
        checks.append(Check(kind.name, reader, rows.num_rows, difference(expected, rows)))
    return checks


def difference(expected: pa.Table, found: pa.Table) -> str:
    """Return some of the differing rows, or empty text if both tables have the same rows, each as often."""
    with duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        database.register("expected", expected)
        database.register("found", found)
        missing = database.sql("from expected except all from found limit 3").fetchall()
        extra = database.sql("from found except all from expected limit 3").fetchall()
    return "; ".join([*(f"missing: {row}" for row in missing), *(f"not expected: {row}" for row in extra)])
