"""`tideline create` with key generators of its own, and what writing makes of them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tideline_table.table import Table

ROWS = pa.table({"id": ["a", "b"], "city": ["Rome", "Oslo"], "at": pa.array([1714558272, 0], pa.int64())})
TIMES = (
    "--key-option",
    "hoodie.keygen.timebased.timestamp.type=UNIX_TIMESTAMP",
    "--key-option",
    "hoodie.keygen.timebased.output.dateformat=yyyy/MM/dd",
)


@pytest.fixture
def rows(tmp_path):
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def create(done, rows, *arguments):
    path = rows.parent / "t"
    return path, done("create", path, "--schema-from", rows, "--key", "id", *arguments, "--json").document


def test_folders_of_times(done, rows):
    path, told = create(done, rows, "--partition", "at", "--key-generator", "timestamp", *TIMES)
    assert told["key_generator"] == "TIMESTAMP"
    done("write", path, "--from", rows)
    assert (path / "2024" / "05" / "01").is_dir()
    assert (path / "1970" / "01" / "01").is_dir()


def test_custom_levels(done, rows):
    compact = [text.replace("yyyy/MM/dd", "yyyyMM") for text in TIMES]
    path, told = create(
        done, rows, "--partition", "city:simple,at:TIMESTAMP", "--key-generator", "custom", "--hive-style", *compact
    )
    assert told["partition_fields"] == ["city", "at"]
    done("write", path, "--from", rows)
    assert (path / "city=Rome" / "at=202405").is_dir()


def test_without_meta_fields_rows_are_added_only(done, refused, rows):
    path, _ = create(done, rows, "--no-meta-fields")
    done("write", path, "--from", rows, "--operation", "insert")
    assert "no meta fields" in refused("write", path, "--from", rows)
    assert Table.open(str(path)).read()["_hoodie_record_key"].null_count == 2
    assert json.dumps(Table.open(str(path)).schema.names) == '["id", "city", "at"]'


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--key-generator", "hourly"), "HOURLY"),
        (("--key-generator", "global-delete"), "GLOBAL_DELETE"),
        (("--partition", "at", "--key-generator", "timestamp"), "timestamp.type"),
        (("--key-option", "hoodie.keygen.timebased.timestamp.kind=X"), "timestamp.type"),
        (("--key-option", "nonsense"), "--key-option 'nonsense'"),
    ],
)
def test_requests_that_are_refused(refused, rows, arguments, named):
    assert named in refused("create", rows.parent / "t", "--schema-from", rows, "--key", "id", *arguments)
    assert not (rows.parent / "t" / ".hoodie" / "hoodie.properties").exists()


@pytest.mark.parametrize("gone", ['{"a": {"id": 1, "city": "Oslo"}}', '{"a.id": 1, "a.city": "Oslo"}', "a.id,a.city\n1,Oslo\n"])
def test_keys_inside_of_structs(done, tmp_path, gone):
    path, rows = tmp_path / "t", tmp_path / "rows.jsonl"
    rows.write_text('{"a": {"id": 1, "city": "Oslo", "ts": 5}, "v": "x"}\n{"a": {"id": 2, "city": "Rome", "ts": 5}, "v": "y"}\n')
    told = done(
        "create", path, "--schema-from", rows, "--key", "a.id", "--partition", "a.city", "--ordering", "a.ts", "--json"
    ).document
    assert (told["key_fields"], told["partition_fields"], told["ordering_field"]) == (["a.id"], ["a.city"], "a.ts")
    done("write", path, "--from", rows)
    keys = tmp_path / ("gone.jsonl" if gone.startswith("{") else "gone.csv")
    keys.write_text(gone)
    done("write", path, "--from", keys, "--operation", "delete")
    assert Table.open(str(path)).read(["a.id", "v"]).to_pylist() == [{"a.id": 2, "v": "y"}]
    assert b"y" in done("read", path, "--key", "2").stdout


def test_options_of_hudi_define_the_table(done, refused, rows):
    named = ("hoodie.datasource.write.recordkey.field=id", "hoodie.datasource.write.partitionpath.field=city")
    bucketed = ("hoodie.index.type=BUCKET_HASH_INDEX", "hoodie.bucket.index.num.buckets=4", "hoodie.upsert.shuffle.parallelism=9")
    options = [text for option in (*named, *bucketed) for text in ("--option", option)]
    path = rows.parent / "t"
    told = done("create", path, "--schema-from", rows, *options, "--json").document
    assert (told["key_fields"], told["partition_fields"], told["index"], told["buckets"]) == (["id"], ["city"], "BUCKET", 4)
    done("write", path, "--from", rows)
    assert "expected one of them" in refused("create", rows.parent / "u", "--schema-from", rows, "--key", "city", *options)
    assert "--key" in refused("create", rows.parent / "u", "--schema-from", rows, *options[4:])
