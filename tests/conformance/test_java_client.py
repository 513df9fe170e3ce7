"""Apache Hudi 1.2.1, by its Java client (`java_client/peer.py`), reads the tables of other releases as Tideline does.

By listing folders and, where there is one, by the metadata table; meta fields are compared, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.java_client.peer import RELEASE, HudiJavaClient
from tests.conformance.matrix import Comparison
from tests.conformance.written_here import KEYS
from tests.unit.table.fixtures import names, unpacked

from tideline_table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # a JVM, and the jars of the peer's PySpark

TABLES = [name for name in names("tables") if "_mor_parquet_" not in name]
"""In base files of the others, Spark stored short decimals as whole numbers, whose scale the Java client overlooks."""


@pytest.fixture(scope="module")
def java() -> Iterator[HudiJavaClient]:
    with HudiJavaClient() as client:
        assert client.ping()["hudi"] == RELEASE
        yield client


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_other_releases(java: HudiJavaClient, tmp_path: Path, name: str) -> None:
    base = unpacked("tables", name, tmp_path)
    ours = Table.open(str(base)).read()
    assert (ours.num_rows == 0) is name.endswith("_empty")
    Comparison(KEYS).rows(ours, java.read(base, metadata=False), name)
    if "_meta" in name:
        Comparison(KEYS).rows(ours, java.read(base, metadata=True), f"{name}, by the metadata table")
