"""Delete blocks: those of Apache Hudi, and ours as fastavro reads them (format reference 9.7)."""

import datetime as dt
import decimal
import io
import struct

import fastavro
import pyarrow as pa
import pytest
from tests.unit.table.log_files import SCHEMA, logs_of_tables, stored

from tideline_table.errors import CorruptMetadata, InvalidRecord, SchemaMismatch, UnsupportedTable
from tideline_table.log_format import BlockType, HeaderKey, delete_block, read_deletes, scan_log
from tideline_table.log_format.framing import frame_block
from tideline_table.merge import comparable_ordering

KINDS = {
    "Boolean": "boolean",
    "Int": "int",
    "Long": "long",
    "Float": "float",
    "Double": "double",
    "Bytes": "bytes",
    "String": "string",
    "Date": "int",
    "Decimal": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15},
    "TimeMicros": "long",
    "TimestampMicros": "long",
}


def wrapper(name, kind):
    return {"type": "record", "name": f"{name}Wrapper", "fields": [{"name": "value", "type": kind}]}


LISTED = ["null", *(f"{name}Wrapper" for name in KINDS), wrapper("LocalDate", "int")]
ARRAY = {
    "type": "record",
    "name": "ArrayWrapper",
    "fields": [{"name": "wrappedValues", "type": ["null", {"type": "array", "items": LISTED}]}],
}
DELETE = {
    "type": "record",
    "name": "HoodieDeleteRecord",
    "fields": [
        {"name": "recordKey", "type": ["null", "string"]},
        {"name": "partitionPath", "type": ["null", "string"]},
        {"name": "orderingVal", "type": ["null", *(wrapper(name, kind) for name, kind in KINDS.items()), ARRAY]},
    ],
}
LIST = fastavro.parse_schema(
    {
        "type": "record",
        "name": "HoodieDeleteRecordList",
        "fields": [{"name": "deleteRecordList", "type": {"type": "array", "items": DELETE}}],
    }
)


def only_block(content):
    storage = stored(content)
    (block,) = scan_log(storage, "log").blocks
    return storage, block


def read(content):
    return read_deletes(*only_block(content))


def by_fastavro(content):
    storage, block = only_block(content)
    body = storage.read_range("log", block.content_offset, block.content_bytes)
    version, length = struct.unpack_from(">ii", body)
    assert (version, length) == (3, len(body) - 8)
    found = fastavro.schemaless_reader(io.BytesIO(body[8:]), LIST, None, return_record_name=True)["deleteRecordList"]
    return [
        (r["recordKey"], r["partitionPath"], r["orderingVal"] and (r["orderingVal"][0], r["orderingVal"][1]["value"]))
        for r in found
    ]


def written_by_fastavro(*records):
    sink = io.BytesIO()
    rows = [{"recordKey": key, "partitionPath": path, "orderingVal": value} for key, path, value in records]
    fastavro.schemaless_writer(sink, LIST, {"deleteRecordList": rows})
    return framed(3, sink.getvalue())


def framed(version, datum, length=None):
    content = struct.pack(">ii", version, len(datum) if length is None else length) + datum
    return frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: SCHEMA}, content)


def test_delete_blocks_of_hudi_tables_and_back():
    seen = []
    for name, content in logs_of_tables().items():
        storage = stored(content)
        for block in scan_log(storage, "log").blocks:
            if block.type is not BlockType.DELETE:
                continue
            found = read_deletes(storage, block)
            assert found.column("commit_time_delete").to_pylist() == [True] * found.num_rows
            paths = found.column("_hoodie_partition_path").to_pylist()
            ours, again = only_block(
                delete_block(found.column("_hoodie_record_key"), paths[0] if paths else "", None, block.schema_json, block.instant)
            )
            theirs = storage.read_range("log", block.content_offset, block.content_bytes)
            assert ours.read_range("log", again.content_offset, again.content_bytes) == theirs, name
            # Delete blocks of metadata tables have no schema in their header.
            assert again.header == {HeaderKey.INSTANT_TIME: block.instant, HeaderKey.SCHEMA: block.schema_json}
            if "/metadata/" not in name:
                seen += zip(found.column("_hoodie_record_key").to_pylist(), paths, strict=True)
    assert sorted(seen) == [
        ("TXN-002", ""),
        ("TXN-005", ""),
        ("c8abbe79-8d89-47ea-b4ce-4d224bae5bfa", "city=chennai"),
        ("e3cf430c-889d-4015-bc98-59bdce1e530c", "city=sao_paulo"),
    ]


def test_deletions_without_an_ordering_value_are_the_int_0():
    content = delete_block(pa.array(["a", "b"]), "p=1", None, SCHEMA, "20260101000000000")
    assert by_fastavro(content) == [("a", "p=1", ("IntWrapper", 0)), ("b", "p=1", ("IntWrapper", 0))]
    assert read(content).to_pydict() == {
        "_hoodie_record_key": ["a", "b"],
        "_hoodie_partition_path": ["p=1", "p=1"],
        "ordering": [0, 0],
        "commit_time_delete": [True, True],
    }
    _, block = only_block(content)
    assert block.header == {HeaderKey.INSTANT_TIME: "20260101000000000", HeaderKey.SCHEMA: SCHEMA}


DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=dt.UTC)
MICROS = int(NOON.timestamp()) * 1_000_000 + 5


@pytest.mark.parametrize(
    ("values", "branch", "stored_value", "read_type"),
    [
        (pa.array([True]), "BooleanWrapper", True, pa.bool_()),
        (pa.array([-7], pa.int16()), "IntWrapper", -7, pa.int32()),
        (pa.array([2**31 - 1], pa.int32()), "IntWrapper", 2**31 - 1, pa.int32()),
        (pa.array([0], pa.int64()), "LongWrapper", 0, pa.int64()),
        (pa.array([2**32 - 1], pa.uint32()), "LongWrapper", 2**32 - 1, pa.int64()),
        (pa.array([1.5], pa.float32()), "FloatWrapper", 1.5, pa.float32()),
        (pa.array([0.1]), "DoubleWrapper", 0.1, pa.float64()),
        (pa.array([b"\x00\xff"]), "BytesWrapper", b"\x00\xff", pa.binary()),
        (pa.array(["é"]), "StringWrapper", "é", pa.string()),
        (pa.array(["é"]).dictionary_encode(), "StringWrapper", "é", pa.string()),
        (pa.array([DAY]), "IntWrapper", 19782, pa.int32()),
        (pa.array([DAY], pa.date64()), "IntWrapper", 19782, pa.int32()),
        (pa.array([decimal.Decimal("-1.25")]), "DecimalWrapper", decimal.Decimal("-1.25"), pa.decimal128(30, 15)),
        (pa.array([dt.time(0, 0, 1)]), "TimeMicrosWrapper", 1_000_000, pa.time64("us")),
        (pa.array([NOON]), "LongWrapper", MICROS, pa.int64()),
        (pa.array([5], pa.timestamp("ms")), "LongWrapper", 5, pa.int64()),
    ],
)
def test_ordering_values_are_wrapped_by_their_type(values, branch, stored_value, read_type):
    content = delete_block(pa.array(["k"]), "", values, SCHEMA, "1")
    assert by_fastavro(content) == [("k", "", (branch, stored_value))]
    found = read(content)
    assert found.column("ordering").type == read_type
    assert found.column("commit_time_delete").to_pylist() == [False]
    if not pa.types.is_date(values.type):
        assert found.column("ordering").combine_chunks() == values.cast(read_type)


def test_dates_and_timestamps_that_others_wrapped_as_such():
    found = read(written_by_fastavro(("k", "p", ("TimestampMicrosWrapper", {"value": MICROS}))))
    assert found.column("ordering").to_pylist() == [NOON]
    found = read(written_by_fastavro(("k", "p", ("DateWrapper", {"value": 19782}))))
    assert found.column("ordering").to_pylist() == [DAY]


@pytest.mark.parametrize("count", [0, 1, 127, 40_000])
def test_many_deletions(count):
    keys = pa.array([f"key-{number}" for number in range(count)], pa.string())
    ordering = pa.array(range(-5, count - 5), pa.int64())
    content = delete_block(keys, "p", ordering, SCHEMA, "1")
    found = read(content)
    assert found.num_rows == count
    assert found.column("_hoodie_record_key").combine_chunks() == keys
    assert not count or found.column("ordering").combine_chunks() == ordering
    if count < 1000:
        assert by_fastavro(content) == [(f"key-{n}", "p", ("LongWrapper", n - 5)) for n in range(count)]


def test_the_int_0_beside_values_of_another_type_is_no_value():
    content = written_by_fastavro(
        ("a", "p", ("LongWrapper", {"value": 5})), ("b", None, ("IntWrapper", {"value": 0})), ("c", "", None)
    )
    assert read(content).to_pydict() == {
        "_hoodie_record_key": ["a", "b", "c"],
        "_hoodie_partition_path": ["p", None, ""],
        "ordering": [5, None, None],
        "commit_time_delete": [False, True, True],
    }


def test_a_block_without_any_ordering_value():
    found = read(written_by_fastavro(("a", "p", None), ("b", "p", None)))
    assert found.column("ordering").type == pa.null()
    assert found.column("commit_time_delete").to_pylist() == [True, True]


def test_values_of_several_types_are_refused():
    with pytest.raises(UnsupportedTable, match="IntWrapper, LongWrapper"):
        read(written_by_fastavro(("a", "p", ("LongWrapper", {"value": 5})), ("b", "p", ("IntWrapper", {"value": 1}))))
    with pytest.raises(UnsupportedTable, match="of several types"):
        read(written_by_fastavro(*(("a", "p", several(("LongWrapper", 1))), ("b", "p", several(("StringWrapper", "x"))))))
    with pytest.raises(UnsupportedTable, match="LongWrapper, ArrayWrapper"):
        read(written_by_fastavro(("a", "p", several(("LongWrapper", 1))), ("b", "p", ("LongWrapper", {"value": 5}))))
    with pytest.raises(CorruptMetadata, match="different numbers"):
        read(written_by_fastavro(*(("a", "p", several(("LongWrapper", 1))), ("b", "p", several(("LongWrapper", 1), None)))))


def several(*values):
    return ("ArrayWrapper", {"wrappedValues": [v and (v[0], {"value": v[1]}) for v in values]})


def test_values_of_several_ordering_fields():
    one = several(("LongWrapper", 1), None, ("LocalDateWrapper", 2))
    two = several(("LongWrapper", 3), ("StringWrapper", "x"), ("LocalDateWrapper", 4))
    found = read(written_by_fastavro(("a", "p", one), ("b", "p", None), ("c", "p", two), ("d", "p", ("IntWrapper", {"value": 0}))))
    day = dt.date(1970, 1, 3)
    values = [{"0": 1, "1": None, "2": day}, None, {"0": 3, "1": "x", "2": dt.date(1970, 1, 5)}, None]
    assert found.column("ordering").to_pylist() == values
    assert found.column("commit_time_delete").to_pylist() == [False, True, False, True]
    kind = pa.struct([("n", pa.int64()), ("t", pa.string()), ("d", pa.date32())])
    assert comparable_ordering(found.column("ordering"), kind).to_pylist()[2] == {"n": 3, "t": "x", "d": dt.date(1970, 1, 5)}
    assert comparable_ordering(found.column("ordering"), pa.struct([("n", pa.int64())])) is None
    assert comparable_ordering(found.column("ordering"), pa.struct([(n, pa.int64()) for n in "abc"])) is None


def test_later_versions_are_refused():
    with pytest.raises(UnsupportedTable, match="delete block version 4 at 0"):
        read(framed(4, b""))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (framed(3, b"\x00", 2), "claims 2 bytes and has 1"),
        (framed(3, b"\x00", -1), "claims -1"),
        (framed(3, b"\x00\x00"), "after the list"),
        (framed(3, b""), "unterminated"),
        (framed(3, b"\xfe\xff\xff\xff\x0f"), "impossible length"),
        (framed(3, b"\x02\x00\x00\x00\x00"), "without a record key"),
        (framed(3, b"\x02\x02\x02k\x00\x1a\x00"), "union branch"),
        (framed(3, b"\x02\x02\x02\xff\x00\x00\x00"), "UTF-8"),
        (frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "1"}, b"\x00\x00\x00"), "has 3 bytes"),
    ],
)
def test_damaged_deletions(content, named):
    with pytest.raises(CorruptMetadata, match=named):
        read(content)


def test_what_is_no_delete_block_is_refused():
    storage, block = only_block(frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "1"}, b""))
    with pytest.raises(UnsupportedTable, match="AVRO block"):
        read_deletes(storage, block)


def test_nulls_and_foreign_types_are_not_written():
    keys = pa.array(["a", "b"])
    with pytest.raises(InvalidRecord, match="null"):
        delete_block(pa.array(["a", None]), "p", None, SCHEMA, "1")
    with pytest.raises(InvalidRecord, match="null"):
        delete_block(keys, "p", pa.array([1, None]), SCHEMA, "1")
    with pytest.raises(InvalidRecord, match="missing"):
        delete_block(keys, "p", pa.array([1]), SCHEMA, "1")
    with pytest.raises(SchemaMismatch, match="list"):
        delete_block(keys, "p", pa.array([[1], [2]]), SCHEMA, "1")
    with pytest.raises(SchemaMismatch, match="decimal"):
        delete_block(pa.array(["a"]), "p", pa.array([decimal.Decimal(10) ** 20], pa.decimal128(38, 0)), SCHEMA, "1")
