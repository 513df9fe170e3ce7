import json

import fastavro
import pyarrow as pa
import pytest

from tideline_table.errors import CorruptMetadata, SchemaMismatch
from tideline_table.schema import META_FIELDS, arrow_from_avro, avro_from_arrow, with_meta_fields
from tideline_table.schema.avro import decimal_width_bytes

EXACT = [
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.timestamp("ms", tz="UTC"),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.decimal128(10, 2),
    pa.decimal128(38, 38),
    pa.list_(pa.field("array", pa.int64())),
    pa.list_(pa.field("array", pa.string(), nullable=False)),
    pa.map_(pa.string(), pa.field("value", pa.float64(), nullable=True)),
    pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.list_(pa.field("array", pa.decimal128(9, 3))))]),
    pa.list_(pa.field("array", pa.struct([pa.field("d", pa.date32()), pa.field("in", pa.struct([pa.field("z", pa.bool_())]))]))),
    pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("array", pa.struct([pa.field("a", pa.decimal128(5, 1))]))))),
]
WIDENED = [
    (pa.int8(), pa.int32()),
    (pa.int16(), pa.int32()),
    (pa.uint8(), pa.int32()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.timestamp("s"), pa.timestamp("ms")),
    (pa.timestamp("s", tz="UTC"), pa.timestamp("ms", tz="UTC")),
    (pa.large_list(pa.int16()), pa.list_(pa.field("array", pa.int32()))),
    (pa.list_(pa.int8(), 3), pa.list_(pa.field("array", pa.int32()))),
]


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("kind", EXACT, ids=str)
def test_round_trip(kind, nullable):
    schema = pa.schema([pa.field("a", kind, nullable=nullable), pa.field("b", kind, nullable=not nullable)])
    text = avro_from_arrow(schema, "t1")
    fastavro.parse_schema(json.loads(text))
    assert arrow_from_avro(text) == schema


@pytest.mark.parametrize(("kind", "expected"), WIDENED, ids=str)
def test_widened(kind, expected):
    text = avro_from_arrow(pa.schema([pa.field("a", kind)]), "t1")
    assert arrow_from_avro(text).field("a").type == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.float16(),
        pa.timestamp("ns"),
        pa.timestamp("us", tz="Europe/Paris"),
        pa.time64("ns"),
        pa.time32("s"),
        pa.duration("s"),
        pa.date64(),
        pa.null(),
        pa.binary(16),
        pa.map_(pa.int32(), pa.string()),
        pa.list_(pa.duration("s")),
        pa.struct([pa.field("x", pa.uint64())]),
        pa.dense_union([pa.field("x", pa.int32())]),
    ],
    ids=str,
)
def test_refused_types(kind):
    with pytest.raises(SchemaMismatch, match=r"column '[ax]'"):
        avro_from_arrow(pa.schema([pa.field("a", kind)]), "t1")


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "é", "a.b"])
def test_refused_names(name):
    with pytest.raises(SchemaMismatch, match="Avro's rule"):
        avro_from_arrow(pa.schema([pa.field(name, pa.int32())]), "t1")


@pytest.mark.parametrize("table", ["t1", "1st", "a-b.c", "_x"])
def test_record_name_is_legal_avro(table):
    fastavro.parse_schema(json.loads(avro_from_arrow(pa.schema([pa.field("a", pa.decimal128(4, 1))]), table)))


def test_as_hudi_writes_it():
    """The schema that Apache Hudi 1.2.0 stored for the same columns."""
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("ts", pa.int64(), nullable=False),
            pa.field("price", pa.float64(), nullable=False),
            pa.field("qty", pa.int32(), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("d", pa.date32()),
            pa.field("amount", pa.decimal128(10, 2)),
            pa.field("flag", pa.bool_()),
            pa.field("part", pa.string()),
        ]
    )
    observed = (
        '{"type":"record","name":"obs_record","namespace":"hoodie.obs","fields":[{"name":"id","type":"string"},'
        '{"name":"ts","type":"long"},{"name":"price","type":"double"},{"name":"qty","type":"int"},'
        '{"name":"at","type":["null",{"type":"long","logicalType":"timestamp-micros"}],"default":null},'
        '{"name":"d","type":["null",{"type":"int","logicalType":"date"}],"default":null},'
        '{"name":"amount","type":["null",{"type":"fixed","name":"fixed","namespace":"hoodie.obs.obs_record.amount","size":5,'
        '"logicalType":"decimal","precision":10,"scale":2}],"default":null},'
        '{"name":"flag","type":["null","boolean"],"default":null},{"name":"part","type":["null","string"],"default":null}]}'
    )
    assert avro_from_arrow(schema, "obs") == observed
    assert arrow_from_avro(observed) == schema


def test_meta_fields_come_first_and_are_left_out_again():
    schema = pa.schema([pa.field("a", pa.int32())])
    text = avro_from_arrow(with_meta_fields(schema), "t", meta_fields=True)
    assert [f["name"] for f in json.loads(text)["fields"]] == [*META_FIELDS, "a"]
    assert arrow_from_avro(text) == schema


@pytest.mark.parametrize("precision", range(1, 39))
def test_decimal_width(precision):
    size = decimal_width_bytes(precision)
    (10**precision - 1).to_bytes(size, "big", signed=True)
    with pytest.raises(OverflowError):
        (10**precision - 1).to_bytes(size - 1, "big", signed=True)


def test_named_types_are_resolved_in_their_namespace():
    point = {"type": "record", "name": "Point", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "a", "type": point}, {"name": "b", "type": ["null", "n.Point"]}, {"name": "c", "type": "Point"}]
    schema = arrow_from_avro(json.dumps({"type": "record", "name": "r", "namespace": "n", "fields": fields}))
    assert schema.field("b").type == schema.field("c").type == schema.field("a").type
    assert schema.field("b").nullable
    assert not schema.field("c").nullable


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"string"',
        '{"type":"record"}',
        '{"type":"record","name":"r","fields":[{"name":"a"}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":"r"}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":["int","string"]}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":["null"]}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":5}]}',
        '{"type":"record","name":"r","fields":5}',
        '{"type":"record","name":"r","fields":[5]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"bytes","logicalType":"decimal","precision":99}}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"bytes","logicalType":"decimal","precision":1e999}}]}',
        '{"type":"record","name":"r","namespace":5,"fields":[{"name":"a","type":{"type":"fixed"}}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":' + '{"type":"array","items":' * 80 + '"int"' + "}" * 80 + "}]}",
        '{"type":"record","name":"r","fields":[{"name":"a","type":' + "[" * 100000 + "]" * 100000 + "}]}",
    ],
)
def test_broken_schemas_are_typed_errors(text):
    with pytest.raises(CorruptMetadata):
        arrow_from_avro(text)
