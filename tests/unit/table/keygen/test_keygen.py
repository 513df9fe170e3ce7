import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from tideline_table.errors import InvalidRecord, SchemaMismatch
from tideline_table.keygen import KeyGenerator, check_key_columns

VALUES = [
    (pa.string(), ["a", " b ", "é"], ["a", " b ", "é"]),
    (pa.large_string(), ["a"], ["a"]),
    (pa.dictionary(pa.int8(), pa.string()), ["x", "y", "x"], ["x", "y", "x"]),
    (pa.int32(), [0, -5, 2**31 - 1], ["0", "-5", "2147483647"]),
    (pa.int64(), [-(2**63)], ["-9223372036854775808"]),
    (pa.bool_(), [True, False], ["true", "false"]),
    (pa.date32(), [dt.date(2026, 1, 2), dt.date(1969, 12, 31)], ["2026-01-02", "1969-12-31"]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], ["1767225600000000"]),
    (pa.timestamp("ms"), [dt.datetime(1970, 1, 1, 0, 0, 1)], ["1000"]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01")], ["1.50", "-0.01"]),
    (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal(0), Decimal(12)], ["1E-10", "0E-10", "12.0000000000"]),
]


def table(**columns):
    return pa.table(columns)


@pytest.mark.parametrize(("kind", "values", "expected"), VALUES, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_values_of_each_type_in_keys_and_paths(kind, values, expected):
    rows = table(k=pa.array(values, kind), p=pa.array(values, kind))
    generator = KeyGenerator(("k",), ("p",))
    assert generator.record_keys(rows).to_pylist() == expected
    assert generator.partition_paths(rows).to_pylist() == expected


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.binary(), pa.list_(pa.int32()), pa.struct([("x", pa.int32())]), pa.time32("ms")], ids=str
)
def test_types_that_make_no_key(kind):
    with pytest.raises(SchemaMismatch, match="'k'"):
        check_key_columns(pa.schema([("k", kind)]), ["k"], "record key")


def test_absent_key_column_is_named():
    with pytest.raises(SchemaMismatch, match="record key column 'z'"):
        check_key_columns(pa.schema([("k", pa.string())]), ["z"], "record key")


@pytest.mark.parametrize(
    ("keys", "partitions", "name"),
    [
        (("k",), (), "NonpartitionedKeyGenerator"),
        (("k", "l"), (), "NonpartitionedKeyGenerator"),
        (("k",), ("p",), "SimpleKeyGenerator"),
        (("k", "l"), ("p",), "ComplexKeyGenerator"),
        (("k",), ("p", "q"), "ComplexKeyGenerator"),
    ],
)
def test_class(keys, partitions, name):
    assert KeyGenerator(keys, partitions).class_name == f"org.apache.hudi.keygen.{name}"


@pytest.mark.parametrize("bad", [None, ""])
def test_simple_key_must_have_a_value(bad):
    for partitions in ((), ("p",)):
        with pytest.raises(InvalidRecord, match=r"1 row.*'k'"):
            KeyGenerator(("k",), partitions).record_keys(table(k=["a", bad], p=["x", "x"]))


def test_complex_keys():
    rows = table(k=["a", None, "", "b"], l=pa.array([1, 2, None, None], pa.int64()), p=["x"] * 4)
    with pytest.raises(InvalidRecord, match=r"1 row\(s\).*k, l"):
        KeyGenerator(("k", "l"), ("p",)).record_keys(rows)
    expected = ["k:a,l:1", "k:__null__,l:2", "k:b,l:__null__"]
    keep = rows.take(pa.array([0, 1, 3]))
    assert KeyGenerator(("k", "l"), ("p",)).record_keys(keep).to_pylist() == expected
    assert KeyGenerator(("k", "l"), ()).record_keys(keep).to_pylist() == expected
    empty = table(k=[""], l=["z"])
    assert KeyGenerator(("k", "l"), ()).record_keys(empty).to_pylist() == ["k:__empty__,l:z"]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"k": ["a", "__null__"], "l": ["1", "1"]}, "'__null__' in key column 'k'.*write null"),
        ({"k": ["a", "a"], "l": [None, "__null__"]}, "'__null__' in key column 'l'"),
        ({"k": ["a", "a"], "l": ["", "__empty__"]}, "'__empty__' in key column 'l'"),
        ({"k": ["1,l:2", "1"], "l": ["3", "2,l:3"]}, "a value with ',l:' in key column 'k'"),
    ],
)
def test_values_that_composite_keys_do_not_tell_apart_are_not_written(rows, named):
    """They became one row without a word. Rows of other writers keep such keys, and one key column has no such values."""
    keys = KeyGenerator(("k", "l"), ())
    with pytest.raises(InvalidRecord, match=named):
        keys.written_keys(table(**rows))
    assert len(keys.record_keys(table(**rows))) == 2
    assert len(KeyGenerator(("k",), ("p", "q")).written_keys(table(**rows))) == 2
    assert len(keys.written_keys(table(k=["a,b", ":"], l=["a,l:b", "k:,"]))) == 2


def test_one_key_field_with_two_partition_fields_carries_its_name():
    rows = table(k=["a"], p=["x"], q=["y"])
    assert KeyGenerator(("k",), ("p", "q")).record_keys(rows).to_pylist() == ["k:a"]


def test_null_and_empty_partitions():
    rows = table(p=["a", None, ""], q=pa.array([1, None, 3]))
    assert KeyGenerator(("k",), ("p",)).partition_paths(rows).to_pylist() == ["a", *["__HIVE_DEFAULT_PARTITION__"] * 2]
    hive = KeyGenerator(("k",), ("p", "q"), hive_style=True)
    default = "__HIVE_DEFAULT_PARTITION__"
    assert hive.partition_paths(rows).to_pylist() == ["p=a/q=1", f"p={default}/q={default}", f"p={default}/q=3"]
    assert KeyGenerator(("k",), ()).partition_paths(rows).to_pylist() == ["", "", ""]


def test_url_encoding():
    generator = KeyGenerator(("k",), ("p",), url_encode=True)
    assert generator.partition_paths(table(p=["a/b c=p0"])).to_pylist() == ["a%2Fb c%3Dp0"]
    every = [chr(c) for c in range(128)] + ["é漢😀"]
    special = {chr(c) for c in [*range(0x20), 0x7F]} | set("\"#%'*/:=?\\{[]^")
    encoded = generator.partition_paths(table(p=[f"x{c}x" for c in every])).to_pylist()
    assert encoded == [f"x%{ord(c):02X}x" if c in special else f"x{c}x" for c in every]
    hive = KeyGenerator(("k",), ("p",), hive_style=True, url_encode=True)
    assert hive.partition_paths(table(p=["a=b"])).to_pylist() == ["p=a%3Db"]


@pytest.mark.parametrize(
    "value", ["..", ".", "a/../b", "/a", "a/", "a//b", ".hoodie", "a/.hoodie/x", "a\\b", "..\\x", "a\x00b", ".hoodie_x"]
)
def test_unsafe_partitions_are_refused(value):
    for hive in (False, True):
        with pytest.raises(InvalidRecord, match="column 'p'"):
            KeyGenerator(("k",), ("p",), hive_style=hive).partition_paths(table(p=["fine", value]))


@pytest.mark.parametrize("value", ["..", ".", ".hoodie"])
def test_encoding_does_not_make_dots_safe(value):
    with pytest.raises(InvalidRecord):
        KeyGenerator(("k",), ("p",), url_encode=True).partition_paths(table(p=[value]))


def test_slashes_make_levels_without_encoding():
    assert KeyGenerator(("k",), ("p",)).partition_paths(table(p=["2026/01"])).to_pylist() == ["2026/01"]


def test_no_rows():
    rows = pa.table({"k": pa.array([], pa.string()), "p": pa.array([], pa.int32())})
    for generator in (KeyGenerator(("k",), ("p",)), KeyGenerator(("k", "p"), ("p", "k")), KeyGenerator(("k",), ())):
        assert generator.record_keys(rows).to_pylist() == []
        assert generator.partition_paths(rows).to_pylist() == []
