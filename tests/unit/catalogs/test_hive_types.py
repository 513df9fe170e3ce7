"""Columns in Hive's words and Spark's JSON."""

import json

import pytest

from tideline_catalogs.catalog import CatalogRefused, Column
from tideline_catalogs.hive_types import columns_of, spark_schema


def record(*fields):
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]})


@pytest.mark.parametrize(
    ("kind", "hive", "spark"),
    [
        ("int", "int", "integer"),
        ("long", "bigint", "long"),
        ("bytes", "binary", "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "decimal(10,2)", "decimal(10,2)"),
        ({"type": "int", "logicalType": "date"}, "date", "date"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp", "timestamp_ntz"),
        ({"type": "long", "logicalType": "time-micros"}, "bigint", "long"),
        (
            {"type": "array", "items": ["null", "string"]},
            "array<string>",
            {"type": "array", "elementType": "string", "containsNull": True},
        ),
        (
            {"type": "map", "values": "long"},
            "map<string,bigint>",
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
        ),
        (
            {"type": "record", "name": "p", "fields": [{"name": "X", "type": "double"}]},
            "struct<x:double>",
            {"type": "struct", "fields": [{"name": "X", "type": "double", "nullable": False, "metadata": {}}]},
        ),
    ],
)
def test_types(kind, hive, spark):
    text = record(("Value", ["null", kind]))
    assert columns_of(text) == (Column("value", hive),)
    (field,) = json.loads(spark_schema(text, ()))["fields"]
    assert field == {"name": "Value", "type": spark, "nullable": True, "metadata": {}}


def test_named_types_are_known_by_name_and_comments_are_kept():
    point = {"type": "record", "name": "point", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
    text = json.dumps(
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "a", "type": point, "doc": "from"}, {"name": "b", "type": ["null", "n.point"]}],
        }
    )
    assert columns_of(text) == (Column("a", "struct<x:int>", "from"), Column("b", "struct<x:int>"))
    assert json.loads(spark_schema(text, ()))["fields"][0]["metadata"] == {"comment": "from"}


def test_partition_columns_stand_last_in_sparks_schema():
    text = record(("id", "long"), ("day", "string"), ("fare", "double"))
    assert [field["name"] for field in json.loads(spark_schema(text, ("day",)))["fields"]] == ["id", "fare", "day"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("a", ["int", "string"])], "several types"),
        ([("a", "int"), ("A", "int")], "differ only in case"),
        ([("a", {"type": "bytes", "logicalType": "decimal", "precision": 39})], "decimal"),
        (
            [("a", {"type": "record", "name": "tree", "fields": [{"name": "next", "type": ["null", "tree"]}]})],
            "'tree'",
        ),
    ],
)
def test_what_a_metastore_cannot_hold(fields, said):
    with pytest.raises(CatalogRefused, match=said):
        columns_of(record(*fields))


def test_comments_are_cut_to_what_catalogs_hold():
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": "long", "doc": "x" * 300}]})
    assert columns_of(text)[0].comment == "x" * 255
