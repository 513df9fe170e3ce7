"""Tables that were synced to a real Hive metastore, read by name with Spark and Apache Hudi."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.peers.environment import prepare
from tests.real.hive_metastore import hive_metastore

import tideline
from tideline_catalogs import Names, open_catalog, sync_table
from tideline_table.table import Table

SCRIPT = Path(__file__).with_name("read_by_name.py")
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("fare", pa.float64()), ("at", pa.int64())])


def rows(ids: list[int], at: int, day: str) -> pa.Table:
    return pa.table({"id": ids, "day": [day] * len(ids), "fare": [n + at / 4 for n in ids], "at": [at] * len(ids)}, SCHEMA)


def read(url: str, *queries: str) -> list[list[list[object]]]:
    peer = prepare()
    ran = subprocess.run(
        [str(peer.python), str(SCRIPT), str(peer.bundle), url.replace("hms://", "thrift://"), *queries],
        env={**os.environ, "JAVA_HOME": str(peer.java_home), "PYSPARK_PYTHON": str(peer.python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads(line.removeprefix("rows ")) for line in ran.stdout.splitlines() if line.startswith("rows ")]


@pytest.mark.timeout(600)
def test_spark_with_apache_hudi_reads_each_synced_table_by_name(workdir: Path) -> None:
    with hive_metastore() as server, closing(open_catalog(server.url)) as catalog:
        for name, kind, version in (("flat", "cow", 6), ("logged", "mor", 6), ("nine", "mor", 9)):
            base = workdir / name
            table = tideline.create(
                base, schema=SCHEMA, key="id", partition="day", ordering="at", hive_style=True, type=kind, table_version=version
            )
            table.upsert(rows([1, 2], 1, "2026-01-01"))
            sync_table(catalog, Table.open(str(base)), Names("lake"))
            table.upsert(rows([2], 2, "2026-01-01"))
            table.upsert(rows([3], 2, "2026-01-02"))
            sync_table(catalog, Table.open(str(base)), Names("lake"))
        names = ["flat", "logged_rt", "logged_ro", "nine_rt", "nine_ro"]
        found = read(
            server.url,
            *(f"SELECT id, day, fare FROM lake.{name} ORDER BY id" for name in names),
            "SELECT id FROM lake.logged_rt WHERE day = '2026-01-02'",
            "SHOW PARTITIONS lake.nine_rt",
        )
    now = [[1, "2026-01-01", 1.25], [2, "2026-01-01", 2.5], [3, "2026-01-02", 3.5]]
    before = [[1, "2026-01-01", 1.25], [2, "2026-01-01", 2.25], [3, "2026-01-02", 3.5]]
    assert dict(zip(names, found[:5], strict=True)) == {
        "flat": now,
        "logged_rt": now,
        "logged_ro": before,
        "nine_rt": now,
        "nine_ro": before,
    }
    assert found[5] == [[3]]
    assert sorted(found[6]) == [["day=2026-01-01"], ["day=2026-01-02"]]
