"""Rows in log blocks: those of Apache Hudi against fastavro, and what we write (format reference 9.6)."""

import datetime as dt
import decimal
import json
import random
import struct

import pyarrow as pa
import pytest
from tests.property.avro_shapes import fastavro_block, fastavro_table, framed, records
from tests.unit.table.hfiles import hfile
from tests.unit.table.log_files import SCHEMA, data, logs_of_tables, rows, single_log, stored

from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable
from tideline_table.log_format import BlockType, HeaderKey, avro_block, parquet_block, read_rows, scan_log
from tideline_table.log_format.avro import row_schema
from tideline_table.log_format.framing import command_block, frame_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.record_spans import _ends_from_many_places, record_spans

LOGS = logs_of_tables()


def blocks(content, *types):
    storage = stored(content)
    return storage, [b for b in scan_log(storage, "log").blocks if b.type in types]


def read(content, *arguments, **named):
    storage, (block,) = blocks(content, *BlockType)
    return read_rows(storage, block, *arguments, **named)


def content_of(storage, block):
    return storage.read_range("log", block.content_offset, block.content_bytes)


def record(*fields):
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]})


def test_a_row_of_hudi():
    (row,) = read(single_log("valid_log_avro_data")).to_pylist()
    assert row == {
        "_hoodie_commit_time": "20250316025828811",
        "_hoodie_commit_seqno": "20250316025828811_0_2",
        "_hoodie_record_key": "334e26e9-8355-45cc-97c6-c31daf0df330",
        "_hoodie_partition_path": "city=san_francisco",
        "_hoodie_file_name": "ff32ab89-5ad0-4968-83b4-89a34c95d32f-0",
        "ts": 1695159649088,
        "uuid": "334e26e9-8355-45cc-97c6-c31daf0df330",
        "rider": "rider-A",
        "driver": "driver-K",
        "fare": 29.1,
        "city": "san_francisco",
    }


def test_avro_blocks_of_hudi_tables_and_back():
    """Rows are those of fastavro; written again they give Hudi's bytes."""
    seen = 0
    for name, content in LOGS.items():
        storage, found = blocks(content, BlockType.AVRO)
        for block in found:
            seen += 1
            rows = read_rows(storage, block)
            assert rows.equals(fastavro_table(block.schema_json, records(content_of(storage, block)))), name
            written, (again,) = blocks(avro_block(rows, block.schema_json, block.instant), BlockType.AVRO)
            assert content_of(written, again) == content_of(storage, block)
            assert again.header == {key: block.header[key] for key in (HeaderKey.INSTANT_TIME, HeaderKey.SCHEMA)}
    assert seen == 7


def test_parquet_blocks_of_hudi_tables():
    for table in ("sample_table_mor_parquet_v6_nonpartitioned", "sample_table_mor_parquet_v6_simplekeygen_nonhivestyle"):
        ((content),) = [content for name, content in LOGS.items() if name.startswith(f"{table}/")]
        found = read(content)
        assert found.schema == row_schema(blocks(content, BlockType.PARQUET)[1][0].schema_json)
        assert found.num_rows
        storage, (block,) = blocks(
            parquet_block(found, scan_log(stored(content), "log").blocks[0].schema_json, "1"), BlockType.PARQUET
        )
        assert read_rows(storage, block) == found


EVERY_TYPE = record(
    ("_hoodie_commit_time", ["null", "string"]),
    ("_hoodie_record_key", ["null", "string"]),
    ("i", "int"),
    ("l", ["long", "null"]),
    ("f", "float"),
    ("d", ["null", "double"]),
    ("b", ["null", "boolean"]),
    ("s", "string"),
    ("y", ["null", "bytes"]),
    ("x", ["null", {"type": "fixed", "name": "x3", "size": 3}]),
    ("e", {"type": "enum", "name": "suit", "symbols": ["HEARTS", "SPADES"]}),
    ("dec", ["null", {"type": "fixed", "name": "d9", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 4}]),
    ("decb", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}),
    ("wide", {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}),
    ("day", ["null", {"type": "int", "logicalType": "date"}]),
    ("tms", {"type": "int", "logicalType": "time-millis"}),
    ("tus", {"type": "long", "logicalType": "time-micros"}),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("us", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("lms", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("lus", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("id", {"type": "string", "logicalType": "uuid"}),
    ("again", ["null", "x3"]),
    ("rec", ["null", {"type": "record", "name": "q", "fields": [{"name": "a", "type": ["null", "string"]}, {"name": "b", "type": "x3"}]}]),
    ("recs", {"type": "array", "items": ["null", "q"]}),
    ("map", ["null", {"type": "map", "values": ["null", "long"]}]),
    ("nest", {"type": "map", "values": {"type": "array", "items": {"type": "map", "values": {"type": "array", "items": "int"}}}}),
)  # fmt: skip


def every_type(number):
    sparse = number % 3 == 0
    q = {"a": None if sparse else f"a{number}", "b": b"abc"}
    return {
        "_hoodie_commit_time": "1",
        "_hoodie_record_key": f"k{number}",
        "i": number - 50,
        "l": None if sparse else 3**number % 2**63 * (-1) ** number,
        "f": number / 2,
        "d": None if sparse else number / 7,
        "b": None if sparse else number % 2 == 0,
        "s": "ü" * (number % 5),
        "y": None if sparse else bytes([number % 256]) * (number % 200),
        "x": None if sparse else b"xyz",
        "e": ("HEARTS", "SPADES")[number % 2],
        "dec": None if sparse else decimal.Decimal(10 ** (number % 20)) / 10000 * (-1) ** number,
        "decb": decimal.Decimal(number - 60).scaleb(-number % 10),
        "wide": decimal.Decimal(f"{7 ** (number % 60)}.25") * (-1) ** number,
        "day": None if sparse else dt.date(2020, 1, 1) + dt.timedelta(days=number),
        "tms": dt.time(1, 2, 3, number * 1000),
        "tus": dt.time(23, 59, 59, number),
        "ms": dt.datetime(1969, 12, 31, 23, 59, 59, number * 1000, tzinfo=dt.UTC),
        "us": None if sparse else dt.datetime(2026, 1, 1, microsecond=number, tzinfo=dt.UTC),
        "lms": dt.datetime(1800, 1, 1),
        "lus": dt.datetime(2200, 1, 1, microsecond=number),
        "id": "00000000-0000-0000-0000-000000000001",
        "again": None if sparse else b"123",
        "rec": None if sparse else q,
        "recs": [None, q] * (number % 4),
        "map": None if sparse else {f"m{i}": None if i % 2 else i for i in range(number % 6)},
        "nest": {f"n{i}": [{"a": [1, number], "b": []}] * i for i in range(number % 3)},
    }


@pytest.mark.parametrize("count", [0, 1, 3, 63, 64, 200])
def test_every_type_as_fastavro_reads_and_writes_it(count):
    block = fastavro_block(EVERY_TYPE, [every_type(number) for number in range(count)])
    storage, (found,) = blocks(block, BlockType.AVRO)
    theirs = records(content_of(storage, found))
    rows = read_rows(storage, found)
    rows.validate(full=True)
    assert rows.equals(fastavro_table(EVERY_TYPE, theirs))
    written, (again,) = blocks(avro_block(rows, EVERY_TYPE, found.instant), BlockType.AVRO)
    assert fastavro_table(EVERY_TYPE, records(content_of(written, again))).equals(rows)
    for start, length in ((0, count // 2), (count // 2, count)):
        part = rows.slice(start, length)
        assert read(avro_block(part, EVERY_TYPE, "1")) == part


def test_more_rows_than_a_batch_in_many_chunks():
    table = pa.concat_tables([rows(*range(start, start + 700)) for start in range(0, 42_000, 700)])
    found = read(avro_block(table, SCHEMA, "1"))
    assert found.num_rows == 42_000
    assert found == table
    assert found == read(parquet_block(table, SCHEMA, "1"))


def test_lists_of_very_different_lengths():
    """A list of many items beside many of few; and items of every width."""
    text = record(
        ("texts", {"type": "array", "items": "string"}),
        ("doubles", {"type": "array", "items": "double"}),
        ("longs", {"type": "array", "items": "long"}),
        ("lists", {"type": "array", "items": {"type": "array", "items": ["null", "int"]}}),
    )
    lengths = [5_000, *range(100), 0, 0, 20_000]
    lists = [
        {
            "texts": [f"t{i}" for i in range(n)],
            "doubles": [i / 2 for i in range(n)],
            "longs": list(range(n)),
            "lists": [[None, i] * (i % 3) for i in range(n)],
        }
        for n in lengths
    ]
    rows = read(fastavro_block(text, lists))
    assert rows.to_pylist() == lists
    assert read(avro_block(rows, text, "1")) == rows


def test_lists_in_stretches_with_their_sizes():
    """Avro allows lists in several stretches, each with a negative count and its bytes."""
    text = record(("a", {"type": "array", "items": "string"}), ("b", {"type": "array", "items": "boolean"}))
    datum = (
        b"\x02\x02x"  # one item: "x"
        b"\x03\x08\x02y\x02z"  # -2 items in 4 bytes: "y", "z"
        b"\x00"
        b"\x01\x02\x01"  # -1 item in 1 byte: true
        b"\x04\x00\x01"  # two items: false, true
        b"\x00"
    )
    for count in (1, 100):
        assert read(framed(text, [datum] * count)).to_pylist() == [{"a": ["x", "y", "z"], "b": [True, False, True]}] * count


def lengths_of(count):
    return [(number * 7919) % 41 + 10 for number in range(count)]


FILLS = {
    "zeros": bytes,
    "text": lambda n: b"x" * n,
    "anything": random.Random(7).randbytes,
    # Looks like lengths of records wherever one starts to read.
    "lengths": lambda n: (struct.pack(">i", 20) * 16)[:n],
    "their own lengths": lambda n: (struct.pack(">i", n) * 16)[:n],
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("count", [0, 1, 9_000])
def test_records_are_found_whatever_is_in_them(fill, count):
    lengths = lengths_of(count)
    content = b"\x00" * 8 + b"".join(struct.pack(">i", n) + FILLS[fill](n) for n in lengths)
    begins, ends = record_spans(content, 8, count)
    assert (ends - begins).tolist() == lengths
    assert begins.tolist()[:1] == [12] * min(count, 1)
    assert (begins[1:] - ends[:-1] == 4).all()


def test_records_are_found_from_many_places_at_once():
    lengths = lengths_of(9_000)
    for fill, found in (("zeros", True), ("text", True), ("anything", True), ("lengths", True), ("their own lengths", False)):
        content = b"".join(struct.pack(">i", n) + FILLS[fill](n) for n in lengths)
        assert (_ends_from_many_places(content, 0, 9_000) is not None) is found


@pytest.mark.parametrize("count", [50, 9_000])
def test_records_that_do_not_follow_each_other(count):
    lengths = lengths_of(count)
    content = b"".join(struct.pack(">i", n) + b"x" * n for n in lengths)
    at = sum(lengths[: count // 2]) + 4 * (count // 2)
    for damaged, claimed in (
        (content[:-1], count),
        (content + b"xxxx", count),
        (content, count - 1),
        (content, count + 1),
        (content[:at] + b"\x7f" + content[at + 1 :], count),
        (content[:at] + b"\xff" + content[at + 1 :], count),
        (content[:at] + struct.pack(">i", lengths[count // 2] + 1) + content[at + 4 :], count),
    ):
        with pytest.raises(CorruptMetadata):
            record_spans(damaged, 0, claimed)


def test_columns_are_selected_and_ordered():
    content = single_log("valid_log_avro_data")
    assert read(content, columns=["city", "_hoodie_record_key"]).to_pydict() == {
        "city": ["san_francisco"],
        "_hoodie_record_key": ["334e26e9-8355-45cc-97c6-c31daf0df330"],
    }
    for block in (data("1", 1, 2, 3), parquet_block(rows(1, 2, 3), SCHEMA, "1")):
        none = read(block, columns=[])
        assert (none.num_rows, none.column_names) == (3, [])
        with pytest.raises(SchemaMismatch, match="no column\\(s\\) 'zz'"):
            read(block, columns=["n", "zz"])


@pytest.mark.parametrize("block", [data("1", 1, 2), parquet_block(rows(1, 2), SCHEMA, "1")], ids=["avro", "parquet"])
def test_rows_in_a_later_schema(block):
    later = record(
        ("n", "double"), ("new", ["null", {"type": "int", "logicalType": "date"}]), ("_hoodie_record_key", ["null", "string"])
    )
    found = read(block, schema_json=later)
    assert found.schema == row_schema(later)
    assert found.to_pydict() == {"n": [1.0, 2.0], "new": [None, None], "_hoodie_record_key": ["k1", "k2"]}
    assert read(block, columns=["new", "n"], schema_json=later).column_names == ["new", "n"]
    with pytest.raises(SchemaMismatch, match="new"):
        read(block, schema_json=record(("new", "int")))


def test_change_data_blocks_hold_rows_too():
    text = record(("op", "string"), ("ts_ms", "string"), ("before", ["null", {"type": "record", "name": "b", "fields": []}]))
    avro = fastavro_block(text, [{"op": "i", "ts_ms": "1", "before": None}])
    content = content_of(*((s, b[0]) for s, b in [blocks(avro, BlockType.AVRO)]).__next__())
    block = frame_block(BlockType.CDC, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: text}, content)
    assert read(block, columns=["op", "ts_ms"]).to_pylist() == [{"op": "i", "ts_ms": "1"}]


def test_hfile_rows_of_hudi():
    content = single_log("valid_log_hfile_data")
    storage, (block,) = blocks(content, BlockType.HFILE)
    entries = HFile(content_of(storage, block)).read()
    expected = fastavro_table(block.schema_json, entries.column("value").to_pylist())
    found = read_rows(storage, block)
    assert found.equals(expected)
    assert [row["_hoodie_record_key"] for row in found.to_pylist()] == ["k0003", "k0005", "k0007"]
    assert found.column("_hoodie_record_key").to_pylist() == [key.decode() for key in entries.column("key").to_pylist()]
    assert read_rows(storage, block, columns=["n", "id"]).equals(expected.select(["n", "id"]))
    assert read_rows(storage, block, columns=[]).num_rows == 3


def hfile_block(text, entries, **layout):
    return frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: text}, hfile(entries, **layout))


KEYED = record(("key", "string"), ("n", "long"))


@pytest.mark.parametrize("layout", [{}, {"levels": 2, "gz": True}, {"mvcc": None}], ids=str)
def test_hfile_rows_get_back_the_key_that_hudi_emptied(layout):
    datums = records(
        content_of(
            *(
                (s, b[0]) for s, b in [blocks(fastavro_block(KEYED, [{"key": "", "n": n} for n in range(4)]), BlockType.AVRO)]
            ).__next__()
        )
    )
    parts = [[(b"a%d" % n, datums[n]) for n in part] for part in ((0, 1), (2,), (3,))]
    block = hfile_block(KEYED, parts, **layout)
    assert read(block).to_pylist() == [{"key": f"a{n}", "n": n} for n in range(4)]
    assert read(block, columns=["n"]).to_pylist() == [{"n": n} for n in range(4)]


def test_hfile_rows_that_are_none():
    assert read(hfile_block(KEYED, [[]])).num_rows == 0
    for entries, what in (
        ([[(b"a", b"")]], "beyond the end"),
        ([[(b"a", b"\x00\x02\x07")]], "longer than its fields"),
        ([[(b"\xff", b"\x00\x02")]], "not UTF-8"),
    ):
        with pytest.raises(CorruptMetadata, match=what):
            read(hfile_block(KEYED, entries))
    with pytest.raises(CorruptMetadata, match="no trailer"):
        read(frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: KEYED}, b"x"))


def test_rows_of_metadata_tables_are_refused_by_name():
    content = next(c for n, c in LOGS.items() if "/metadata/" in n)
    storage, found = blocks(content, BlockType.HFILE)
    with pytest.raises(CorruptMetadata, match=r"union of 1[23] types"):
        read_rows(storage, found[0])


def test_blocks_of_other_types_are_refused():
    storage, (block,) = blocks(command_block("2", "1"), BlockType.COMMAND)
    with pytest.raises(UnsupportedTable, match="COMMAND block at 0"):
        read_rows(storage, block)


def with_prefix(version, count, datums=b""):
    content = struct.pack(">ii", version, count) + datums
    return frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "7", HeaderKey.SCHEMA: SCHEMA}, content)


GOOD = struct.pack(">i", 5) + b"\x02\x04k1\x02"


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (with_prefix(3, 2**31 - 1), "a count of 2147483647 records"),
        (with_prefix(3, -1), "a count of -1 records"),
        (with_prefix(3, 2, GOOD), "2 records|beyond the end"),
        (with_prefix(3, 1, GOOD + b"x"), "1 records that end at 17 of 18 bytes"),
        (with_prefix(3, 1, struct.pack(">i", -4) + GOOD[4:]), "impossible length"),
        (with_prefix(3, 1, struct.pack(">i", 4) + GOOD[4:-1]), "beyond the end"),
        (with_prefix(3, 1, struct.pack(">i", 6) + GOOD[4:] + b"\x00"), "longer than its fields"),
        (with_prefix(3, 1, struct.pack(">i", 2) + b"\x04\x02"), "union branch"),
        (with_prefix(3, 1, struct.pack(">i", 5) + b"\x02\x04\xff\xfe\x02"), "not UTF-8"),
        (with_prefix(3, 1, struct.pack(">i", 5) + b"\x02\x03k1\x02"), "impossible length"),
        (with_prefix(3, 1, struct.pack(">i", 12) + b"\x00" + b"\xff" * 10 + b"\x01"), "more than 64 bits"),
        (
            frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "7", HeaderKey.SCHEMA: SCHEMA}, b"\x00"),
            "fewer bytes than a block version",
        ),
        (frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "7"}, b""), "no schema"),
        (frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "7", HeaderKey.SCHEMA: "[]"}, b""), "not a record"),
        (
            frame_block(BlockType.PARQUET, {HeaderKey.INSTANT_TIME: "7", HeaderKey.SCHEMA: SCHEMA}, b"PAR1"),
            "a Parquet file that cannot be read",
        ),
    ],
)
def test_content_that_is_not_what_the_header_says(block, named):
    with pytest.raises(CorruptMetadata, match=named):
        read(block)


def test_an_error_says_where_and_what_to_do():
    with pytest.raises(CorruptMetadata, match=r"AVRO block at 0 of 'log' holds .* roll back instant '7'"):
        read(with_prefix(3, -1))


@pytest.mark.parametrize("version", [0, 4, -1])
def test_other_versions_of_data_blocks_are_refused_by_name(version):
    with pytest.raises(UnsupportedTable, match=f"data block version {version}"):
        read(with_prefix(version, 0))


@pytest.mark.parametrize(
    ("kind", "datum", "named"),
    [
        ("int", b"\x80\x80\x80\x80\x20", "32 bits"),
        ("boolean", b"\x02", "boolean"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02", "enum symbol"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x02\x64", "digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, b"\x22" + b"\x01" * 17, "128 bits"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "array or map"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "array or map"),
        ({"type": "array", "items": "double"}, b"\x02\x00", "array or map"),
        ({"type": "map", "values": "int"}, b"\x02\x02a", "array or map|beyond the end|unterminated"),
        ("double", b"\x00" * 7, "beyond the end"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "a time outside one day"),
        ({"type": "fixed", "name": "f", "size": 4}, b"\x00" * 3, "beyond the end"),
    ],
)
@pytest.mark.parametrize("count", [1, 100])
def test_values_that_are_none(kind, datum, named, count):
    with pytest.raises(CorruptMetadata, match=named):
        read(framed(record(("v", kind)), [datum] * count))


def test_types_without_end_are_refused():
    cons = {"type": "record", "name": "cons", "fields": [{"name": "next", "type": ["null", "cons"]}]}
    with pytest.raises(CorruptMetadata, match="contains itself"):
        read(framed(record(("v", cons)), []))


def test_rows_must_have_the_columns_of_the_schema():
    with pytest.raises(SchemaMismatch, match="columns n"):
        avro_block(rows(1).select(["n"]), SCHEMA, "1")
    with pytest.raises(SchemaMismatch, match="columns"):
        parquet_block(rows(1).append_column("more", pa.array([1])), SCHEMA, "1")


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        ("long", pa.array([1, None], pa.int64()), "1 null"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.array(["A", "B"]), "not a symbol"),
        (
            {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 9, "scale": 0},
            pa.array([decimal.Decimal(32768)], pa.decimal128(9, 0)),
            "2 bytes",
        ),
        ({"type": "array", "items": "string"}, pa.array([["a", None]]), "1 null"),
    ],
)
def test_values_that_the_schema_cannot_hold(kind, values, named):
    with pytest.raises(SchemaMismatch, match=named):
        avro_block(pa.table({"v": values}), record(("v", kind)), "1")


@pytest.mark.parametrize("count", [1, 100])
def test_what_stands_behind_nulls_is_zero(count):
    """Members of null structs are never the bytes that happen to follow."""
    kinds = [
        ("t", {"type": "int", "logicalType": "time-millis"}),
        ("f", {"type": "fixed", "name": "f40", "size": 40}),
        ("d", "double"),
        ("b", "boolean"),
    ]
    inner = {"type": "record", "name": "q", "fields": [{"name": name, "type": kind} for name, kind in kinds]}
    found = read(framed(record(("v", ["null", inner]), ("n", "long")), [b"\x00\xff\xff\xff\xff\xff\x01"] * count))
    found.validate(full=True)
    (members,) = (chunk.flatten() for chunk in found.column("v").chunks)
    assert [m.null_count for m in members] == [count] * 4
    bare = [found.column("v").chunk(0).field(at) for at in range(4)]
    assert [b.to_pylist()[-1] for b in bare] == [dt.time(0), bytes(40), 0.0, False]


def test_what_stands_behind_nulls_is_not_written():
    """Null structs and lists may carry values in Arrow; in Avro they are one byte."""
    inner = pa.StructArray.from_arrays([pa.array(["x", "y"]), pa.array([[1, 2], [3]])], ["s", "l"], mask=pa.array([True, False]))
    text = record((
        "v",
        ["null", {"type": "record", "name": "q", "fields": [{"name": "s", "type": "string"}, {"name": "l", "type": {"type": "array", "items": "long"}}]}],
    ))  # fmt: skip
    written = avro_block(pa.table({"v": inner}), text, "1")
    assert read(written).to_pylist() == [{"v": None}, {"v": {"s": "y", "l": [3]}}]
    assert records(content_of(*((s, b[0]) for s, b in [blocks(written, BlockType.AVRO)]).__next__())) == [
        b"\x00",
        b"\x02\x02y\x02\x06\x00",
    ]


def test_a_union_of_one_type_inside_null_structs():
    """The branch is written although the column has nulls: they are in structs that are null themselves."""
    text = record(("v", ["null", {"type": "record", "name": "q", "fields": [{"name": "s", "type": ["string"]}]}]))
    required = pa.field("s", pa.string(), nullable=False)
    inner = pa.StructArray.from_arrays([pa.array([None, "a"])], fields=[required], mask=pa.array([True, False]))
    assert read(avro_block(pa.table({"v": inner}), text, "1")).to_pylist() == [{"v": None}, {"v": {"s": "a"}}]
