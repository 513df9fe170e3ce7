import pyarrow as pa
import pytest

from tideline_table.errors import InvalidOption, SchemaMismatch, TableExists, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.keygen import KeyGenerator, KeyGeneratorType, PartitionType
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, create_table
from tideline_table.table.create import requested_keygen
from tideline_table.table.declared_keys import keygen_properties, read_keygen

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("part", pa.string()), ("at", pa.timestamp("us", "UTC"))])
TIMES = {"hoodie.keygen.timebased.timestamp.type": "UNIX_TIMESTAMP", "hoodie.keygen.timebased.output.dateformat": "yyyy"}


def properties(keys="id", partitions="part", **more):
    return {p.KEY_FIELDS: keys, p.PARTITION_FIELDS: partitions, **more}


@pytest.mark.parametrize("twin", ["", "Avro"])
@pytest.mark.parametrize(
    ("kind", "stem"),
    [
        ("SIMPLE", "Simple{}KeyGenerator"),
        ("COMPLEX", "Complex{}KeyGenerator"),
        ("TIMESTAMP", "TimestampBased{}KeyGenerator"),
        ("CUSTOM", "Custom{}KeyGenerator"),
        ("NON_PARTITION", "Nonpartitioned{}KeyGenerator"),
        ("GLOBAL_DELETE", "Global{}DeleteKeyGenerator"),
    ],
)
def test_class_and_type_say_the_same(kind, stem, twin):
    named = {p.KEYGEN_CLASS: f"org.apache.hudi.keygen.{stem.format(twin)}"}
    typed = {p.KEYGEN_TYPE: kind + ("_AVRO" if twin else "")}
    assert read_keygen(properties(**named)).type is read_keygen(properties(**typed)).type is KeyGeneratorType(kind)


@pytest.mark.parametrize(
    ("keys", "partitions", "kind"),
    [("id", "", "NON_PARTITION"), ("id", "part", "SIMPLE"), ("id,n", "part", "COMPLEX"), ("id", "part,n", "COMPLEX")],
)
def test_what_a_table_does_not_say_is_inferred(keys, partitions, kind):
    found = read_keygen(properties(keys, partitions))
    assert (found.type.value, found.problem) == (kind, "")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (properties(**{p.KEYGEN_CLASS: "my.KeyGenerator"}), "my.KeyGenerator"),
        (
            properties(**{p.KEYGEN_CLASS: "org.apache.hudi.metadata.HoodieTableMetadataKeyGenerator"}),
            "HoodieTableMetadataKeyGenerator",
        ),
        (properties(**{p.KEYGEN_TYPE: "GLOBAL_DELETE"}), "GLOBAL_DELETE"),
        (properties(**{p.KEYGEN_TYPE: "NEW_KIND"}), "NEW_KIND"),
        (properties("id,n", "part", **{p.KEYGEN_TYPE: "SIMPLE"}), "SIMPLE with 2 key"),
        (properties("id", "part,n", **{p.KEYGEN_TYPE: "TIMESTAMP"} | TIMES), "2 partition field"),
        (properties("id", "part", **{p.KEYGEN_TYPE: "NON_PARTITION"}), "with partition fields"),
        (properties(**{p.KEYGEN_TYPE: "TIMESTAMP"}), "timestamp.type"),
        (properties(**{p.KEYGEN_TYPE: "CUSTOM"}), "part:SIMPLE or part:TIMESTAMP"),
        (properties(partitions="part:HOURLY", **{p.KEYGEN_TYPE: "CUSTOM"}), "'HOURLY'"),
    ],
)
def test_tables_whose_keys_cannot_be_derived_are_read_and_not_written(given, told):
    found = read_keygen(given)
    assert told in found.problem
    with pytest.raises(UnsupportedTable, match="write with Apache Hudi"):
        found.check_usable()


def test_rows_of_a_table_without_key_fields_get_new_keys():
    for partitions in ("part", "part,n"):
        found = read_keygen(properties("", partitions))
        assert not found.problem
        rows = pa.table({"part": ["x", "x"], "n": [1, 1]})
        assert len({*found.record_keys(rows).to_pylist(), *found.record_keys(rows).to_pylist()}) == 4


def test_types_of_a_custom_generator_are_told_in_either_place():
    kinds = {p.KEYGEN_TYPE: "CUSTOM"} | TIMES
    inside = read_keygen(properties(partitions="part:SIMPLE,n:timestamp", **kinds))
    beside = read_keygen(properties(partitions="part,n", **kinds, **{p.PARTITION_PATH_FIELD: "part:SIMPLE,n:TIMESTAMP"}))
    assert inside == beside
    assert inside.partition_types == (PartitionType.SIMPLE, PartitionType.TIMESTAMP)
    rows = pa.table({"id": ["a"], "part": ["x"], "n": pa.array([0], pa.int64())})
    assert inside.record_keys(rows).to_pylist() == ["a"]
    assert inside.partition_paths(rows).to_pylist() == ["x/1970"]
    assert not inside.has_plain_paths


REQUESTS = [
    TableRequest("t", SCHEMA, ("id",), ("part",)),
    TableRequest("t", SCHEMA, ("id", "n"), ("part",), hive_style=True, url_encode=True),
    TableRequest("t", SCHEMA, ("id",), ("n",), key_generator="TIMESTAMP", key_settings=TIMES),
    TableRequest("t", SCHEMA, ("id", "n"), ("part:SIMPLE", "n:TIMESTAMP"), key_generator="CUSTOM", key_settings=TIMES),
    TableRequest("t", SCHEMA, ("id",), ("part",), key_generator="COMPLEX", key_settings={p.COMPLEX_NEW_ENCODING: "true"}),
    TableRequest("t", SCHEMA, ("id",), ("at",), key_settings={p.LOGICAL_TIMESTAMPS: "true"}),
    TableRequest("t", SCHEMA, ("id",), (), key_generator="NON_PARTITION"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{r.key_generator} {r.partition_fields}")
def test_properties_of_a_new_table_are_read_back(request_):
    asked = requested_keygen(request_)
    found = read_keygen(keygen_properties(asked))
    assert found.problem == ""
    assert found.declared_type is asked.type
    assert keygen_properties(found) == keygen_properties(asked)
    create_table("memory:t", request_, storage=MemoryStorage())


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"key_generator": "HOURLY"}, InvalidOption, "HOURLY"),
        ({"key_generator": "GLOBAL_DELETE"}, InvalidOption, "GLOBAL_DELETE"),
        ({"key_generator": "TIMESTAMP"}, InvalidOption, "timestamp.type"),
        ({"key_settings": {"hoodie.keygen.timebased.outputdateformat": "yyyy"}}, InvalidOption, "timebased.output.dateformat"),
        ({"partition_fields": ("part:SIMPLE",)}, InvalidOption, "CUSTOM"),
        ({"key_generator": "TIMESTAMP", "key_settings": TIMES}, SchemaMismatch, "'part'"),
        (
            {
                "key_generator": "CUSTOM",
                "partition_fields": ("part:SIMPLE", "n:TIMESTAMP"),
                "key_settings": {**TIMES, "hoodie.keygen.timebased.output.dateformat": "yyyy/MM"},
            },
            InvalidOption,
            "folders of its own",
        ),
        ({"schema": pa.schema([*SCHEMA, pa.field("nothing", pa.null())])}, SchemaMismatch, "'nothing'"),
    ],
)
def test_requests_that_are_refused_leave_nothing(changes, error, told):
    storage = MemoryStorage()
    given = {"name": "t", "schema": SCHEMA, "key_fields": ("id",), "partition_fields": ("part",), **changes}
    with pytest.raises(error, match=told):
        create_table("memory:t", TableRequest(**given), storage=storage)
    create_table("memory:t", REQUESTS[0], storage=storage)
    with pytest.raises(TableExists):
        create_table("memory:t", REQUESTS[0], storage=storage)


# --- complex generators with one key field ------------------------------------------------------------------------------------


def test_a_single_complex_key_is_bare_or_prefixed():
    rows = pa.table({"id": ["a"], "part": ["x"]})
    for bare, key in ((False, "id:a"), (True, "a")):
        keygen = KeyGenerator(("id",), ("part",), declared_type=KeyGeneratorType.COMPLEX, bare_single_key=bare)
        assert keygen.record_keys(rows).to_pylist() == [key]


def test_logical_timestamps():
    """As Apache Hudi 1.2.0 wrote them: in UTC, milliseconds at most, cut towards 1970."""
    at = pa.array([1714558272345678, -1, 1714558272000000, 1714558272100000, None], pa.int64())
    keygen = KeyGenerator(("at", "local"), ("at",), logical_timestamps=True, url_encode=True)
    rows = pa.table({"at": at.cast(pa.timestamp("us", "UTC")), "local": at.cast(pa.timestamp("us")), "id": list("abcde")})
    expected = ["2024-05-01 10:11:12.345", "1970-01-01 00:00:00.0", "2024-05-01 10:11:12.0", "2024-05-01 10:11:12.1"]
    keys = keygen.record_keys(rows.slice(0, 4)).to_pylist()
    assert [key.split(",local:")[0].removeprefix("at:") for key in keys] == expected
    assert [key.split(",local:")[1] for key in keys] == [str(v) for v in at.to_pylist()[:4]]
    assert keygen.partition_paths(rows).to_pylist()[0] == "2024-05-01 10%3A11%3A12.345"
    assert keygen.partition_paths(rows).to_pylist()[4] == "__HIVE_DEFAULT_PARTITION__"
    assert not keygen.has_plain_paths
