"""Each kind of bad input: one line that says what, where and what to do; an exit code; nothing changed."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.cli.conftest import SCHEMA, json_line

from tideline_table.hudi.properties import parse_properties

GOOD = json_line(id="a", city="Paris")


def write(table, *more):
    return ("write", table, "--from", "-", *more)


def replace_property(table, key: str, value: str) -> None:
    properties = table / ".hoodie" / "hoodie.properties"
    old = parse_properties(properties.read_bytes())[key]
    text = properties.read_text()
    assert f"{key}={old}\n" in text
    properties.write_text(text.replace(f"{key}={old}\n", f"{key}={value}\n"))


@pytest.mark.parametrize(
    "command", [("read",), ("show",), ("timeline",), ("write", "--from", "-"), ("adopt",), ("plan", "clean"), ("run", "clean")]
)
def test_a_path_without_a_table(refused, tmp_path, command):
    line = refused(*command, tmp_path / "nothing", stdin=GOOD)
    assert "no table at" in line
    assert "tideline create" in line


@pytest.mark.parametrize("command", [("read",), ("write", "--from", "-")])
def test_a_table_version_that_is_not_handled(refused, filled, command):
    replace_property(filled, "hoodie.table.version", "8")  # the checksum covers the name only
    assert "has version 8; expected version 6" in refused(*command, filled, stdin=GOOD)


def test_properties_with_a_wrong_checksum(refused, filled):
    replace_property(filled, "hoodie.table.name", "other")
    assert "checksum" in refused("read", filled, code=1)


def test_a_table_that_others_write(refused, filled):
    shutil.rmtree(filled / ".hoodie" / ".tideline")
    assert "only Apache Hudi writes" in refused(*write(filled), stdin=GOOD)


def test_a_copied_table(refused, filled, tmp_path):
    shutil.copytree(filled, tmp_path / "copy")
    assert "tideline adopt" in refused(*write(tmp_path / "copy"), stdin=GOOD, code=1)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"id": "a", "town": "Paris"}, "town"),
        ({"id": "a", "n": "5"}, "stdin line 2: column 'n' has '5'; expected a whole number"),
        ({"id": "a", "n": 1.5}, "1.5"),
        ({"id": "a", "n": True}, "true"),
        ({"id": "a", "n": 2**63}, "64 bits"),
        ({"id": 5}, "expected text"),
        ({"id": "a", "price": "1.999"}, "2 of them after the decimal point"),
        ({"id": "a", "price": "12345678901.00"}, "12345678901.00"),
        ({"id": "a", "day": "2024-02-30"}, "2024-02-30"),
        ({"id": "a", "day": 7}, "a date such as"),
        ({"id": "a", "at": "2024-01-01T00:00:00.1234567Z"}, "microsecond"),
        ({"id": "a", "at": "yesterday"}, "yesterday"),
        ({"id": "a", "x": "wide"}, "expected a number"),
        ({"city": "Paris"}, "null(s) in column 'id'"),
        ({"id": "", "city": "Paris"}, "record key"),
        ({"id": "a", "city": "../../out"}, "'../../out'"),
        ({"id": "a", "city": "/etc"}, "'/etc'"),
    ],
)
def test_rows_that_do_not_fit(refused, filled, row, named):
    lines = b"\n".join([GOOD.strip(), json.dumps(row).encode()])
    assert named in refused(*write(filled), stdin=lines)


def test_a_null_record_key_in_a_nullable_column(refused, done, tmp_path):
    (tmp_path / "s.csv").write_text("id,v\n1,2\n")
    done("create", tmp_path / "t", "--schema-from", tmp_path / "s.csv", "--key", "id")
    line = refused(*write(tmp_path / "t"), stdin=b'{"id": null, "v": 1}\n')
    assert "null or empty record key in column 'id'" in line


def test_rows_that_lack_columns(refused, done, filled):
    """They became null in rows that the table has; no option fills the key."""
    fill = ("--option", "hoodie.write.set.null.for.missing.columns=true")
    line = refused(*write(filled), stdin=b'{"id": "a", "city": "Rome"}\n')
    assert "rows without column(s) 'n', 'x', 'price', 'day', 'at'" in line
    assert fill[1] in line
    assert "rows without key column 'id'" in refused(*write(filled), *fill, stdin=b'{"city": "Rome"}\n')
    done(*write(filled), *fill, stdin=b'{"id": "a", "city": "Paris"}\n')
    row = done("read", filled).plain_rows()[0]
    assert (row["id"], row["city"], row.get("n")) == ("a", "Paris", None)


def test_a_parquet_file_of_another_schema(refused, filled, tmp_path):
    others = {field.name: pa.nulls(1, field.type) for field in SCHEMA}
    pq.write_table(pa.table({**others, "id": pa.array([1])}), tmp_path / "rows.parquet")
    assert "column 'id' of type int64; expected type string" in refused("write", filled, "--from", tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.csv", b"id,n\na,1\nb,2,3\n", "line 3 has 3 field(s); expected 2"),
        ("a.csv", b'id,city\n"a\nb",Paris\n\nc\n', "line 5 has 1 field(s)"),
        ("a.csv", b'id,n\n"two\nlines",1\n\nb,many\n', "line 5: column 'n' has 'many'"),
        ("a.csv", b'id,n\na,1\nb,"2\n', "line 3"),
        ("a.csv", b"id,id\na,b\n", "'id' is repeated"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"id,n\n\xff\xfe,1\n", "cannot be read"),
        ("a.csv", b"id,day\na,2024-13-01\n", "line 2: column 'day'"),
        ("a.jsonl", b'{"id": "a"}\n{"id": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"id": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"id": "\xff"}\n', "line 1 is not JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.json", b'[{"id": "a"},\n{"id" "b"}]', "line 2 is not JSON"),
        ("a.json", b'[{"id": "a"}, 7]', "element 2"),
        ("a.json", b'[{"id": "a"}, {"id": "b", "n": "x"}]', "element 2: column 'n'"),
        ("a.parquet", b"no parquet at all", "cannot be read"),
        ("a.arrow", b"no arrow at all", "cannot be read"),
        ("a.xlsx", b"", "no known file ending"),
        ("a.avsc", b"{}", "no known file ending"),
    ],
)
def test_files_that_cannot_be_read(refused, filled, tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    line = refused("write", filled, "--from", tmp_path / name)
    assert named in line
    assert name in line


def test_a_missing_file_and_a_folder(refused, filled, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    assert "does not exist" in refused("write", filled, "--from", tmp_path / "missing.csv")
    assert "is a folder" in refused("write", filled, "--from", tmp_path / "folder.csv")
    assert "does not exist" in refused("create", tmp_path / "new", "--schema-from", tmp_path / "missing.avsc", "--key", "id")


def test_files_that_do_not_fit_together(refused, filled, tmp_path):
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    assert "have different schemas" in refused("write", filled, "--from", tmp_path / "a.parquet", "--from", tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--option", "hoodie.parquet.smal.file.limit=1"), "such as 'hoodie.parquet.small.file.limit'"),
        (("--option", "hoodie.parquet.small.file.limit=much"), "'much'"),
        (("--option", "hoodie.parquet.small.file.limit"), "KEY=VALUE"),
        (("--option", "tideline.lock.ttl=5", "--option", "tideline.lock.ttl=6"), "twice"),
        (("--operation", "merge"), "upsert, insert, bulk_insert, delete"),
        (("--locks", "zookeeper://x"), "storage:"),
        (("--operations", "upsert"), "--operation"),
        (("--operation", "insert", "--option", "hoodie.datasource.insert.dup.policy=fail"), "more than once"),
    ],
)
def test_bad_arguments_of_write(refused, filled, arguments, named):
    assert named in refused(*write(filled, *arguments), stdin=GOOD + GOOD)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("status",), "no tables; expected base paths or patterns"),
        (("status", "--state", "unmanaged"), "no tables"),
        (("job", "list"), "no tables"),
        (("sql", "select 1", "--table", "trips"), "expected NAME=PATH; give the table a name"),
        (
            ("events", "tables", "kafka://none.invalid:1", "--client-option", "acks"),
            "expected KEY=VALUE; keys are those of librdkafka",
        ),
    ],
)
def test_a_command_says_what_it_needs(refused, arguments, named):
    assert named in refused(*arguments)


@pytest.mark.parametrize("command", ["tables", "tail"])
def test_an_event_log_that_is_not_there_is_not_made(refused, tmp_path, command):
    assert f"no event log at {tmp_path}/state/events.db" in refused("events", command, f"sqlite://{tmp_path}/state/events.db")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--as-of", "tomorrow"), "yyyy-MM-dd"),
        (("--where", "n >"), "cannot be parsed"),
        (("--where", "m > 1"), "column 'm'"),
        (("--where", "n = 1e10000000"), "64 bits"),
        (("--where", " OR ".join(["n > 1 AND city <> 'x'"] * 600)), "1200 conditions"),
        (("--columns", "id,m"), "column 'm'"),
        (("--limit", "-1"), "--limit"),
        (("--limit", "many"), "'--limit'"),
        (("--format", "xml"), "jsonl, csv, parquet, arrow"),
        (("--format", "parquet"), "--output"),
        (("--output", "rows.xml"), "ending"),
        (("--output", "no/such/folder/rows.csv"), "cannot be written"),
        (("surplus",), "surplus"),
    ],
)
def test_bad_arguments_of_read(refused, filled, arguments, named):
    assert named in refused("read", filled, *arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--key", "uid"), "'uid' is not in the schema"),
        (("--key", "id", "--partition", "town"), "'town'"),
        (("--key", "id", "--ordering", "when"), "'when'"),
        (("--key", "x"), "'x' of type double"),
        (("--key", ","), "no record key columns"),
        (("--key", "id", "--type", "row"), "cow, mor"),
        (("--key", "id", "--name", "my table"), "'my table'"),
        ((), "--key"),
    ],
)
def test_bad_arguments_of_create(refused, tmp_path, arguments, named):
    (tmp_path / "s.csv").write_text("id,x\n1,1.5\n")
    assert named in refused("create", tmp_path / "new", "--schema-from", tmp_path / "s.csv", *arguments)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("s.jsonl", "", "no rows"),
        ("s.jsonl", '{"a": 1}\n{"a": "x"}\n', "several types"),
        ("s.avsc", '{"type": "string"}', "not a record"),
        ("s.avsc", '{"type": "record", "name": "r", "fields": [{"name": "id"', "cannot be read"),
        ("s.csv", "id,my column\n1,2\n", "'my column'"),
        ("s.csv", "n,m\n1,2\n", "'id' is not in the schema"),
    ],
)
def test_bad_schema_files(refused, tmp_path, name, content, named):
    (tmp_path / name).write_text(content)
    assert named in refused("create", tmp_path / "new", "--schema-from", tmp_path / name, "--key", "id")


def test_a_table_is_created_once(refused, filled, tmp_path):
    (tmp_path / "s.csv").write_text("id\n1\n")
    assert "a table at" in refused("create", filled, "--schema-from", tmp_path / "s.csv", "--key", "id")


@pytest.mark.parametrize("command", [("read",), ("show",), ("timeline",), ("write", "--from", "-"), ("run", "rollback")])
def test_a_broken_table_log_entry(refused, filled, command):
    entry = max((filled / ".hoodie" / ".tideline" / "log").iterdir())
    entry.write_bytes(entry.read_bytes()[:100])
    (filled / ".hoodie" / ".tideline" / "checkpoint" / "latest").unlink()  # it repeats the last entries
    line = refused(*command, filled, stdin=GOOD, code=1)
    assert entry.name in line
    assert "restore the file" in line


@pytest.mark.parametrize("command", [("read",), ("show",), ("timeline",)])
def test_a_broken_timeline_file_of_a_table_of_others(refused, filled, command):
    shutil.rmtree(filled / ".hoodie" / ".tideline")
    commit = max((filled / ".hoodie").glob("*.commit"))
    commit.write_bytes(b'{"partitionToWriteStats": ')
    assert commit.name in refused(*command, filled, code=1)


def test_a_foreign_instant_freezes_the_table(refused, filled):
    (filled / ".hoodie" / "20990101000000000.commit.requested").touch()
    assert "20990101000000000" in refused(*write(filled), stdin=GOOD, code=1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("plan", "indexing"), "clustering, compaction, logcompaction, clean, archival"),
        (("plan", "rollback"), "clustering, compaction, logcompaction, clean, archival"),
        (("run", "indexing"), "clustering, compaction, logcompaction, clean, archival, rollback"),
        (("run", "rollback", "--instant", "1"), "--instant"),
        (("run", "clean", "--instant", "20240101000000000"), "no pending clean 20240101000000000"),
        (("run", "clustering", "--instant", "20240101000000000"), "20240101000000000"),
        (("plan", "compaction"), "COPY_ON_WRITE"),
        (("plan", "clustering", "--option", "hoodie.clustering.plan.strategy.sort.columns=zip"), "'zip'"),
    ],
)
def test_bad_requests_to_services(refused, filled, arguments, named):
    assert named in refused(arguments[0], arguments[1], filled, *arguments[2:])


def test_control_characters_cannot_steer_the_terminal(refused, filled):
    line = refused("read", filled, "--where", "n = '\x1b[31mred\nline'")
    assert "\x1b" not in line


def test_an_unknown_command_is_guessed(refused):
    assert refused("reed", "x").startswith("No such command 'reed'; expected 'read'")
