import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from tideline_table.errors import SchemaMismatch
from tideline_table.schema import fit_rows

LOSSLESS = [
    (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
    (pa.array([1, 2], pa.int64()), pa.int32(), [1, 2]),
    (pa.array([1.0, None]), pa.int32(), [1, None]),
    (pa.array([3]), pa.float64(), [3.0]),
    (pa.array([0.5, float("inf"), None]), pa.float32(), [0.5, float("inf"), None]),
    (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
    (pa.array(["a", None]).dictionary_encode(), pa.string(), ["a", None]),
    (pa.array(["12"]), pa.int32(), [12]),
    (pa.nulls(2), pa.string(), [None, None]),
    (pa.nulls(2), pa.bool_(), [None, None]),
    (pa.array([1, 2], pa.int16()), pa.decimal128(10, 2), [Decimal("1.00"), Decimal("2.00")]),
    (pa.array([Decimal("1.50")]), pa.decimal128(10, 1), [Decimal("1.5")]),
    (pa.array([Decimal("1.50")]), pa.float64(), [1.5]),
    (pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("s")), pa.timestamp("ms"), [dt.datetime(2026, 1, 1)]),
    (pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us")), pa.date32(), [dt.date(2026, 1, 1)]),
    (pa.array([[1], None, []]), pa.list_(pa.field("array", pa.int32())), [[1], None, []]),
    (pa.array([{"a": 1}]), pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}]),
    (
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.map_(pa.string(), pa.field("value", pa.int32())),
        [[("k", 1)]],
    ),
]
LOSSY = [
    (pa.array([2**31]), pa.int32()),
    (pa.array([-1]), pa.uint8()),
    (pa.array([1.5]), pa.int64()),
    (pa.array([float("nan")]), pa.int64()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([0.1]), pa.float32()),
    (pa.array([1e300]), pa.float32()),
    (pa.array([5]), pa.bool_()),
    (pa.array([1]), pa.string()),
    (pa.array([True]), pa.string()),
    (pa.array([b"a"]), pa.string()),
    (pa.array(["x"]), pa.int32()),
    (pa.array(["maybe"]), pa.bool_()),
    (pa.array([Decimal("1.55")]), pa.decimal128(10, 1)),
    (pa.array([Decimal("0.1234567890123456789")]), pa.float64()),
    (pa.array([dt.datetime(2026, 1, 1, 5)], pa.timestamp("us")), pa.date32()),
    (pa.array([dt.datetime(2026, 1, 1, 0, 0, 0, 1)], pa.timestamp("us")), pa.timestamp("ms")),
    (pa.array([{"a": 1, "zz": 2}]), pa.struct([("a", pa.int64())])),
    (pa.array([{"zz": 2}]), pa.struct([("a", pa.int64())])),
    (pa.array([[0.1]]), pa.list_(pa.float32())),
    (pa.array([[1]]), pa.list_(pa.string())),
    (pa.array([[{"a": 1, "b": 2}]]), pa.list_(pa.struct([("a", pa.int64())]))),
    (pa.array([[1]]), pa.int64()),
    (pa.array([1]), pa.list_(pa.int64())),
    (pa.array([[("k", 0.5)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("column", "kind", "expected"), LOSSLESS, ids=lambda v: str(v.type if isinstance(v, pa.Array) else v)[:40])
def test_values_that_fit(column, kind, expected):
    schema = pa.schema([pa.field("a", kind)])
    fitted = fit_rows(pa.table({"a": column}), schema)
    assert fitted.schema == schema
    assert fitted.column("a").to_pylist() == expected


@pytest.mark.parametrize(("column", "kind"), LOSSY, ids=lambda v: str(v.type if isinstance(v, pa.Array) else v)[:40])
def test_values_that_would_change_are_refused(column, kind):
    with pytest.raises(SchemaMismatch, match="column 'a"):
        fit_rows(pa.table({"a": column}), pa.schema([pa.field("a", kind)]))


def test_nan_fits_a_smaller_float():
    fitted = fit_rows(pa.table({"a": [float("nan"), 1.0]}), pa.schema([("a", pa.float32())]))
    assert str(fitted.column("a").to_pylist()) == "[nan, 1.0]"


def test_columns_are_ordered_completed_and_freed_of_meta_fields():
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string()), pa.field("c", pa.int32())])
    fitted = fit_rows(pa.table({"c": [1], "_hoodie_commit_time": ["x"], "a": [2], "_hoodie_is_deleted": [True]}), schema)
    assert fitted.to_pylist() == [{"a": 2, "b": None, "c": 1}]
    assert fitted.schema == schema


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.table({"a": [1], "x": [1], "y": [2]}), "'x', 'y'"),
        (pa.table({"b": ["s"]}), "no column 'a'"),
        (pa.table({"a": pa.array([1, None])}), r"1 null\(s\) in column 'a'"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), "'a' occur more than once"),
    ],
)
def test_columns_that_do_not_fit(rows, words):
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    with pytest.raises(SchemaMismatch, match=words):
        fit_rows(rows, schema)


REQUIRED_INSIDE = [
    (pa.list_(pa.field("array", pa.int64(), nullable=False)), [[1, None]], [[1], None, []]),
    (pa.struct([pa.field("x", pa.int64(), nullable=False)]), [{"x": None}], [{"x": 1}, None]),
    (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), [[("k", None)]], [[("k", 1)], None]),
    (
        pa.list_(pa.field("array", pa.struct([pa.field("x", pa.int64(), nullable=False)]))),
        [[{"x": 1}], [None, {"x": None}]],
        [[{"x": 1}, None]],
    ),
]


@pytest.mark.parametrize(("kind", "bad", "good"), REQUIRED_INSIDE, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_required_members_of_nested_columns(kind, bad, good):
    schema = pa.schema([pa.field("a", kind)])
    assert fit_rows(pa.table([pa.array(good, kind)], schema), schema).column("a").to_pylist() == good
    loose = _nullable_inside(kind)
    for source in (kind, loose):
        with pytest.raises(SchemaMismatch, match="'a"):
            fit_rows(pa.table({"a": pa.array(bad, loose).cast(source) if source == loose else _mislabelled(bad, kind)}), schema)


def _nullable_inside(kind):
    if pa.types.is_list(kind):
        return pa.list_(pa.field("array", _nullable_inside(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), pa.field("value", kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, f.type) for f in kind])
    return kind


def _mislabelled(values, kind):
    """Arrow does not check that a member declared as required has no nulls."""
    return pa.array(values, kind)
