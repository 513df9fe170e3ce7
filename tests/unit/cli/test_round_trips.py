"""create → write → read keeps every value, in every format."""

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from tests.unit.cli.conftest import FILL

WIDE = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("x", pa.float64()),
        ("price", pa.decimal128(30, 7)),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("at", pa.timestamp("us", "UTC")),
        ("at_ms", pa.timestamp("ms", "UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.field("array", pa.string()))),
        ("place", pa.struct([pa.field("lat", pa.float64()), pa.field("since", pa.date32()), pa.field("fee", pa.decimal128(9, 3))])),
        ("sizes", pa.map_(pa.string(), pa.field("value", pa.int64()))),
    ]
)
ROWS = [
    {
        "id": "007",
        "flag": True,
        "small": -(2**31),
        "big": 2**63 - 1,
        "single": 0.5,
        "x": float("nan"),
        "price": Decimal("12345678901234567890.1234567"),
        "day": date(2024, 2, 29),
        "clock": time(23, 59, 59, 999999),
        "at": datetime(2024, 2, 29, 23, 59, 59, 123456, UTC),
        "at_ms": datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        "local": datetime.fromisoformat("2024-03-31T02:30:00"),
        "raw": b"\x00\xff\n",
        "tags": ["a,b", "", None, 'q"'],
        "place": {"lat": 1.25, "since": date(1, 1, 1), "fee": Decimal("0.125")},
        "sizes": [("x", 1), ("y", None)],
    },
    {
        "id": 'with "quotes", commas\nand lines é🌊',
        "flag": False,
        "x": float("-inf"),
        "price": Decimal("0.0000001"),
        "tags": [],
        "place": {"lat": None, "since": None, "fee": None},
        "sizes": [],
    },
    {"id": "empty"},
]


def wide_table() -> pa.Table:
    return pa.table({f.name: pa.array([row.get(f.name) for row in ROWS], f.type) for f in WIDE}, schema=WIDE)


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    found = found.select(expected.column_names).sort_by("id")
    expected = expected.sort_by("id")
    for name in expected.column_names:
        if name == "x":  # NaN equals nothing
            assert repr(found.column(name).to_pylist()) == repr(expected.column(name).to_pylist())
        else:
            assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name


@pytest.fixture
def wide(done, tmp_path):
    pq.write_table(wide_table(), tmp_path / "rows.parquet")
    done("create", tmp_path / "t", "--schema-from", tmp_path / "rows.parquet", "--key", "id")
    done("write", tmp_path / "t", "--from", tmp_path / "rows.parquet")
    return tmp_path / "t"


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "arrow"])
def test_what_read_writes_write_reads(done, wide, tmp_path, ending):
    copy, output = tmp_path / "copy", tmp_path / f"out.{ending}"
    assert done("read", wide, "--output", output).text.startswith("3 rows written to")
    done("create", copy, "--schema-from", tmp_path / "rows.parquet", "--key", "id")

    report = done("write", copy, "--from", output, "--json").document

    assert (report["rows_inserted"], report["rows_updated"], report["rows_deleted"]) == (3, 0, 0)
    done("read", copy, "--output", tmp_path / "again.parquet")
    assert_same(pq.read_table(tmp_path / "again.parquet"), wide_table())


def test_json_lines_show_each_type_as_documented(done, wide):
    outcome = done("read", wide)
    row = next(r for r in outcome.rows if r["id"] == "007")

    assert row["_hoodie_record_key"] == "007"
    assert row["x"] == "NaN"
    assert row["big"] == 2**63 - 1
    assert b'"price":12345678901234567890.1234567' in outcome.stdout
    assert row["day"] == "2024-02-29"
    assert row["clock"] == "23:59:59.999999"
    assert row["at"] == "2024-02-29T23:59:59.123456Z"
    assert row["at_ms"] == "1969-12-31T23:59:59.999Z"
    assert row["local"] == "2024-03-31T02:30:00.000"
    assert row["raw"] == base64.b64encode(b"\x00\xff\n").decode()
    assert row["tags"] == ["a,b", "", None, 'q"']
    assert row["place"] == {"lat": 1.25, "since": "0001-01-01", "fee": 0.125}
    assert row["sizes"] == {"x": 1, "y": None}


def test_json_document_holds_columns_and_rows(done, wide):
    document = done("read", wide, "--json", "--columns", "id,at").document
    assert document["columns"] == [{"name": "id", "type": "string"}, {"name": "at", "type": "timestamp[us, tz=UTC]"}]
    assert document["row_count"] == len(document["rows"]) == 3


def test_stdout_formats(done, wide):
    csv = pv.read_csv(pa.BufferReader(done("read", wide, "--format", "csv", "--columns", "id,small").stdout))
    assert csv.num_rows == 3
    with pa.ipc.open_stream(done("read", wide, "--format", "arrow").stdout) as stream:
        assert_same(stream.read_all(), wide_table())


CSV = b"""id,city,n,x,price,day,at\r
1,Paris,1,1.5,19.90,2024-01-01,2024-01-01T10:00:00Z\r
002,Rome,,NaN,1,,2024-01-01 12:00:00+02:00\r
"3, three","","-7",,,2024-12-31,2024-01-01\r
"""


def test_csv_text_is_parsed_to_the_tables_types(done, table, tmp_path):
    (tmp_path / "rows.csv").write_bytes(CSV)

    done("write", table, "--from", tmp_path / "rows.csv", "--operation", "insert")

    rows = done("read", table).plain_rows()
    assert [r["id"] for r in rows] == ["002", "1", "3, three"]
    assert [r["city"] for r in rows] == ["Rome", "Paris", ""]
    assert [r["n"] for r in rows] == [None, 1, -7]
    assert [r["x"] for r in rows] == ["NaN", 1.5, None]
    assert [r["price"] for r in rows] == [1.00, 19.90, None]
    assert [r["day"] for r in rows] == [None, "2024-01-01", "2024-12-31"]
    assert [r["at"] for r in rows] == [f"2024-01-01T{t}.000Z" for t in ("10:00:00", "10:00:00", "00:00:00")]


def test_json_lines_on_stdin_and_several_files_are_one_commit(done, table, tmp_path):
    (tmp_path / "more.json").write_text(
        json.dumps([{"id": "c", "city": "Rome", "price": 0.1}, {"id": "d", "price": "7"}], indent=1)
    )
    lines = (
        b'\xef\xbb\xbf{"id": "a", "city": null, "n": 1, "x": 3}\n\n{"id": "b", "price": 10.10, "at": '
        b'"2024-05-01T00:00:00Z", "_hoodie_record_key": "q"}\n'
    )

    report = done("write", table, "--from", "-", "--from", tmp_path / "more.json", "--json", *FILL, stdin=lines).document

    assert (report["rows_inserted"], report["conflicts_retried"], report["sequence"]) == (4, 0, 2)
    rows = done("read", table).plain_rows()
    assert [r["price"] for r in rows] == [None, 10.10, 0.10, 7.00]
    assert [r["x"] for r in rows] == [3.0, None, None, None]


def test_delete_needs_the_key_columns_only(done, filled, tmp_path):
    (tmp_path / "gone.csv").write_text("id,city\na,Paris\nz,Rome\n")
    report = done("write", filled, "--from", tmp_path / "gone.csv", "--operation", "delete", "--json").document
    assert report["rows_deleted"] == 1
    assert [r["id"] for r in done("read", filled).plain_rows()] == ["b", "c", "d"]


def test_feather_and_arrow_streams_are_read(done, table, tmp_path):
    rows = pa.table({"id": ["f"], "city": ["Rome"], "n": pa.array([1], pa.int32())})
    feather.write_feather(rows, tmp_path / "one.feather")
    with pa.ipc.new_stream(str(tmp_path / "two.arrow"), rows.schema) as stream:
        stream.write_table(rows.set_column(0, "id", pa.array(["s"])))
    done("write", table, "--from", tmp_path / "one.feather", "--from", tmp_path / "two.arrow", *FILL)
    assert [r["id"] for r in done("read", table).plain_rows()] == ["f", "s"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("s.csv", "id,n,x,b,day,at,z,none\n1,2,1.5,true,2024-01-01,2024-01-01 10:00:00,2024-01-01T10:00:00Z,\n", "int64"),
        (
            "s.jsonl",
            """{"id": 1, "n": 2, "x": 1, "b": true, "day": "2024-01-01", "at": "2024-01-01 10:00:00"}
            {"x": 1.5, "z": "2024-01-01T10:00:00.5+01:00", "none": null}""",
            "int64",
        ),
        (
            "s.avsc",
            json.dumps(
                {
                    "type": "record",
                    "name": "r",
                    "fields": [
                        {"name": "id", "type": "int"},
                        {"name": "n", "type": ["null", "long"]},
                        {"name": "x", "type": "double"},
                        {"name": "b", "type": "boolean"},
                        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                        {"name": "at", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
                        {"name": "z", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                        {"name": "none", "type": ["null", "string"]},
                    ],
                }
            ),
            "int32",
        ),
    ],
)
def test_schema_comes_from_the_file(cli, tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    report = cli("create", tmp_path / "1 odd-näme", "--schema-from", tmp_path / name, "--key", "id", "--json").document
    kinds = {c["name"]: c["type"] for c in report["columns"]}
    assert kinds == {
        "id": expected,
        "n": "int64",
        "x": "double",
        "b": "bool",
        "day": "date32[day]",
        # Only a schema says that a timestamp is local.
        "at": "timestamp[us]" if name.endswith(".avsc") else "timestamp[us, tz=UTC]",
        "z": "timestamp[us, tz=UTC]",
        "none": "string",
    }
    assert report["name"] == "1_odd-n_me"


@pytest.mark.parametrize(
    ("name", "content"), [("s.csv", "id,at\n1,2024-01-01 10:00:00\n"), ("s.jsonl", '{"id": 1, "at": "2024-01-01 10:00:00"}')]
)
def test_timestamps_without_a_zone_are_written_in_utc(done, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    done("create", tmp_path / "t", "--schema-from", tmp_path / name, "--key", "id")
    done("write", tmp_path / "t", "--from", tmp_path / name)
    assert done("read", tmp_path / "t", "--columns", "at").rows == [{"at": "2024-01-01T10:00:00.000Z"}]


def test_texts_that_are_not_all_dates_stay_text(done, tmp_path):
    rows = [{"id": "a", "d": "2024-01-01", "t": "2024-01-01T10:00:00Z"}, {"id": "2024-01-01", "d": "x", "t": "2024-01-01 10:00:00"}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = done("create", tmp_path / "t", "--schema-from", tmp_path / "s.jsonl", "--key", "id", "--json").document
    assert [c["type"] for c in report["columns"]] == ["string"] * 3


def test_parquet_types_are_narrowed_to_what_tables_hold(done, tmp_path):
    rows = pa.table(
        {"id": ["a"], "ns": pa.array([1000], pa.timestamp("ns", "Europe/Paris")), "c": pa.array(["x"]).dictionary_encode()}
    )
    pq.write_table(rows, tmp_path / "s.parquet")
    done("create", tmp_path / "t", "--schema-from", tmp_path / "s.parquet", "--key", "id")
    done("write", tmp_path / "t", "--from", tmp_path / "s.parquet")
    assert done("read", tmp_path / "t").plain_rows() == [{"id": "a", "ns": "1970-01-01T00:00:00.000001Z", "c": "x"}]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns_that_the_api_takes_are_taken_from_files(done, tmp_path, ending):
    """JSON text of Arrow's extension type, and the index that pandas adds to a file."""
    document = pa.array(['{"a": 1}']).cast(pa.json_())
    rows = pa.table({"id": ["a"], "j": document, "v": pa.array(["x"], pa.large_string()), "__index_level_0__": [7]})
    file = tmp_path / f"s.{ending}"
    pq.write_table(rows, file) if ending == "parquet" else feather.write_feather(rows, file)
    done("create", tmp_path / "t", "--schema-from", file, "--key", "id")
    done("write", tmp_path / "t", "--from", file)
    assert done("read", tmp_path / "t").plain_rows() == [{"id": "a", "j": '{"a": 1}', "v": "x"}]


def test_create_passes_every_setting_on(done, tmp_path):
    (tmp_path / "s.csv").write_text("a,b,c,d,v\n1,2,x/y,z,5\n")
    path = tmp_path / "t"
    options = [
        "--key",
        "a,b",
        "--partition",
        "c",
        "--partition",
        "d",
        "--ordering",
        "v",
        "--name",
        "named",
        "--hive-style",
        "--url-encode",
    ]
    done("create", path, "--schema-from", tmp_path / "s.csv", *options)
    done("write", path, "--from", tmp_path / "s.csv", "--operation", "bulk_insert")
    shown = done("show", path, "--json").document
    assert (shown["name"], shown["key_fields"], shown["partition_fields"], shown["ordering_field"]) == (
        "named",
        ["a", "b"],
        ["c", "d"],
        "v",
    )
    assert [p["partition"] for p in shown["partitions"]] == ["c=x%2Fy/d=z"]


def test_buckets_are_pruned_resized_and_advised_on(done, cli, tmp_path):
    (tmp_path / "s.csv").write_text("a,v\n" + "".join(f"k{n},{n}\n" for n in range(40)))
    path, source = tmp_path / "t", ["--schema-from", tmp_path / "s.csv", "--key", "a"]
    done("create", path, *source, "--index", "bucket", "--buckets", "4")
    done("write", path, "--from", tmp_path / "s.csv")
    assert done("read", path, "--where", "a = 'k7'", "--columns", "v").rows == [{"v": 7}]
    assert done("resize-buckets", path, "--buckets", "8", "--json").document["rows_rewritten"] == 40
    assert "has 8 buckets already" in done("resize-buckets", path, "--buckets", "8").text
    again = done("resize-buckets", path, "--buckets", "8", "--json").document
    assert again["skipped"] == [{"partition": "", "reason": "same_number", "text": "it has this number of buckets", "instants": []}]
    assert done("read", path, "--where", "a = 'k7'", "--columns", "v").rows == [{"v": 7}]
    assert "a multiple of 8" in cli("resize-buckets", path, "--buckets", "12").stderr
    advice = done("advise", path, "--json").document
    assert (advice["index"], advice["keys_sampled"], advice["proposed_buckets"]) == ("8 bucket(s) by a", 40, 1)
    assert [f["fields"] for f in advice["hash_fields"]] == [["a"]]
    assert "8 bucket(s) by a" in done("advise", path).text


def test_hash_rings_are_created_written_and_resized(done, cli, tmp_path):
    (tmp_path / "s.csv").write_text("a,v\n" + "".join(f"k{n},{n}\n" for n in range(40)))
    path, source = tmp_path / "t", ["--schema-from", tmp_path / "s.csv", "--key", "a", "--index", "bucket", "--buckets", "2"]
    assert "only there" in cli("create", path, *source, "--consistent").stderr
    made = done("create", path, *source, "--consistent", "--type", "mor", "--json").document
    assert (made["index"], made["bucket_engine"], made["buckets"]) == ("BUCKET", "CONSISTENT_HASHING", 2)
    done("write", path, "--from", tmp_path / "s.csv")
    assert "all buckets have a fitting size" in done("resize-buckets", path).text
    small = ["--option", "hoodie.parquet.max.file.size=1024", "--option", "hoodie.bucket.index.max.num.buckets=4"]
    most = done("resize-buckets", path, *small[:2]).text
    assert "no bucket was split or merged; left out, because they have as many buckets as they may have, some too large: " in most
    assert "the whole table. Allow more by hoodie.bucket.index.max.num.buckets" in most
    sort = ["--option", "hoodie.clustering.plan.strategy.sort.columns=v"]
    planned = done("plan", "clustering", path, *sort, "--json").document["instant"]
    left = done("resize-buckets", path, *small).text
    assert (
        f"no bucket was split or merged; left out, because a compaction or clustering is pending there: the whole table ({planned})"
        in left
    )
    assert "fitting" not in left
    found = done("resize-buckets", path, *small, "--json").document
    assert (found["instant"], found["skipped_partitions"]) == (None, [""])
    assert [(one["partition"], one["reason"], one["instants"]) for one in found["skipped"]] == [("", "plan_pending", [planned])]
    done("run", "clustering", path)
    assert "40 rows moved to 4 buckets" in done("resize-buckets", path, *small).text
    assert done("read", path, "--where", "a = 'k7'", "--columns", "v").rows == [{"v": 7}]
    assert "no number of buckets" in cli("resize-buckets", path, "--buckets", "8").stderr
    advice = done("advise", path, "--json").document
    assert (advice["index"], advice["rows_per_bucket_skew"]) == ("2 consistent bucket(s) by a", None)


def test_create_passes_the_bloom_index_on(done, cli, tmp_path):
    (tmp_path / "s.csv").write_text("a,b,v\n1,2,5\n2,3,6\n")
    (tmp_path / "moved.csv").write_text("a,b,v\n1,4,7\n")
    path, source = tmp_path / "t", ["--schema-from", tmp_path / "s.csv", "--key", "a", "--partition", "b"]
    made = done("create", path, *source, "--index", "global_bloom", "--json").document
    assert (made["index"], made["buckets"]) == ("GLOBAL_BLOOM", None)
    done("write", path, "--from", tmp_path / "s.csv")
    done("write", path, "--from", tmp_path / "moved.csv")
    assert sorted((row["a"], row["b"]) for row in done("read", path).rows) == [(1, 4), (2, 3)]
    refused = cli("write", path, "--from", tmp_path / "s.csv", "--option", "hoodie.index.type=SIMPLE")
    assert "for a table with the index GLOBAL_BLOOM" in refused.stderr
    assert "GLOBAL_BLOOM" in done("create", tmp_path / "u", *source, "--index", "global_bloom").text


def creation_is_refused(cli, path, *arguments, said):
    refused = cli("create", path, *arguments)
    assert refused.code != 0
    assert said in refused.stderr
    assert not path.exists()


def test_create_passes_the_bucket_index_on(done, cli, tmp_path):
    (tmp_path / "s.csv").write_text("a,b,v\n1,2,5\n1,3,6\n")
    path, source = tmp_path / "t", ["--schema-from", tmp_path / "s.csv", "--key", "a,b"]
    made = done("create", path, *source, "--index", "bucket", "--buckets", "8", "--hash-fields", "a", "--json").document
    assert (made["buckets"], made["hash_fields"]) == (8, ["a"])
    done("write", path, "--from", tmp_path / "s.csv")
    assert len(list(path.glob("0000000?-*.parquet"))) == 1, "both rows have one value in the hash field"
    assert len(done("read", path).rows) == 2
    assert (
        "8 bucket(s) by a"
        in done("create", tmp_path / "u", *source, "--index", "bucket", "--buckets", "8", "--hash-fields", "a").text
    )
    for wrong, said in [
        (["--index", "bucket"], "without a number of buckets"),
        (["--buckets", "8"], "options of a bucket index without it"),
        (["--index", "blooming"], "index 'blooming'"),
        (["--index", "bloom", "--buckets", "8"], "options of a bucket index without it"),
        (["--index", "bucket", "--buckets", "0"], "0 buckets"),
        (["--index", "bucket", "--buckets", "8", "--hash-fields", "v"], "hash fields v"),
        (["--hash-fields", "a"], "options of a bucket index without it"),
    ]:
        creation_is_refused(cli, tmp_path / "w", *source, *wrong, said=said)
    refused = cli("write", path, "--from", tmp_path / "s.csv", "--option", "hoodie.bucket.index.num.buckets=4")
    assert "expected 8 bucket(s) by a" in refused.stderr
    assert "names no columns to sort by" in done("plan", "clustering", path).text


def test_create_passes_numbers_of_buckets_by_partition_on(done, cli, tmp_path):
    rows = [f"{n},{day}" for day in (1, 2) for n in range(60)]
    (tmp_path / "s.csv").write_text("\n".join(["a,b", *rows]))
    source = ["--schema-from", tmp_path / "s.csv", "--key", "a", "--partition", "b", "--index", "bucket"]
    path = tmp_path / "t"
    made = done("create", path, *source, "--buckets", "2", "--partition-buckets", "^1$, 6;", "--json").document
    assert (made["buckets"], made["partition_buckets"]) == (2, "^1$,6;.*,2")
    done("write", path, "--from", tmp_path / "s.csv")
    assert [len(list((path / day).glob("*.parquet"))) for day in ("1", "2")] == [6, 2]
    assert len(done("read", path, "--where", "a = 7").rows) == 2
    assert "2 bucket(s) by a, by partition ^1$,6" in done("advise", path).text
    for wrong, said in [
        (["--buckets", "2", "--partition-buckets", "1"], "the partition rule '1'"),
        (["--buckets", "2", "--partition-buckets", "(?i)a,2"], "the group '(?i'"),
        (["--partition-buckets", "1,2"], "without a number of buckets"),
    ]:
        creation_is_refused(cli, tmp_path / "w", *source, *wrong, said=said)
    refused = cli("write", path, "--from", tmp_path / "s.csv", "--option", "hoodie.bucket.index.partition.expressions=1,4")
    assert "expected 2 bucket(s) by a, by partition ^1$,6" in refused.stderr
    assert "partition '1', which has 6" in cli("resize-buckets", path, "--partition-buckets", "^1$,8").stderr
    assert "without numbers" in cli("resize-buckets", path, "--overwrite").stderr
    resized = done("resize-buckets", path, "--partition-buckets", "^1$,12", "--json").document
    assert (resized["buckets"], resized["partition_buckets"], resized["rows_rewritten"]) == (2, "^1$,12;.*,2", 60)
    assert "2 buckets, by partition ^1$,12;.*,2 already" in done("resize-buckets", path, "--partition-buckets", "^1$,12").text
    assert (
        "2 buckets, by partition ^1$,5;.*,2 now: 60 rows"
        in done("resize-buckets", path, "--partition-buckets", "^1$,5", "--overwrite").text
    )
    assert len(done("read", path, "--where", "a = 7").rows) == 2
