"""What options of Apache Hudi mean: each common one, the table that they define, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.table.hudi_options.common_options import COMMON, ENGINE, R, W

import tideline
from tideline_table.config import is_declared
from tideline_table.errors import InvalidOption
from tideline_table.hudi_options import (
    HUDI_OPTIONS,
    Effect,
    check_agrees,
    is_hudi_option,
    named_request,
    parse_hudi_options,
    request_fields,
    table_request,
)
from tideline_table.hudi_options.declared import matching, named
from tideline_table.table import BucketIndex, RecordIndex, Table, TableType, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64())])
TRIPS = {"hoodie.table.name": "trips", W + "recordkey.field": "id", W + "partitionpath.field": "city", W + "precombine.field": "ts"}
OVERWRITE = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
DMS = "org.apache.hudi.common.model.AWSDmsAvroPayload"
MODE = "hoodie.write.record.merge.mode"


@pytest.mark.parametrize("key", COMMON)
def test_each_common_option_does_what_the_list_says(key: str, caplog: pytest.LogCaptureFixture) -> None:
    value, effect = COMMON[key]
    assert is_hudi_option(key)
    option = named(key)
    if effect is ENGINE:
        assert option is None
        assert is_declared(key)
        assert parse_hudi_options({key: value}).engine == {key: value}
        return
    found_option = option or matching(key)
    assert found_option is not None
    assert found_option.effect is effect
    if effect is Effect.REFUSED:
        with pytest.raises(InvalidOption, match=key.replace(".", r"\.") + "=.*, which this engine does not do"):
            parse_hudi_options({key: value})
        return
    found = parse_hudi_options({key: value})
    with caplog.at_level(logging.WARNING):
        found.warn()
    assert [record.getMessage().count(key) for record in caplog.records] == ([1] if effect is Effect.IGNORED else [])
    if effect in (Effect.TABLE, Effect.INDEX):
        assert found.table or found.settings
    if effect is Effect.FIXED:
        with pytest.raises(InvalidOption, match=key):
            parse_hudi_options({key: "something else"})


def test_keys_are_declared_once() -> None:
    keys = [key for option in HUDI_OPTIONS for key in (option.key, *option.older)]
    assert len(keys) == len(set(keys))
    assert not [option.key for option in HUDI_OPTIONS if option.effect is Effect.IGNORED and is_declared(option.key)]


def test_options_without_effect_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    given = {"hoodie.upsert.shuffle.parallelism": 2, "hoodie.memory.merge.fraction": 0.5, "hoodie.write.lock.provider": "x"}
    parse_hudi_options(given).warn()
    assert len(caplog.records) == 1
    assert all(key in caplog.text for key in given)
    parse_hudi_options({}).warn()
    assert len(caplog.records) == 1


def test_a_secret_of_an_ignored_option_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    parse_hudi_options({"hoodie.datasource.hive_sync.password": "s3cret"}).warn()
    assert "hive_sync.password" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hoodie.nothing.of.hudi": "1"}, "unknown option 'hoodie.nothing.of.hudi'"),
        ({W + "recordkey.fields": "id"}, "such as 'hoodie.datasource.write.recordkey.field'"),
        ({W + "operation": "bootstrap"}, "upsert or insert"),
        ({"hoodie.datasource.query.type": "newest"}, "snapshot or incremental"),
        ({"hoodie.table.name": "a", W + "table.name": "b"}, "both keys mean the same"),
        ({W + "table.type": "COW"}, "COPY_ON_WRITE or MERGE_ON_READ"),
        ({W + "keygenerator.class": "com.example.Keys"}, "code that cannot run here"),
        ({W + "keygenerator.class": "org.apache.hudi.keygen.GlobalDeleteKeyGenerator"}, "code that cannot run here"),
        ({W + "hive_style_partitioning": "yes"}, "true or false"),
        ({"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "many"}, "a whole number"),
        ({"hoodie.index.type": "BUCKET", "hoodie.index.bucket.engine": "ring"}, "SIMPLE or CONSISTENT_HASHING"),
        ({W + "payload.class": "com.example.Payload"}, "code that cannot run here"),
        ({W + "payload.class": OVERWRITE, MODE: "EVENT_TIME_ORDERING"}, "merged by commit_time; expected COMMIT_TIME_ORDERING"),
        ({W + "payload.class": OVERWRITE, "hoodie.compaction.payload.class": DMS}, "expected one merge rule"),
        ({MODE: "CUSTOM"}, "without a payload class"),
    ],
)
def test_what_would_change_rows_is_refused_by_name(given: dict[str, str], told: str) -> None:
    # What `given` names replaces what TRIPS says of the same thing.
    base = {key: value for key, value in TRIPS.items() if not ({key} & given.keys())}
    with pytest.raises(InvalidOption, match=told):
        table_request(parse_hudi_options({**base, **given}), "trips", SCHEMA)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.datasource.read.extract.partition.values.from.path", "true"),
        ("hoodie.datasource.read.schema.use.end.instanttime", "true"),
        ("hoodie.datasource.read.handle.hollow.commit", "USE_TRANSITION_TIME"),
        ("hoodie.read.timeline.holes.resolution.policy", "USE_TRANSITION_TIME"),
    ],
)
def test_reads_that_would_have_other_rows_are_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=r"expected (false|fail)"):
        parse_hudi_options({key: value})


def test_a_table_as_the_options_define_it() -> None:
    given = {
        **TRIPS,
        W + "table.type": "merge_on_read",
        W + "hive_style_partitioning": True,
        W + "partitionpath.urlencode": "true",
        W + "keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
        "hoodie.index.type": "BUCKET_HASH_INDEX",
        "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
        "hoodie.bucket.index.num.buckets": 4,
        "hoodie.bucket.index.hash.field": "id",
        "hoodie.write.table.version": 8,
    }
    request = table_request(parse_hudi_options(given), "other", SCHEMA)
    assert (request.name, request.key_fields, request.partition_fields, request.ordering_field) == (
        "trips",
        ("id",),
        ("city",),
        "ts",
    )
    assert (request.type, request.hive_style, request.url_encode, request.key_generator) == (TableType.MOR, True, True, "SIMPLE")
    assert request.index == BucketIndex(4, ("id",), consistent=True)
    assert request.version == 8


def test_defaults_are_those_of_hudi() -> None:
    assert request_fields(parse_hudi_options({"hoodie.index.type": "bucket"})) == {"index": BucketIndex(256)}
    assert request_fields(parse_hudi_options({"hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX"})) == {"index": RecordIndex()}
    assert request_fields(parse_hudi_options({"hoodie.index.type": "BLOOM"})) == {}, "the writer's choice"
    options = parse_hudi_options({W + "recordkey.field": "id"})
    assert table_request(options, "trips", SCHEMA).name == "trips"
    assert table_request(options, "trips", SCHEMA, ("city",)).partition_fields == ("city",)
    flat = parse_hudi_options({**TRIPS, W + "keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator"})
    assert table_request(flat, "trips", SCHEMA).partition_fields == ()
    assert (
        table_request(parse_hudi_options({W + "recordkey.field": "id", W + "payload.class": OVERWRITE}), "t", SCHEMA).ordering_field
        == ""
    )
    with pytest.raises(InvalidOption, match=r"or the option hoodie\.datasource\.write\.recordkey\.field"):
        table_request(parse_hudi_options({"hoodie.table.name": "trips"}), "trips", SCHEMA)


def test_the_operation_of_a_write() -> None:
    assert parse_hudi_options({}).operation is Operation.UPSERT
    assert parse_hudi_options({W + "operation": "BULK_INSERT"}).operation is Operation.BULK_INSERT
    dropping = parse_hudi_options({W + "insert.drop.duplicates": "true"})
    assert dropping.operation is Operation.INSERT
    assert dropping.write_options() == {"hoodie.datasource.insert.dup.policy": "drop"}
    assert parse_hudi_options({W + "partitions.to.delete": "paris, rome ,"}).partitions == ("paris", "rome")


def test_the_query_of_a_read() -> None:
    def query(**given: str) -> dict[str, str]:
        names = {"kind": "hoodie.datasource.query.type", "begin": R + "begin.instanttime", "end": R + "end.instanttime"}
        return parse_hudi_options({names.get(name, "as.of.instant"): value for name, value in given.items()}).query()

    assert query() == {}
    assert query(kind="read_optimized") == {"read_optimized": "true"}
    assert query(kind="read_optimized", as_of="2024-05-01") == {"read_optimized": "true", "as_of": "2024-05-01"}
    assert query(as_of="2024-05-01") == {"as_of": "2024-05-01"}
    assert query(kind="incremental", begin="20240501000000000") == {"since": "20240501000000000", "until": ""}
    assert query(kind="incremental", begin="000", end="20240501000000000") == {"since": "", "until": "20240501000000000"}
    assert query(kind="snapshot", begin="20240501000000000") == {}, "as in Hudi, bounds are those of incremental queries"
    with pytest.raises(InvalidOption, match=r"begin\.instanttime"):
        query(kind="incremental")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hoodie.table.name": "rides"}, "hoodie.table.name=rides for table 'trips'; expected trips"),
        ({W + "table.type": "MERGE_ON_READ"}, "expected COPY_ON_WRITE, as"),
        ({W + "recordkey.field": "ts"}, "expected id, as"),
        ({W + "partitionpath.field": "ts"}, "expected city, as"),
        ({W + "partitionpath.field": ""}, "expected city, as"),
        ({W + "precombine.field": "city"}, "expected ts, as"),
        ({W + "hive_style_partitioning": "true"}, "expected false, as"),
        ({W + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator"}, "expected SIMPLE, as"),
        ({W + "payload.class": OVERWRITE}, "whose rows are merged by event_time"),
    ],
)
def test_a_table_that_exists_is_compared(tmp_path: Path, given: dict[str, str], told: str) -> None:
    create_table(str(tmp_path), table_request(parse_hudi_options(TRIPS), "trips", SCHEMA))
    found = Table.open(str(tmp_path)).definition
    assert check_agrees(parse_hudi_options({**TRIPS, "hoodie.table.name": "Trips"}), found, ("city",)) == []
    assert check_agrees(parse_hudi_options({"hoodie.write.table.version": "9"}), found) == ["hoodie.write.table.version=9"]
    with pytest.raises(InvalidOption, match=told):
        check_agrees(parse_hudi_options({**TRIPS, **given}), found)


def test_create_takes_the_options_of_hudi(tmp_path: Path) -> None:
    options = {**TRIPS, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 3, W + "table.type": "MERGE_ON_READ"}
    table = tideline.create(tmp_path / "t", schema=SCHEMA, options={**options, "hoodie.parquet.small.file.limit": 0})
    definition = Table.open(table.path).definition
    assert (definition.name, definition.keygen.key_fields, definition.ordering_field) == ("trips", ("id",), "ts")
    assert definition.type is TableType.MOR
    assert definition.buckets is not None
    assert definition.buckets.number == 3
    table.upsert(pa.table({"id": ["a"], "city": ["paris"], "ts": [1]}, SCHEMA))
    assert table.read().num_rows == 1
    with pytest.raises(tideline.errors.InvalidInput, match=r"key fields city by argument and id by an option of Hudi"):
        tideline.create(tmp_path / "u", schema=SCHEMA, key="city", options=options)
    with pytest.raises(tideline.errors.InvalidInput, match="unknown option"):
        tideline.create(tmp_path / "u", schema=SCHEMA, key="id", options={"hoodie.nothing": 1})
    assert not (tmp_path / "u").exists()


def test_arguments_and_options_that_agree_are_one_table() -> None:
    arguments = {"key_fields": ("id",), "partition_fields": (), "type": ""}
    request = named_request(parse_hudi_options({**TRIPS, W + "table.type": "MERGE_ON_READ"}), arguments, "x", SCHEMA)
    assert (request.key_fields, request.partition_fields, request.type) == (("id",), ("city",), TableType.MOR)


def test_two_policies_for_known_keys_are_refused() -> None:
    given = {W + "insert.drop.duplicates": "true", "hoodie.datasource.insert.dup.policy": "fail"}
    with pytest.raises(InvalidOption, match="rows are dropped, or refused"):
        parse_hudi_options(given).write_options()


@pytest.mark.parametrize(
    ("index", "options", "agrees"),
    [
        (tideline.BucketIndex(8), {"hoodie.index.type": "BLOOM"}, False),
        (tideline.BucketIndex(8), {"hoodie.bucket.index.num.buckets": "4"}, False),
        (tideline.BucketIndex(8), {"hoodie.bucket.index.hash.field": "city"}, False),
        (tideline.BucketIndex(8), {"hoodie.index.bucket.engine": "CONSISTENT_HASHING"}, False),
        (tideline.BucketIndex(8), {"hoodie.index.type": "BUCKET"}, True),
        (tideline.BucketIndex(8, fields="id"), {"hoodie.bucket.index.hash.field": "id"}, True),
        (tideline.BloomIndex(), {"hoodie.index.type": "GLOBAL_BLOOM"}, False),
        (tideline.BloomIndex(across_partitions=True), {"hoodie.index.type": "global_bloom"}, True),
        (tideline.RecordIndex(), {"hoodie.index.type": "BUCKET"}, False),
    ],
)
def test_an_index_by_argument_and_another_one_by_option_create_nothing(
    tmp_path: Path, index: tideline.BucketIndex | tideline.BloomIndex | tideline.RecordIndex, options: dict[str, str], agrees: bool
) -> None:
    base = tmp_path / "t"

    def create() -> tideline.Table:
        return tideline.create(base, schema=SCHEMA, key="id", index=index, options=options)

    if agrees:
        create().upsert(pa.table({"id": ["a"], "city": ["x"], "ts": [1]}, SCHEMA))
        return
    with pytest.raises(InvalidOption, match="by argument"):
        create()
    assert not base.exists()


BY_MONTH = {
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy-MM",
}


@pytest.mark.parametrize(
    ("options", "agrees"),
    [
        ({}, True),
        (BY_MONTH, True),
        ({**BY_MONTH, "hoodie.deltastreamer.keygen.timebased.timezone": "UTC"}, True),
        ({"hoodie.keygen.timebased.output.dateformat": "yyyy"}, False),
        ({"hoodie.keygen.timebased.timezone": "GMT+8:00"}, False),
        ({W + "keygenerator.consistent.logical.timestamp.enabled": "true"}, False),
        ({"hoodie.write.complex.keygen.new.encoding": "true"}, True),
        ({"hoodie.populate.meta.fields": "false"}, False),
        ({"hoodie.populate.meta.fields": "true"}, True),
    ],
)
def test_settings_that_would_give_other_keys_or_folders_are_refused(tmp_path: Path, options: dict[str, str], agrees: bool) -> None:
    base = str(tmp_path / "t")
    tideline.create(base, schema=SCHEMA, key="id", partition="ts", key_generator="TIMESTAMP", key_settings=BY_MONTH)
    found = Table.open(base).definition
    if agrees:
        assert check_agrees(parse_hudi_options(options), found) == []
        return
    with pytest.raises(InvalidOption, match="for table 't'"):
        check_agrees(parse_hudi_options(options), found)
