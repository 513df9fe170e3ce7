"""The rows of each table, read from outside of the cluster by several readers, against all rows that were acknowledged.

Readers: this engine and hudi-rs, from the object store; if wanted Apache Hudi, from a copy of the table's folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs

import tideline
from e2e.fleet.source import TableKind
from e2e.fleet.tables import base_path
from tideline_table.storage import open_storage


@dataclass(frozen=True)
class Check:
    """One table read by one reader. `difference` is empty if the rows are the expected ones."""

    table: str
    reader: str
    rows: int
    difference: str


def verify(kinds: Sequence[TableKind], expected: Mapping[str, pa.Table], copies: Path | None) -> Iterator[Check]:
    """Compare tables with the expected rows, which `expected` holds by the table's name, by each reader.

    `copies` is the folder for the copies that Apache Hudi reads; None leaves this reader out.
    """
    with ExitStack() as stack:
        peer = None if copies is None else stack.enter_context(ApacheHudi())
        for kind in kinds:
            path = base_path(kind.name)
            readers: dict[str, Callable[[str], pa.Table]] = {"tideline": lambda p: tideline.open(p).read(), "hudi-rs": read_hudi_rs}
            for reader, read in readers.items():
                yield _check(kind, reader, expected[kind.name], read(path))
            if peer is not None and copies is not None:
                copy = copied(path, copies / kind.name)
                yield _check(kind, "Apache Hudi", expected[kind.name], peer.read(copy))


def copied(path: str, target: Path) -> Path:
    """Copy a table's folder out of the object store and return where the copy is."""
    shutil.rmtree(target, ignore_errors=True)
    storage = open_storage(path)
    for stat in storage.list_objects(""):
        place = target / stat.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(storage.read(stat.path))
    return target


def difference(expected: pa.Table, found: pa.Table) -> str:
    """Return some of the differing rows, or empty text if both tables have the same rows, each as often."""
    with duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        database.register("expected", expected)
        database.register("found", found)
        missing = database.sql("from expected except all from found limit 3").fetchall()
        extra = database.sql("from found except all from expected limit 3").fetchall()
    return "; ".join([*(f"missing: {row}" for row in missing), *(f"not expected: {row}" for row in extra)])


def _check(kind: TableKind, reader: str, expected: pa.Table, found: pa.Table) -> Check:
    rows = found.select(kind.schema.names).cast(kind.schema)
    return Check(kind.name, reader, rows.num_rows, difference(expected, rows))
