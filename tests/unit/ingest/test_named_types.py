"""Schemas that refer to types of other schemas: what a name means, and what is refused."""

import json

import pyarrow as pa
import pytest

from tideline_ingest.decoding import AvroDecoder
from tideline_ingest.errors import Undecodable
from tideline_ingest.named_types import whole_schema
from tideline_table.errors import CorruptMetadata


def record(name, *kinds, **more):
    """Its fields are called f0, f1, ..."""
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)], **more}


def enum(name, *symbols, **more):
    return {"type": "enum", "name": name, "symbols": symbols or ["A"], **more}


def whole(main, *referenced):
    return AvroDecoder(whole_schema(json.dumps(main), [json.dumps(found) for found in referenced]))


STRUCT = pa.struct([pa.field("f0", pa.string(), nullable=False)])


@pytest.mark.parametrize(
    ("main", "referenced", "expected"),
    [
        (record("M", "E"), [enum("E")], [pa.string()]),
        (record("M", {"type": "E"}), [enum("E")], [pa.string()]),
        (record("M", {"type": {"type": "c.E"}}), [enum("E", namespace="c")], [pa.string()]),
        (record("c.M", "E"), [enum("E")], [pa.string()]),
        (
            record("c.M", "E", {"type": "array", "items": "E"}),
            [enum("c.E")],
            [pa.string(), pa.list_(pa.field("array", pa.string()))],
        ),
        (record("c.M", "R"), [record("R", "string", namespace="c")], [STRUCT]),
        (record("M", "c.E", "R"), [record("R", enum("c.E"))], [pa.string(), pa.struct([("f0", pa.string())])]),
        (record("M", "B", "A"), [["null", enum("A"), {"type": "map", "values": record("B", "string")}]], [STRUCT, pa.string()]),
        (record("M", "string"), ["string", {"type": "array", "items": "long"}], [pa.string()]),
        ("c.R", [record("c.R", "string")], [pa.string()]),
        ({"type": "c.R"}, [record("c.R", "string")], [pa.string()]),
        (record("M", "E", enum("E", "A", doc="again")), [enum("E", "A")], [pa.string(), pa.string()]),
        (record("c.M", "E", record("E", "string", namespace="")), [enum("c.E")], [pa.string(), STRUCT]),
        (
            record("c.M", "d.R", enum("c.E"), "E"),
            [enum("E"), record("d.R", "E")],
            [pa.struct([("f0", pa.string())]), *[pa.string()] * 2],
        ),
        (
            record("M", "c.P", "c.F"),
            [
                {"type": "fixed", "name": "c.P", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 2},
                {"type": "fixed", "name": "c.F", "size": 3},
            ],
            [pa.decimal128(12, 2), pa.binary(3)],
        ),
        (
            record("M", {"type": "long", "logicalType": "timestamp-micros"}, {"type": "int", "logicalType": "date"}),
            [enum("E")],
            [pa.timestamp("us", tz="UTC"), pa.date32()],
        ),
        (record("M", "E"), [record("Tree", ["null", "Tree"]), enum("E")], [pa.string()]),
    ],
)
def test_a_name_means_what_was_named_before(main, referenced, expected):
    found = whole(main, *referenced).schema.types
    assert [str(kind).replace(" not null", "") for kind in found] == [str(kind).replace(" not null", "") for kind in expected]


def test_a_name_keeps_the_meaning_that_it_had_where_it_stands():
    """Inside `d.R`, `E` is the type without a namespace: `d.E` came later."""
    main = record("M", {"type": "fixed", "name": "d.E", "size": 2}, "d.R")
    found = whole(main, enum("E", "X", "Y"), record("d.R", "E", enum("string", "Q")))
    rows = found.decode([b"ab\x02\x00"])
    assert rows.to_pylist() == [{"f0": b"ab", "f1": {"f0": "Y", "f1": "Q"}}]


@pytest.mark.parametrize(
    ("main", "referenced", "reason"),
    [
        (record("M", "c.Other"), [enum("Other")], "unknown type 'c.Other'"),
        (record("M", {"type": "c.Other"}), [enum("E")], "unknown type 'c.Other'"),
        (record("M", "Later", enum("Later")), [enum("E")], "unknown type 'Later'"),
        (record("M", "E"), [record("R", "E"), enum("E")], "unknown type 'E'"),
        (record("M", ["null", "c.Tree"]), [record("c.Tree", ["null", "Tree"])], "type 'c.Tree' contains itself"),
        (record("M", ["null", "M"]), [enum("E")], "type 'M' contains itself"),
        (record("M", "A"), [record("A", {"type": "array", "items": record("B", "A")})], "type 'A' contains itself"),
        (record("M", enum("E", "A", "B")), [enum("E", "A")], "type 'E' has two different definitions"),
        (record("E", "string"), [enum("E")], "type 'E' has two different definitions"),
        (record("M", record("M", "string")), [enum("E")], "type 'M' has two different definitions"),
        (record("M", {"type": "array"}), [enum("E")], "without a usable 'items'"),
        (record("M", None), [enum("E")], "without a usable 'type'"),
        (record("M", 7), [enum("E")], "without a usable 'type'"),
        (record("M", "E"), [{}], "without a usable 'type'"),
        (record("M", "E"), [None], "without a usable 'type'"),
        (record("M", "E"), [{"type": "enum", "name": ["E"]}], "without a usable 'name'"),
        (record("M", "E"), [enum("E", namespace=3)], "namespace that is not text"),
        (record("M", "E"), [{"type": "record", "name": "E", "fields": {"f": 1}}], "without a usable 'fields'"),
        (record("M", "E"), [{"type": "record", "name": "E", "fields": ["f"]}], "without a usable 'name'"),
        (record("M", {"type": {"type": None}}), [enum("E")], "without a usable 'type'"),
    ],
)
def test_what_is_no_whole_schema_is_refused(main, referenced, reason):
    with pytest.raises(Undecodable, match=reason):
        whole(main, *referenced)


def test_no_schema_is_too_deep_to_be_refused():
    arrays = "long"
    for _ in range(100):
        arrays = {"type": "array", "items": arrays}
    for main, referenced in ((record("M", arrays), []), (record("M", "long"), [arrays])):
        with pytest.raises(Undecodable, match="deeper than 64"):
            whole(main, *referenced)
    levels = [record("R0", "long"), *(record(f"R{n}", f"R{n - 1}") for n in range(1, 300))]
    with pytest.raises(Undecodable, match="deeper than 64"):
        whole(record("M", "R299"), *levels)
    with pytest.raises(CorruptMetadata, match="deeper than 64"):
        # Each name is used where it is not deep.
        whole(record("M", *(f"R{n}" for n in range(300))), *levels)
    assert whole(record("M", *(f"R{n}" for n in range(60))), *levels).schema.names[59] == "f59"
    with pytest.raises(Undecodable, match="invalid JSON"):
        whole_schema("[" * 100_000, [])
    doubled = [record("D0", "long"), *(record(f"D{n}", f"D{n - 1}", f"D{n - 1}") for n in range(1, 40))]
    with pytest.raises(CorruptMetadata, match="more than 50000"):
        whole(record("M", "D39"), *doubled)
