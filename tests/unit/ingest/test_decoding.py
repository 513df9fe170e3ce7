"""Values of records to rows: what is read, and that nothing slips through that is not what it should be."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from tideline_ingest.decoding import AvroDecoder, JsonDecoder, SingleObjectDecoder, fingerprint, text_keys
from tideline_ingest.errors import Undecodable
from tideline_table.errors import InvalidOption

SIMPLE = pa.schema([pa.field("id", pa.string(), nullable=False), ("n", pa.int64())])
TYPES = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("deep", pa.struct([("day", pa.date32()), ("xs", pa.list_(pa.struct([("x", pa.float64())])))])),
    ]
)


def test_json_of_every_type():
    full = {
        "flag": True,
        "small": -3,
        "price": "12.50",
        "day": "2026-01-31",
        "clock": 45_000_000_000,
        "at": "2026-01-31T12:30:00.25Z",
        "tags": ["a", None],
        "deep": {"day": "2026-02-01", "xs": [{"x": 1.5}, {}]},
    }
    rows = JsonDecoder(TYPES).decode([json.dumps(full).encode(), b"{}", json.dumps({"price": 3}, indent=1).encode()])
    assert rows.schema == TYPES
    assert rows.to_pylist()[0] == {
        **full,
        "clock": time(12, 30),
        "price": Decimal("12.50"),
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, 30, 0, 250_000, UTC),
        "deep": {"day": date(2026, 2, 1), "xs": [{"x": 1.5}, {"x": None}]},
    }
    assert set(rows.to_pylist()[1].values()) == {None}
    assert rows.column("price")[2].as_py() == Decimal("3.00")


GOOD = b'{"id": "a", "n": 1}'


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b" ",
        b"null",
        b"3",
        b"[]",
        b'"text"',
        b"{",
        b"}",
        b'{"id": "a"',
        b'{"id": "a"}}',
        b'{"id": "a"} {"id": "b"}',
        b'{"id": "a"}\n{"id": "b"}',
        b'{"id": "a"}} {"v": {"id": "b"}',
        b'{"id": "a"}, "v": {"id": "b"}',
        b'{"id": "a"}, "w": {}',
        b'{"id": "a", "id": "b"}',
        b'{"id": "a", "unknown": 1}',
        b'{"id": 1}',
        b'{"id": null}',
        b'{"n": 1}',
        b'{"id": "a", "n": 1.5}',
        b'{"id": "a", "n": "1"}',
        b'{"id": "a", "n": 9223372036854775808}',
        b'{"id": "\xff"}',
        b'{"id": "a",}',
        b'{"id": "line\nend"}x',
        b"\xef\xbb\xbf{}",
        b'{"id": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_object_of_the_schema_is_refused(bad):
    """Alone, and between others: no value may lend another one what it lacks."""
    decoder = JsonDecoder(SIMPLE)
    for values in ([bad], [GOOD, bad], [bad, GOOD], [bad, bad], [GOOD, bad, b'"n": 2}', GOOD]):
        with pytest.raises(Undecodable):
            decoder.decode(values)
    assert decoder.decode([GOOD]).num_rows == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"id": "a"', b', "n": 1}'),
        (b'{"id": "a', b'b"}'),
        (b'{"id":', b'"b"}'),
        (b'{"id": "a"} {"id": "b"}', b" "),
        (b'{"id": "a", "n":', b"{}"),
    ],
)
def test_two_broken_values_are_not_one_whole(first, second):
    with pytest.raises(Undecodable):
        JsonDecoder(SIMPLE).decode([first, second])


def test_unknown_fields_are_ignored_on_request_but_garbage_never_is():
    decoder = JsonDecoder(SIMPLE, ignores_unknown=True)
    assert decoder.decode([b'{"id": "a", "more": {"x": [1]}}']).to_pylist() == [{"id": "a", "n": None}]
    for bad in (b'{"id": "a"}, "w": {}', b'{"id": "a"}}', b'{"id": "a"} x'):
        with pytest.raises(Undecodable):
            decoder.decode([bad])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "a", "n": "7"}, "field 'n' has the value \"7\", which is no int64"),
        ({"id": "a", "n": 1.5}, "field 'n' has the value 1.5, which is no int64"),
        ({"id": 7}, "field 'id' has the value 7, which is no string"),
        ({"id": "a", "at": {"day": "soon"}}, "field 'at.day' has the value \"soon\", which is no date32[day]"),
        ({"id": "a", "at": {"when": 1}}, "unexpected field 'at.when'"),
        ({"id": "a", "at": []}, "field 'at' has the value [], which is no struct<day: date32[day]>"),
        ({"id": "a", "of": [1, "x"]}, "field 'of' has the value [1, \"x\"], which is no list<item: int64>"),
        ({"id": "a", "more": None}, "unexpected field 'more'"),
        ({"id": "x" * 99, "n": [["y" * 99]]}, f"field 'n' has the value [[\"{'y' * 57}, which is no int64"),
    ],
)
def test_the_reason_names_the_field_that_does_not_fit(value, reason):
    schema = pa.schema([*SIMPLE, ("at", pa.struct([("day", pa.date32())])), ("of", pa.list_(pa.int64()))])
    with pytest.raises(Undecodable) as caught:
        JsonDecoder(schema).decode([json.dumps(value).encode()])
    assert caught.value.found == f"a value that is not JSON of the schema ({reason})"


def test_maps_have_no_form_in_json():
    with pytest.raises(InvalidOption, match="map"):
        JsonDecoder(pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))


ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
AT = datetime(2026, 1, 1, tzinfo=UTC)


def datum(schema, **fields):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), fields)
    return sink.getvalue()


def test_plain_avro():
    decoder = AvroDecoder(json.dumps(ORDER))
    values = [datum(ORDER, id=f"k{n}", amount=None if n % 3 else n / 2, at=AT) for n in range(100)]
    rows = decoder.decode(values)
    assert rows.column("id").to_pylist() == [f"k{n}" for n in range(100)]
    assert rows.column("amount").to_pylist() == [None if n % 3 else n / 2 for n in range(100)]
    assert rows.column("at")[0].as_py() == AT
    assert decoder.decode([]).schema == rows.schema


@pytest.mark.parametrize(
    "break_it", [lambda v: b"", lambda v: v[:-1], lambda v: v + b"\x00", lambda v: b"\xff" * 30, lambda v: b"\x02\xff" + v[3:]]
)
def test_broken_avro_is_refused_and_takes_nothing_from_its_neighbours(break_it):
    decoder = AvroDecoder(json.dumps(ORDER))
    good = datum(ORDER, id="kk", amount=1.0, at=AT)
    for values in ([break_it(good)], [good, break_it(good)], [break_it(good), good]):
        with pytest.raises(Undecodable):
            decoder.decode(values)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"", "field 'id': "),
        (b"\x04k", "field 'id': "),
        (b"\x02\xff\x00\x00", "field 'id': "),
        (b"\x02k", "field 'amount': "),
        (b"\x02k\x04", "field 'amount': "),
        (b"\x02k\x02\x00", "field 'amount': "),
        (b"\x02k\x00\x80", "field 'at': "),
        (b"\x02k\x00", "field 'at': "),
        (b"\x02k\x00\x00\x00", "a record that is longer than its fields"),
    ],
)
def test_the_reason_names_the_field_of_a_datum_that_cannot_be_read(value, named):
    with pytest.raises(Undecodable) as caught:
        AvroDecoder(json.dumps(ORDER)).decode([value])
    assert caught.value.found.startswith(f"a value that is not an Avro datum of the schema ({named}")


def test_single_objects_of_several_schemas_keep_their_order():
    texts = [json.dumps(ORDER), json.dumps(NEWER)]
    headers = [b"\xc3\x01" + fingerprint(text) for text in texts]
    values, expected = [], []
    for n in range(20):
        newer = n % 3 == 0
        fields = {"id": f"k{n}", "amount": float(n), "at": AT, **({"note": f"n{n}"} if newer else {})}
        values.append(headers[newer] + datum(NEWER if newer else ORDER, **fields))
        expected.append((f"k{n}", f"n{n}" if newer else None))
    decoder = SingleObjectDecoder(texts)
    rows = decoder.decode(values)
    assert list(zip(rows.column("id").to_pylist(), rows.column("note").to_pylist(), strict=True)) == expected
    alone = [decoder.decode([value]) for value in values]
    assert pa.concat_tables(alone) == rows, "the other values of a batch do not decide what a value is"
    assert decoder.decode([]).schema == rows.schema
    with pytest.raises(Undecodable, match="fingerprint"):
        SingleObjectDecoder(texts[:1]).decode(values)


@pytest.mark.parametrize("kind", ["string", {"type": "array", "items": "double"}, {"type": "int", "logicalType": "date"}])
def test_single_objects_of_schemas_that_no_table_can_hold_are_refused_at_once(kind):
    """Not when a batch has values of both, which then no decoder takes and nobody can name."""
    other = {**ORDER, "fields": [*ORDER["fields"][:1], {"name": "amount", "type": ["null", kind]}]}
    with pytest.raises(InvalidOption, match="amount"):
        SingleObjectDecoder([json.dumps(ORDER), json.dumps(other)])


def test_single_objects_whose_values_have_no_type_in_common():
    whole = {**ORDER, "fields": [ORDER["fields"][0], {"name": "amount", "type": ["null", "long"]}, ORDER["fields"][2]]}
    decoder = SingleObjectDecoder([json.dumps(ORDER), json.dumps(whole)])

    def value(schema, amount):
        return b"\xc3\x01" + fingerprint(json.dumps(schema)) + datum(schema, id="k", amount=amount, at=AT)

    assert decoder.decode([value(ORDER, 0.5), value(whole, 2**53)]).column("amount").to_pylist() == [0.5, 2.0**53]
    with pytest.raises(Undecodable, match="do not fit together"):
        decoder.decode([value(ORDER, 0.5), value(whole, 2**53 + 1)])


def test_the_fingerprint_is_that_of_the_specification():
    assert fingerprint('"int"').hex() == "8f5c393f1ad57572"


def test_keys_as_text():
    assert text_keys([b"7", b"8"], pa.field("id", pa.int64())).to_pylist() == [{"id": 7}, {"id": 8}]
    for bad in (b"x", b"\xff"):
        with pytest.raises(Undecodable):
            text_keys([b"7", bad], pa.field("id", pa.int64()))
