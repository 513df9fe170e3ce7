import json

import fastavro
import pyarrow as pa
import pytest

from tideline_table.errors import CorruptMetadata, SchemaMismatch
from tideline_table.schema import META_FIELDS, arrow_from_avro, avro_from_arrow, avro_with_meta_fields, with_meta_fields
from tideline_table.schema.avro import avro_part, decimal_width_bytes

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
    pa.binary(16),
    pa.list_(pa.field("array", pa.list_(pa.field("array", pa.decimal128(4, 1))))),
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
    (pa.time32("s"), pa.time32("ms")),
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
        pa.duration("s"),
        pa.date64(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -1),
        pa.struct([]),
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
    text = avro_with_meta_fields(avro_from_arrow(with_meta_fields(schema), "t"))
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


def schema_of(*fields, **more):
    return arrow_from_avro(json.dumps({"type": "record", "name": "r", "namespace": "n", **more, "fields": list(fields)}))


@pytest.mark.parametrize(
    ("avro", "kind"),
    [
        ("null", pa.null()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}, pa.binary(16)),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.string()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 7, "scale": 3}, pa.decimal128(7, 3)),
        ({"type": "fixed", "name": "f", "size": 20, "logicalType": "decimal", "precision": 45}, pa.decimal256(45, 0)),
        ({"type": "long", "logicalType": "not-known"}, pa.int64()),
        ({"type": {"type": "long", "logicalType": "timestamp-millis"}}, pa.timestamp("ms", "UTC")),
        ({"type": "string", "avro.java.string": "String"}, pa.string()),
    ],
)
def test_types_that_others_write(avro, kind):
    schema = schema_of({"name": "a", "type": avro})
    assert schema.field("a").type == kind
    assert schema.field("a").nullable == (kind == pa.null())


@pytest.mark.parametrize("union", [["null", "int"], ["int", "null"], [{"type": "null"}, "int"]])
def test_nullable_unions_in_either_order(union):
    assert schema_of({"name": "a", "type": union}).field("a") == pa.field("a", pa.int32(), nullable=True)
    assert schema_of({"name": "a", "type": ["int"]}).field("a") == pa.field("a", pa.int32(), nullable=False)


def test_a_dotted_name_brings_its_namespace_along():
    outer = {
        "type": "record",
        "name": "deep.er.Outer",
        "fields": [{"name": "e", "type": {"type": "enum", "name": "E", "symbols": []}}],
    }
    schema = schema_of({"name": "a", "type": outer}, {"name": "b", "type": "deep.er.E"}, {"name": "c", "type": "deep.er.Outer"})
    assert schema.field("b").type == pa.string()
    assert schema.field("c").type == pa.struct([pa.field("e", pa.string(), nullable=False)])
    with pytest.raises(CorruptMetadata, match="Avro type 'E'"):
        schema_of({"name": "a", "type": outer}, {"name": "b", "type": "E"})


@pytest.mark.parametrize(
    "kind", ["n.r", "r", ["null", "r"], {"type": "array", "items": "n.r"}, {"type": "map", "values": ["null", "r"]}]
)
def test_recursive_types_are_named(kind):
    with pytest.raises(CorruptMetadata, match=r"'n\.r' that contains itself"):
        schema_of({"name": "a", "type": kind})


def test_unions_of_several_types_are_named():
    with pytest.raises(CorruptMetadata, match=r"union of 2 types \(int, point\)"):
        schema_of({"name": "a", "type": ["null", "int", {"type": "record", "name": "point", "fields": []}]})


def test_few_words_cannot_stand_for_endless_types():
    fields = [{"name": "f0", "type": {"type": "record", "name": "t0", "fields": [{"name": "x", "type": "int"}]}}]
    for n in range(1, 40):
        members = [{"name": name, "type": f"t{n - 1}"} for name in ("x", "y")]
        fields.append({"name": f"f{n}", "type": {"type": "record", "name": f"t{n}", "fields": members}})
    with pytest.raises(CorruptMetadata, match="more than 100000 types"):
        schema_of(*fields)


@pytest.mark.parametrize(
    "avro",
    [
        {"type": "fixed", "name": "f", "size": 0},
        {"type": "fixed", "name": "f", "size": -1},
        {"type": "fixed", "name": "f", "size": True},
        {"type": "fixed", "name": "f", "size": 1e3},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": "4"},
        {"type": "record", "name": "q", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
        {"type": "record", "name": "", "fields": []},
        {"type": "array"},
        None,
    ],
)
def test_malformed_declarations(avro):
    with pytest.raises(CorruptMetadata):
        schema_of({"name": "a", "type": avro})


def test_nested_names_are_those_that_spark_gives():
    """As Apache Hudi 1.2.0 stored an array and a map of structs with a decimal."""
    item = pa.struct([("x", pa.int64()), ("d", pa.decimal128(5, 2))])
    schema = pa.schema([("ast", pa.list_(item)), ("mst", pa.map_(pa.string(), item))])
    found = json.loads(avro_from_arrow(schema, "t"))["fields"]
    for field, (name, inner) in zip(found, [("ast", "items"), ("mst", "values")], strict=True):
        record = field["type"][1][inner][1]
        assert (record["name"], record["namespace"]) == (name, "hoodie.t.t_record")
        assert record["fields"][1]["type"][1]["namespace"] == f"hoodie.t.t_record.{name}.d"


def test_a_part_of_a_schema_has_no_field_whose_type_another_one_declares():
    fixed = {"type": "fixed", "name": "half", "size": 8}
    fields = [{"name": "a", "type": fixed}, {"name": "b", "type": ["null", "half"]}, {"name": "c", "type": "long"}]
    text = json.dumps({"type": "record", "name": "r", "namespace": "n", "fields": fields})
    assert json.loads(avro_part(text, ["c", "a"]))["fields"] == [fields[0], fields[2]]
    assert arrow_from_avro(avro_part(text, ["a", "b"])).names == ["a", "b"]
    assert avro_part(text, ["b", "c"]) is None
