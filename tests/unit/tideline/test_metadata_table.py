"""The metadata table through the public interface."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tideline
from tideline.errors import InvalidInput

ROWS = pa.table({"id": ["a", "b"], "n": [1, 2]})


def test_created_with_the_table_checked_repaired_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    table = tideline.create(path, schema=ROWS.schema, key="id", options={"hoodie.metadata.enable": True})
    with pytest.raises(InvalidInput):
        table.maintenance.create_metadata()
    table.upsert(ROWS)
    assert table.inspect.check() == ()
    (log,) = [p for p in (path / ".hoodie/metadata/files").iterdir() if ".log." in p.name and ".log.1_" not in p.name]
    log.write_bytes(log.read_bytes()[:-1])
    assert [found.kind for found in table.inspect.check()] == ["damaged file"]
    assert table.maintenance.repair_metadata() == ()
    table.maintenance.drop_metadata()
    with pytest.raises(InvalidInput):
        table.maintenance.drop_metadata()
    assert tideline.open(path).inspect.check() == ()


def test_a_table_has_none_unless_asked_for(tmp_path: Path) -> None:
    table = tideline.create(tmp_path / "trips", schema=ROWS.schema, key="id")
    table.upsert(ROWS)
    assert not (tmp_path / "trips/.hoodie/metadata").exists()
    table.maintenance.create_metadata()
    assert table.inspect.check() == ()
