"""Change files of tables with `hoodie.table.cdc.enabled`: their content, and that they go with their base files."""

import json

import pyarrow as pa
import pytest
from tests.unit.table.tables import SCHEMA, rows_of

import tideline
from tideline_table.action.metadata.check import check_table
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi_options import check_agrees, parse_hudi_options
from tideline_table.log_format import read_rows, scan_log
from tideline_table.metadata_table.stored import StoredMetadata

CDC = {"hoodie.table.cdc.enabled": "true"}
MODE = "hoodie.table.cdc.supplemental.logging.mode"


def table_of(path, **options):
    return tideline.create(path / "t", schema=SCHEMA, key="id", partition="part", ordering="ts", options={**CDC, **options})


def change_files(path):
    return sorted(found.relative_to(path / "t").as_posix() for found in (path / "t").rglob("*.cdc"))


def changes_in(table, file):
    storage = table._table.storage
    return [change for block in scan_log(storage, file).blocks for change in read_rows(storage, block).to_pylist()]


def newest_commit(path):
    return json.loads(max((path / "t" / ".hoodie").glob("*.commit")).read_text())


def test_a_rewrite_of_a_base_file_leaves_each_change_with_its_images(tmp_path):
    table = table_of(tmp_path)
    table.upsert(rows_of([("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "p", 5, "x")]))
    assert change_files(tmp_path) == []  # all rows of a new file group are inserts
    late = rows_of([("b", "p", 2, "y"), ("c", "p", 4, "late"), ("d", "p", 2, "y"), ("a", "p", 2, "")])
    done = table.upsert(late.append_column("_hoodie_is_deleted", pa.array([False, False, False, True])))
    (file,) = change_files(tmp_path)
    found = {((c["before"] or c["after"])["id"]): c for c in changes_in(table, file)}
    assert {key: (c["op"], c["before"] and c["before"]["v"], c["after"] and c["after"]["v"]) for key, c in found.items()} == {
        "a": ("d", "x", None),
        "b": ("u", "x", "y"),
        "d": ("i", None, "y"),
    }
    assert {c["ts_ms"] for c in found.values()} == {done.instant}
    (stat,) = newest_commit(tmp_path)["partitionToWriteStats"]["p"]
    assert stat["cdcStats"] == {file: (tmp_path / "t" / file).stat().st_size}
    table.delete(["b"])
    assert [(c["op"], c["before"]["v"]) for c in changes_in(table, change_files(tmp_path)[-1])] == [("d", "y")]


@pytest.mark.parametrize(
    ("mode", "names"), [("op_key_only", ["op", "record_key"]), ("DATA_BEFORE", ["op", "record_key", "before"])]
)
def test_a_mode_may_say_less(tmp_path, mode, names):
    table = table_of(tmp_path, **{"hoodie.table.cdc.supplemental.logging.mode": mode})
    table.upsert(rows_of([("a", "p", 1, "x")]))
    table.upsert(rows_of([("a", "p", 2, "y")]))
    (change,) = changes_in(table, change_files(tmp_path)[0])
    assert (list(change), change["op"], change["record_key"]) == (names, "u", "a")


def test_cleans_and_restores_remove_change_files_with_their_base_files(tmp_path):
    table = table_of(tmp_path)
    table.maintenance.create_metadata()
    for n in range(4):
        table.upsert(rows_of([("a", "p", n, f"v{n}")]))
    table.maintenance.create_savepoint()
    kept = change_files(tmp_path)
    table.upsert(rows_of([("a", "p", 9, "v9")]))
    table.upsert(rows_of([("b", "q", 9, "v9")]))  # a first base file has no change file
    gone = set(change_files(tmp_path)) - set(kept)
    assert len(kept) + len(gone) == 4
    bases = {f"{s.group.partition_path}/{s.base_file}" for s in table._table.snapshot().slices}
    restored = table.maintenance.restore(table.inspect.savepoints()[0].instant)
    document = decode_document((tmp_path / "t" / ".hoodie" / f"{restored.instant}.restore").read_bytes(), "restore")
    parts = [part for (one,) in document["hoodieRestoreMetadata"].values() for part in one["partitionMetadata"].values()]
    named = [path for part in parts for path in part["successDeleteFiles"]]
    assert sorted(path.removeprefix(f"{tmp_path}/t/") for path in named) == sorted(gone | bases)
    assert change_files(tmp_path) == kept
    table.maintenance.delete_savepoint(table.inspect.savepoints()[0].instant)
    table.maintenance.clean(options={"hoodie.clean.commits.retained": 1})
    assert change_files(tmp_path) == kept[-2:]
    assert table.inspect.check(deep=True) == ()
    assert table.read().column("v").to_pylist() == ["v3"]


def test_the_metadata_table_knows_the_change_files_that_are_there(tmp_path):
    table = table_of(tmp_path)
    for n in range(3):
        table.upsert(rows_of([("a", "p", n, f"v{n}")]))
    table.maintenance.create_metadata()
    table.upsert(rows_of([("a", "p", 3, "v3")]))
    assert check_table(table._table) == []
    # Of four base files the first one has no change file: the metadata table would keep a mark of its deletion.
    assert table.maintenance.clean(options={"hoodie.clean.commits.retained": 1}).files_deleted == 3
    assert check_table(table._table) == []
    storage = table._table.storage
    listed = StoredMetadata.read(storage, table._table.timeline.format).read_files(storage, frozenset()).files["p"]
    assert {f"p/{name}" for name in listed if name.endswith(".cdc")} == set(change_files(tmp_path))


def test_a_mode_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InvalidOption, match="OP_KEY_ONLY"):
        table_of(tmp_path, **{MODE: "all"})
    table_of(tmp_path).upsert(rows_of([("a", "p", 1, "x")]))
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("=DATA_BEFORE_AFTER", "=all"))
    with pytest.raises(UnsupportedTable, match="OP_KEY_ONLY"):
        tideline.open(tmp_path / "t").upsert(rows_of([("a", "p", 2, "y")]))


def test_a_job_that_names_no_mode_writes_a_table_of_any(tmp_path):
    found = table_of(tmp_path, **{MODE: "DATA_BEFORE"})._table.definition
    assert check_agrees(parse_hudi_options(CDC), found) == []
    for options in ({**CDC, MODE: "OP_KEY_ONLY"}, {"hoodie.table.cdc.enabled": "false"}):
        with pytest.raises(InvalidOption, match="DATA_BEFORE"):
            check_agrees(parse_hudi_options(options), found)
