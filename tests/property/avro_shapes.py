"""Avro record schemas with rows that fit them, and what fastavro makes of the rows' bytes."""

import datetime as dt
import decimal
import io
import json
import struct
import uuid

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from tideline_table.log_format import BlockType, HeaderKey
from tideline_table.log_format.avro import row_schema
from tideline_table.log_format.framing import frame_block

UTC = dt.UTC
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abcdefg_XYZ", min_size=1, max_size=6)
instants = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))


def whole_ms(value):
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def logical(base, name):
    return {"type": base, "logicalType": name}


def decimals(precision, scale):
    most = 10**precision - 1
    numbers = st.integers(-most, most) | st.sampled_from([0, 1, -1, 127, 128, -128, -129, 2**15, -(2**15), most, -most])
    return numbers.map(lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))).filter(
        lambda d: len(d.as_tuple().digits) <= precision
    )


PLAIN = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1) | st.integers(-70, 70)),
    ("long", st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.sampled_from([2**55, -(2**55) - 1, 2**62])),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", texts),
    ("bytes", st.binary(max_size=20)),
    (logical("int", "date"), st.dates()),
    (logical("int", "time-millis"), st.times().map(whole_ms)),
    (logical("long", "time-micros"), st.times()),
    (logical("long", "timestamp-millis"), instants.map(whole_ms).map(lambda t: t.replace(tzinfo=UTC))),
    (logical("long", "timestamp-micros"), instants.map(lambda t: t.replace(tzinfo=UTC))),
    (logical("long", "local-timestamp-millis"), instants.map(whole_ms)),
    (logical("long", "local-timestamp-micros"), instants),
    (logical("string", "uuid"), st.uuids().map(str)),
    ("null", st.none()),
]


class Shapes:
    """Draws types; every named type gets a name of its own, and some are referred to again."""

    def __init__(self, draw):
        self.draw = draw
        self.named = []

    def name(self, kind, values, extra):
        full = f"n{len(self.named)}"
        self.named.append((full, values))
        return {"type": kind, "name": full, **extra}, values

    def plain(self):
        choice = self.draw(st.integers(0, len(PLAIN) + 4))
        if choice < len(PLAIN):
            return PLAIN[choice]
        if choice == len(PLAIN):
            size = self.draw(st.sampled_from([1, 3, 16]))
            return self.name("fixed", st.binary(min_size=size, max_size=size), {"size": size})
        if choice == len(PLAIN) + 1:
            symbols = self.draw(st.lists(names, min_size=1, max_size=4, unique=True))
            return self.name("enum", st.sampled_from(symbols), {"symbols": symbols})
        if choice == len(PLAIN) + 2 and self.named:
            return self.draw(st.sampled_from(self.named))
        precision = self.draw(st.sampled_from([1, 5, 18, 19, 30, 38, 50]))
        shape = {"logicalType": "decimal", "precision": precision, "scale": self.draw(st.integers(0, min(precision, 6)))}
        values = decimals(precision, shape["scale"])
        if choice == len(PLAIN) + 3:
            return {"type": "bytes", **shape}, values
        least = (10**precision).bit_length() // 8 + 1
        return self.name("fixed", values, {"size": least + self.draw(st.integers(0, 9)), **shape})

    def any(self, depth):
        choice = self.draw(st.integers(0, 9)) if depth else 0
        if choice == 6:
            item, values = self.member(depth - 1)
            return {"type": "array", "items": item}, st.lists(values, max_size=5)
        if choice == 7:
            item, values = self.member(depth - 1)
            return {"type": "map", "values": item}, st.dictionaries(texts, values, max_size=4)
        if choice > 7:
            fields = [(name, *self.member(depth - 1)) for name in self.draw(st.lists(names, min_size=1, max_size=4, unique=True))]
            values = st.fixed_dictionaries({name: values for name, _, values in fields})
            return self.name("record", values, {"fields": [{"name": name, "type": kind} for name, kind, _ in fields]})
        return self.plain()

    def member(self, depth):
        """A type that may be wrapped into a union with null, in either order."""
        kind, values = self.any(depth)
        if kind == "null":
            return kind, values
        union = self.draw(st.sampled_from([None, None, ["null", kind], [kind, "null"]]))
        return (union, st.none() | values) if union else (kind, values)


@st.composite
def tables(draw, depth=3, max_rows=8):
    """Schema JSON and rows; some have enough rows to be decoded in step, most do not."""
    shapes = Shapes(draw)
    fields = [(name, *shapes.member(depth)) for name in draw(st.lists(names, min_size=1, max_size=5, unique=True))]
    rows = draw(st.lists(st.fixed_dictionaries({name: values for name, _, values in fields}), max_size=max_rows))
    if draw(st.booleans()):
        rows = rows * draw(st.sampled_from([17, 90]))
    schema = {"type": "record", "name": "r", "namespace": "a.b", "fields": [{"name": n, "type": k} for n, k, _ in fields]}
    return json.dumps(schema), rows


def datum(schema, row):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, row)
    return sink.getvalue()


def fastavro_block(text, rows, instant="20260101000000000"):
    """A data block whose records fastavro encoded."""
    schema = fastavro.parse_schema(json.loads(text))
    return framed(text, [datum(schema, row) for row in rows], instant)


def framed(text, datums, instant="20260101000000000"):
    content = struct.pack(">ii", 3, len(datums)) + b"".join(struct.pack(">i", len(d)) + d for d in datums)
    return frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: text}, content)


def records(content):
    """The records inside the content of an Avro data block."""
    _, count = struct.unpack_from(">ii", content)
    at, found = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", content, at)
        found.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    assert at == len(content)
    return found


def fastavro_table(text, datums):
    """The rows that fastavro decodes, as an Arrow table of the same schema."""
    schema = fastavro.parse_schema(json.loads(text))
    target = row_schema(text)
    rows = [fastavro.schemaless_reader(io.BytesIO(d), schema, None) for d in datums]
    columns = [pa.array([arrow_value(row[field.name], field.type) for row in rows], field.type) for field in target]
    return pa.Table.from_arrays(columns, schema=target)


def arrow_value(value, kind):
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict) and pa.types.is_map(kind):
        return [(key, arrow_value(item, kind.item_type)) for key, item in value.items()]
    if isinstance(value, dict):
        return {field.name: arrow_value(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [arrow_value(item, kind.value_type) for item in value]
    return value
