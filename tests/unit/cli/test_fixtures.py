"""Tables that Apache Hudi wrote, of all readable versions and both types: `tideline read` prints what Apache Hudi reads from them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "fixtures" / "tables"
TABLES = sorted(path.stem for path in FOLDER.glob("*.zip"))
FILE_NAME = "_hoodie_file_name"


@pytest.fixture(params=TABLES)
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with new modification times on all files: what is read must not depend on them, though Hudi 1.x lets it."""
    with zipfile.ZipFile(FOLDER / f"{request.param}.zip") as archive:
        for entry in archive.infolist():
            if not entry.filename.startswith("__MACOSX"):
                archive.extract(entry, tmp_path)
    # The metadata table has properties of its own, deeper down.
    return min(tmp_path.glob("**/.hoodie/hoodie.properties"), key=lambda path: len(path.parts)).parents[1]


def test_there_are_fixtures_of_every_kind():
    assert len(TABLES) == 11
    for part in ("cow_v6", "cow_v8", "cow_v9", "mor_avro_v6", "mor_avro_v8", "mor_avro_v9", "mor_parquet_v6"):
        assert any(part in name for name in TABLES)


def test_read_prints_what_hudi_reads(unpacked, request, done):
    name = request.node.callspec.params["unpacked"]
    expected = json.loads((FOLDER / f"{name}.expected.json").read_text())
    columns = dict(expected["columns"])
    found = done("read", unpacked).rows
    for row in found:
        assert list(row) == list(columns)
        assert row.pop(FILE_NAME)
    assert in_order(without_nulls(found), columns) == in_order(expected["rows"], columns)


def test_columns_of_the_fixtures_can_be_chosen(unpacked, request, done):
    name = request.node.callspec.params["unpacked"]
    expected = json.loads((FOLDER / f"{name}.expected.json").read_text())
    last = expected["columns"][-1][0]
    found = done("read", unpacked, "--columns", f"{last},_hoodie_record_key").rows
    wanted = [{k: v for k, v in row.items() if k in (last, "_hoodie_record_key")} for row in expected["rows"]]
    assert in_order(without_nulls(found), dict(expected["columns"])) == in_order(wanted, dict(expected["columns"]))


def without_nulls(value: Any) -> Any:
    """Nulls of rows left out at every depth, as Spark's `to_json` does."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def in_order(rows: list[dict[str, Any]], columns: dict[str, str]) -> list[dict[str, Any]]:
    """Rows by key; columns of type float as the 32-bit numbers that they are, however they were printed."""
    rounded = [{name: float(np.float32(v)) if columns[name] == "float" else v for name, v in row.items()} for row in rows]
    return sorted(rounded, key=lambda row: json.dumps([row["_hoodie_record_key"], row], sort_keys=True))


def test_show_advises_sharing_only_where_share_accepts_the_table(unpacked, cli, done):
    advised = "tideline share PATH" in done("show", unpacked).text
    assert (cli("share", unpacked).code == 0) == advised
