"""Delete blocks of versions 1 and 2, which Apache Hudi before 0.14 wrote (bytes of its own, tests/fixtures/kryo_deletes)."""

import datetime as dt
import decimal
import math
import struct
import tracemalloc

import pyarrow as pa
import pytest
from tests.unit.table.kryo_deletes import kryo_content, kryo_data, kryo_names
from tests.unit.table.log_files import SCHEMA, stored

from tideline_table.errors import CorruptMetadata, TidelineError, UnsupportedTable
from tideline_table.log_format import BlockType, HeaderKey, read_deletes, scan_log
from tideline_table.log_format.framing import frame_block


def read_content(content):
    storage = stored(frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: SCHEMA}, content))
    (block,) = scan_log(storage, "log").blocks
    found = read_deletes(storage, block)
    found.validate(full=True)
    return found


def read_data(data, version):
    return read_content(struct.pack(">ii", version, len(data)) + data)


def read(version, name):
    return read_content(kryo_content(version, name))


def rows(table):
    return list(zip(*table.to_pydict().values(), strict=True))


PATH = "city=oslo"
UTC = dt.UTC
WIDE = decimal.Decimal("-99999999999999999999.999999999999999999")
KEYS = {
    "none": [],
    "one": [("k", "p")],
    "shared": [("again", PATH), ("b", PATH), ("again", PATH), ("again", PATH)],
    "texts": [
        ("", ""),
        ("x", ""),
        ("Zoë", "città=è"),
        ("日本語", "東京"),
        ("😀 and 𝄞", "p"),
        ("a" * 63, "é" * 64),
        ("b" * 64, "語" * 3000),
        ("long" * 2500, "\x01\x7f\x80\u07ff\u0800\uffff"),
        ("zero\0inside", "p"),
    ],
    "nulls": [("k", None), ("l", "p")],
    "many": [(f"key-{n}", PATH) for n in range(300)],
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_version_1_have_no_ordering_value(name):
    assert rows(read(1, name)) == [(key, path, 0, True) for key, path in KEYS[name]]


ORDERING = {
    "int": (pa.int32(), [0, 1, -1, 63, 64, -64, -65, 8192, 2**31 - 1, -(2**31)]),
    "long": (pa.int64(), [0, 1, -1, 64, 1_700_000_000_000_000, 2**63 - 1, -(2**63)]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, math.nan, -math.inf]),
    "double": (pa.float64(), [0.0, 1.5, -2.25, math.nan, 1.7976931348623157e308]),
    "string": (pa.string(), ["", "x", "2024-01-01", "Zoë 日本 😀", "x"]),
    "utf8": (pa.string(), ["x", "Zoë 日本", ""]),
    "utf8_0.13.1": (pa.string(), ["x", "Zoë 日本", ""]),
    "boolean": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(38, 18), [decimal.Decimal(n) for n in ("0", "12.345", WIDE, "1000", "1", "10")]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2023, 11, 15), dt.date(1969, 12, 31)]),
    "local_date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1970, 1, 1, tzinfo=UTC),
            dt.datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        ],
    ),
    "null": (pa.int64(), [5, None, 6]),
    "int_and_long": (pa.int64(), [None, 7]),
}


@pytest.mark.parametrize("name", ORDERING)
def test_ordering_values_of_version_2(name):
    kind, values = ORDERING[name]
    found = read(2, name)
    assert found.column("ordering").type == kind
    assert str(found.column("ordering").to_pylist()) == str(pa.array(values, kind).to_pylist())
    assert found.column("_hoodie_record_key").to_pylist() == [f"k{n}" for n in range(len(values))]
    assert set(found.column("_hoodie_partition_path").to_pylist()) == {"p"}
    always = [value is None or (name == "int" and value == 0) for value in values]
    assert found.column("commit_time_delete").to_pylist() == always


def test_objects_that_occur_several_times():
    assert rows(read(2, "none")) == []
    assert rows(read(2, "no_value")) == [("a", "p", 0, True), ("b", "q", 0, True)]
    again = [("again", PATH, 5, False), ("again", PATH, 6, False), ("again", PATH, 5, False), ("b", PATH, 7, False)]
    assert rows(read(2, "shared")) == again
    assert rows(read(2, "shared_text")) == [("v", "v", "v", False), ("b", PATH, "v", False)]
    number = decimal.Decimal("7.5")
    assert rows(read(2, "shared_decimal")) == [("a", PATH, number, False), ("b", PATH, number, False)]
    assert rows(read(2, "many")) == [(f"key-{n}", PATH, n * n, False) for n in range(300)]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("instant", r"java\.time\.Instant"),
        ("big_integer", r"java\.math\.BigInteger"),
        ("utc_date", r"java\.util\.Date"),
        ("short", "number 8"),
        ("byte", "number 6"),
        ("character", "number 7"),
        ("utf8_unregistered", r"org\.apache\.avro\.util\.Utf8"),
        ("mixed", r"several types \(Long, String\)"),
    ],
)
def test_other_ordering_values_are_refused(name, named):
    with pytest.raises(UnsupportedTable, match=named):
        read(2, name)


def test_arrays_of_other_classes_are_refused():
    with pytest.raises(UnsupportedTable, match="DeleteRecord"):
        read_data(kryo_data(2, "no_value"), 1)
    with pytest.raises(UnsupportedTable, match="HoodieKey"):
        read_data(kryo_data(1, "one"), 2)
    with pytest.raises(UnsupportedTable, match="ScriptEngineManager"):
        read_data(b"\x01\x00javax.script.ScriptEngineManage\xf2\x01\x01", 2)


ONE = kryo_data(1, "one")
TEXT = b"\x01\x82p\x01\x82k"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (kryo_data(1, "null_key"), "without a record key"),
        (kryo_data(1, "null_entry"), "null in place of an object"),
        (b"", "end too early"),
        (ONE[:-1], "a text of 1 characters"),
        (ONE[:-2], "end too early"),
        (ONE + b"\0", "after the list"),
        (ONE.replace(TEXT, b"\x01\x82p\x09"), "end too early"),
        (ONE.replace(TEXT, b"\x01\x82p\x02"), "object 0, which is no String"),
        (ONE.replace(TEXT, b"\x01\x80"), "-1 characters"),
        (ONE.replace(TEXT, b"\x01\x82p\x01\x82\xff"), "end too early"),
        (ONE.replace(TEXT, b"\x01\x82p\x01\x82\xc3\x28"), "no UTF-8"),
        (ONE.replace(TEXT, b"\x01\x82p\x01\x82\xed\xa0\x80"), "no UTF-8"),
        (ONE.replace(TEXT, b"\x01\x82p\x01\xff\xff\xff\xff\x07k"), "characters"),
        (ONE.replace(TEXT, b"\x01\x82p\xff\xff\xff\xff\xff\x01"), "32 bits"),
        (ONE[:44] + b"\xff\xff\xff\xff\x0f", "4294967294 entries"),
        (ONE[:44] + b"\x00", "-1 entries"),
    ],
)
def test_malformed_keys(data, named):
    with pytest.raises(CorruptMetadata, match=named):
        read_data(data, 1)


def test_every_cut_is_refused_and_no_change_of_a_byte_breaks_out():
    for version in (1, 2):
        for name in kryo_names(version):
            data = kryo_data(version, name)
            if len(data) > 300:
                continue
            for cut in range(len(data)):
                with pytest.raises((CorruptMetadata, UnsupportedTable)):
                    read_data(data[:cut], version)
            for at in range(40, len(data)):
                for byte in (0, 1, 2, 0x7F, 0x80, 0xFF, data[at] ^ 1):
                    try:
                        read_data(data[:at] + bytes((byte,)) + data[at + 1 :], version)
                    except TidelineError as error:
                        assert error.found  # noqa: PT017 - either outcome is fine, an empty explanation is not


def test_texts_that_repeat_are_bounded():
    """A text of a megabyte, and ten thousand entries of three bytes that are the same key: the block would be ten gigabytes."""
    key = ONE[45:-6] + b"\x01" + b"a" * 1_000_000 + b"\xe1\x01\x82k"
    data = ONE[:44] + b"\x92\x4e" + key + b"\x01\x01\x03" * 10_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMetadata, match="256 times"):
            read_data(data, 1)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
