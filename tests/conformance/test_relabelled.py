"""Relabelled timestamps: Tideline and Apache Hudi read the same moments from files whose schema names another unit than the
table's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.unit.table.fixtures import unpacked
from tests.unit.table.reader.test_relabelled_logs import Relabelled
from tests.unit.table.reader.test_relabelled_timestamps import TABLES

from tideline_table.storage import LocalStorage
from tideline_table.table import Table

_TIMES = ["ts_millis", "ts_micros", "local_ts_millis", "local_ts_micros"]


def _moments(rows: pa.Table, key: str, columns: list[str]) -> list[tuple[object, ...]]:
    """Return the key of each row, with its times in microseconds."""
    values = [rows.column(key).to_pylist()]
    for name in columns:
        column = rows.column(name)
        zone = column.type.tz
        values.append(column.cast(pa.timestamp("us", zone)).cast(pa.int64()).to_pylist())
    return sorted(zip(*values, strict=True))


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_earlier_releases(apache_hudi: ApacheHudi, tmp_path: Path, name: str) -> None:
    base = unpacked("reported", name, tmp_path)
    ours, theirs = Table.open(str(base)).read(), apache_hudi.read(base)
    assert ours.num_rows == 20
    assert _moments(ours, "_row_key", _TIMES) == _moments(theirs, "_row_key", _TIMES)


@pytest.mark.parametrize("block", ["avro", "parquet"])
def test_logs_and_deletions(apache_hudi: ApacheHudi, tmp_path: Path, block: str) -> None:
    made = Relabelled(block, storage=LocalStorage(tmp_path))
    made.write(("a", 5, "base"), ("b", 5, "base"), ("c", 5, "base"), ("d", 5, "base"))
    made.write(("c", 7, "newer"), ("d", 4, "older"))
    made.write(("a", 4, ""), ("b", 6, ""), ("c", 6, ""), deleted=True)
    ours, theirs = made.relabelled().read(), apache_hudi.read(tmp_path)
    assert _moments(ours, "id", ["ts"]) == _moments(theirs, "id", ["ts"])
    assert sorted(ours["v"].to_pylist()) == sorted(theirs["v"].to_pylist())
