"""Apache Hudi 1.2.0 writes an exclusive table, as a job does that was started on the wrong path.

Hudi that keeps the version leaves `hoodie.properties` as they are, so only the timeline tells.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi

import tideline
from tideline_locks import open_hudi_lock
from tideline_table.action import leave
from tideline_table.table import Table

W = "hoodie.datasource.write."
TYPES = {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}


def rows(numbers: list[int], ts: int) -> pa.Table:
    return pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "day": [f"d{n % 2}" for n in numbers],
            "ts": pa.array([ts] * len(numbers), pa.int64()),
            "fare": [n * ts for n in numbers],
        }
    )


def cells(found: pa.Table) -> dict[str, int]:
    pairs = [(row["id"], row["fare"]) for row in found.select(["id", "fare"]).to_pylist()]
    assert len(dict(pairs)) == len(pairs), "each key once"
    return dict(pairs)


def append(peer: ApacheHudi, path: Path, batch: pa.Table, kind: str, version: int, **options: str) -> None:
    of = {"recordkey.field": "id", "partitionpath.field": "day", "precombine.field": "ts", "table.type": TYPES[kind]}
    told = {"hoodie.write.table.version": str(version), "hoodie.write.auto.upgrade": "false", "hoodie.table.name": path.name}
    peer.write(path, batch, told | {W + name: value for name, value in of.items()} | options)


@pytest.mark.pairs
@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("kind", TYPES)
def test_an_append_is_read_named_and_refused(apache_hudi: ApacheHudi, tmp_path: Path, kind: str, version: int) -> None:
    path = tmp_path / f"trips_{kind}_{version}"
    made = tideline.create(
        str(path), schema=rows([0], 0).schema, key="id", partition="day", ordering="ts", type=kind, table_version=version
    )
    made.upsert(rows(list(range(8)), 1))
    made.upsert(rows([1, 2], 2))
    append(apache_hudi, path, rows([2, 3, 20], 3), kind, version)
    expected = {f"k{n}": n for n in range(8)} | {"k1": 2, "k2": 6, "k3": 9, "k20": 60}
    assert cells(apache_hudi.read(path)) == expected
    found = tideline.open(str(path))
    assert cells(found.read()) == expected
    assert cells(found.lookup(["k2", "k20"])) == {"k2": 6, "k20": 60}
    assert "no Tideline writer made" in str(found.inspect.status())
    for step in (lambda: found.upsert(rows([5], 5)), lambda: made.upsert(rows([5], 5))):
        with pytest.raises(tideline.errors.DamagedTable, match=r"no Tideline writer made.*tideline leave PATH"):
            step()
    leave(Table.open(str(path)), open_hudi_lock)
    assert cells(tideline.open(str(path)).read()) == cells(apache_hudi.read(path)) == expected
    append(apache_hudi, path, rows([4], 4), kind, version)
    assert cells(tideline.open(str(path)).read()) == expected | {"k4": 16}
