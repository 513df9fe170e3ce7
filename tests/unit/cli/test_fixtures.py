"""Tables that Apache Hudi wrote, of all readable versions and both types: `tideline read` prints what Apache Hudi reads from
them."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
TABLES = sorted(
    str(path.relative_to(FIXTURES).with_suffix(""))
    for folder in ("tables", "reported")
    for path in FIXTURES.glob(f"{folder}/*.zip")
)
FILE_NAME = "_hoodie_file_name"


@pytest.fixture(params=TABLES)
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with new modification times on all files: what is read must not depend on them, though Hudi 1.x lets it."""
    with zipfile.ZipFile(FIXTURES / f"{request.param}.zip") as archive:
        for entry in archive.infolist():
            if not entry.filename.startswith("__MACOSX"):
                archive.extract(entry, tmp_path)
    # The metadata table has properties of its own, deeper down.
    return min(tmp_path.glob("**/.hoodie/hoodie.properties"), key=lambda path: len(path.parts)).parents[1]


def test_there_are_fixtures_of_every_kind():
    assert len([name for name in TABLES if name.startswith("tables/")]) == 11
    assert len([name for name in TABLES if name.startswith("reported/")]) == 5
    for part in ("v5", "cow_v6", "cow_v8", "cow_v9", "mor_avro_v6", "mor_avro_v8", "mor_avro_v9", "mor_parquet_v6", "mor_read_v8"):
        assert any(part in name for name in TABLES)


def test_read_prints_what_hudi_reads(unpacked, request, done):
    expected = expectation(request)
    columns = dict(expected["columns"])
    found = done("read", unpacked).rows
    for row in found:
        assert list(row) == list(columns)
        assert row.pop(FILE_NAME)
    assert in_order(without_nulls(found), columns) == in_order(expected["rows"], columns)


def test_columns_of_the_fixtures_can_be_chosen(unpacked, request, done):
    expected = expectation(request)
    last = expected["columns"][-1][0]
    found = done("read", unpacked, "--columns", f"{last},_hoodie_record_key").rows
    wanted = [{k: v for k, v in row.items() if k in (last, "_hoodie_record_key")} for row in expected["rows"]]
    assert in_order(without_nulls(found), dict(expected["columns"])) == in_order(wanted, dict(expected["columns"]))


def expectation(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What Apache Hudi reads from the unpacked table."""
    name = request.node.callspec.params["unpacked"]
    return dict(json.loads((FIXTURES / f"{name}.expected.json").read_text()))


def without_nulls(value: Any) -> Any:
    """Nulls of rows left out at every depth, as Spark's `to_json` does."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def in_order(rows: list[dict[str, Any]], columns: dict[str, str]) -> list[dict[str, Any]]:
    """Rows by key.

    Columns of type float as the 32-bit numbers that they are, however they were printed, timestamps in milliseconds.
    """
    rounded = [{name: as_printed(v, columns[name]) for name, v in row.items()} for row in rows]
    return sorted(rounded, key=lambda row: json.dumps([row["_hoodie_record_key"], row], sort_keys=True))


def as_printed(value: Any, kind: str) -> Any:
    """A value as `to_json` of Spark keeps it."""
    if kind == "float":
        return float(np.float32(value))
    if kind in ("timestamp", "timestamp_ntz"):
        return re.sub(r"(\.\d{3})\d+", r"\1", value)
    return value


def test_show_advises_sharing_only_where_share_accepts_the_table(unpacked, cli, done):
    advised = "tideline share PATH" in done("show", unpacked).text
    assert (cli("share", unpacked).code == 0) == advised


@pytest.mark.parametrize("command", [["status"], ["advise"], ["show"], ["show", "--json"], ["why"]])
def test_commands_that_examine_a_table_take_every_fixture(unpacked, command, done):
    assert done(*command, unpacked).text


def test_the_page_of_every_fixture_can_be_made(unpacked, done, tmp_path):
    page = tmp_path / "page.html"
    done("show", unpacked, "--html", page)
    assert "<html" in page.read_text()


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_tables_of_old_versions_are_read_and_not_written(version, cli, done, tmp_path):
    """The properties of version 2 know fewer keys, and those of versions before 4 no checksum."""
    with zipfile.ZipFile(FIXTURES / "reported" / "unsup_hudi-v5-table.zip") as archive:
        archive.extractall(tmp_path)
    path = tmp_path / ".hoodie" / "hoodie.properties"
    later = ["hoodie.database.name", "hoodie.table.checksum", "hoodie.table.metadata.partitions", "hoodie.table.keygenerator.class"]
    lines = [line for line in path.read_text().splitlines() if version > 3 or line.partition("=")[0] not in later]
    path.write_text("\n".join(lines).replace("hoodie.table.version=5", f"hoodie.table.version={version}"))
    assert len(done("read", tmp_path).rows) == 8
    for command in ("share", "maintain"):
        refused = cli(command, tmp_path)
        assert refused.code != 0
        assert "let Apache Hudi bring it to version 6" in refused.stderr + refused.text
    unread = path.read_text().replace(f"hoodie.table.version={version}", "hoodie.table.version=1")
    path.write_text(unread)
    assert "let Apache Hudi upgrade or downgrade it" in cli("read", tmp_path).stderr
