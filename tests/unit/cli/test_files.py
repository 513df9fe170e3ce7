"""`Table.files` and `tideline files`: what they name holds the rows of the table."""

import os

import duckdb
import pyarrow.parquet as pq
import pytest
from tests.unit.cli.conftest import SCHEMA, rows_table

import tideline
from tideline_table.errors import UnsafePath
from tideline_table.table import DataFile, manifest_of


def rows_of(paths):
    found = duckdb.sql(f"select id, n from read_parquet({[str(p) for p in paths]!r}, hive_partitioning=false) order by id")
    return found.fetchall()


def test_the_base_files_of_a_copy_on_write_table_are_its_rows(done, filled):
    table = tideline.open(filled)
    files = table.inspect.files()
    expected = sorted((row["id"], row["n"]) for row in table.read().to_pylist())
    assert rows_of(f.path for f in files) == expected
    assert len(list(filled.rglob("*.parquet"))) > len(files), "an older version is there, which globs read, too"
    assert [f.rows for f in files] == [pq.read_metadata(f.path).num_rows for f in files]
    assert [f.size_bytes for f in files] == [os.path.getsize(f.path) for f in files]
    assert done("files", filled, "--manifest").text.splitlines() == [f.path for f in files]
    document = done("files", filled, "--json").document
    assert document["is_complete"] is True
    assert [f["path"] for f in document["files"]] == [f.path for f in files]
    assert {f["partition"] for f in document["files"]} == {"Paris", "Rome"}
    assert "LOG FILES" in done("files", filled).text


def test_files_as_of_an_instant(done, filled):
    first = done("timeline", filled, "--json").document["instants"][-1]["instant"]
    manifest = done("files", filled, "--manifest", "--as-of", first).text.splitlines()
    assert rows_of(manifest) == [("a", 1), ("b", 2), ("c", 3)]
    assert [f.path for f in tideline.open(filled).inspect.files(as_of=first)] == manifest


def test_slices_with_log_files_are_named(cli, done, tmp_path):
    table = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", partition="city", type="mor")
    table.insert(rows_table(id=["a", "b"], city=["Paris", "Rome"], n=[1, 2]))
    assert done("files", table.path, "--json").document["is_complete"]
    table.upsert(rows_table(id=["a"], city=["Paris"], n=[10]))
    paris, rome = table.inspect.files()
    assert (len(paris.log_files), rome.log_files) == (1, ())
    told = cli("files", table.path, "--manifest")
    assert told.code == 0
    assert told.text.splitlines() == [paris.path, rome.path]
    assert "1 of 2 slices have log files, so base files alone are not the newest rows" in told.stderr
    assert paris.path in told.stderr
    assert cli("files", table.path, "--json").document["is_complete"] is False
    table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1})
    assert rows_of(f.path for f in table.inspect.files()) == [("a", 10), ("b", 2)]
    assert not any(f.log_files for f in table.inspect.files())


def test_names_of_folders_are_plain_and_an_empty_table_has_no_file(done, tmp_path):
    table = tideline.create(tmp_path / "a b%20ü", schema=SCHEMA, key="id")
    assert table.inspect.files() == ()
    assert done("files", table.path, "--manifest").stdout == b""
    table.insert(rows_table(id=["a"], n=[1]))
    assert rows_of(done("files", table.path, "--manifest").text.splitlines()) == [("a", 1)]


def test_a_path_with_a_line_end_is_in_no_manifest():
    with pytest.raises(UnsafePath, match="line end"):
        manifest_of([DataFile("/t/a\nb.parquet", "a\nb", "1", 1, 1)])


def test_one_form_at_a_time(refused, filled):
    assert "--manifest together with --json" in refused("files", filled, "--manifest", "--json")
