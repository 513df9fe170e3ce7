import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tideline_table.errors import CorruptMetadata, SchemaMismatch
from tideline_table.schema import arrow_from_avro, avro_with_meta_fields
from tideline_table.schema.avro import avro_evolved
from tideline_table.schema.evolution import EvolutionRule, conform, settled
from tideline_table.schema.promotion import java_float_text

MILLI = dt.datetime(2024, 5, 1, 10, 11, 12, 345000)
OBSERVED = [
    (pa.array([1, -2, None], pa.int32()), pa.int64(), [1, -2, None]),
    (pa.array([1, 16777217, None], pa.int32()), pa.float32(), [1.0, 16777216.0, None]),
    (pa.array([1, -2, None], pa.int32()), pa.float64(), [1.0, -2.0, None]),
    (pa.array([1, -2, None], pa.int32()), pa.string(), ["1", "-2", None]),
    (pa.array([1, 2**53 + 1, None], pa.int64()), pa.float64(), [1.0, 2.0**53, None]),
    (pa.array([-(2**40), None], pa.int64()), pa.string(), ["-1099511627776", None]),
    (pa.array([0.1, 1e10, None], pa.float32()), pa.float64(), [0.1, 1e10, None]),
    (pa.array([0.1, 1e10, None], pa.float32()), pa.string(), ["0.1", "1.0E10", None]),
    (pa.array([0.1, 1e-5, None], pa.float64()), pa.string(), ["0.1", "1.0E-5", None]),
    (pa.array(["é", None]), pa.binary(), ["é".encode(), None]),
    (pa.array([b"x", None]), pa.string(), ["x", None]),
    (
        pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        pa.decimal128(20, 4),
        [Decimal("1.5000"), None],
    ),
    (pa.array([1, -2], pa.int32()), pa.decimal128(20, 4), [Decimal("1.0000"), Decimal("-2.0000")]),
    (pa.array([0.1, -2.0], pa.float32()), pa.decimal128(20, 4), [Decimal("0.1000"), Decimal("-2.0000")]),
    (pa.array([1e15, 1e-18]), pa.decimal128(38, 18), [Decimal("1000000000000000.000000000000000000"), Decimal("1E-18")]),
    (pa.array([1, 2], pa.int64()), pa.timestamp("us", "UTC"), [dt.datetime(1970, 1, 1, 0, 0, 0, n, dt.UTC) for n in (1, 2)]),
]
"""What Apache Hudi 1.2.0 reads of columns that were widened."""
OTHERS = [
    (pa.array([1], pa.int8()), pa.int32(), [1]),
    (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
    (pa.array(["a", "b"]).dictionary_encode(), pa.string(), ["a", "b"]),
    (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
    (pa.array([b"ab"], pa.binary(2)), pa.string(), ["ab"]),
    (pa.array([dt.date(2024, 5, 1)]), pa.string(), ["2024-05-01"]),
    (pa.array([MILLI], pa.timestamp("ns")), pa.timestamp("ms", "UTC"), [MILLI.replace(tzinfo=dt.UTC)]),
    (pa.nulls(2), pa.struct([("a", pa.int32())]), [None, None]),
    (pa.array([float("nan"), float("inf")], pa.float64()), pa.string(), ["NaN", "Infinity"]),
]


def column(values, kind):
    """Through `conform`, sliced so that offsets do not start at 0."""
    padded = pa.concat_arrays([pa.nulls(1, values.type), values]).slice(1)
    found = conform(pa.table({"x": padded}), pa.schema([("x", kind)]))
    found.validate(full=True)
    assert found.schema.field("x").type == kind
    return found["x"].to_pylist()


@pytest.mark.parametrize(("values", "kind", "expected"), OBSERVED + OTHERS, ids=str)
def test_older_types_become_newer_ones(values, kind, expected):
    assert column(values, kind) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int64()),
        (pa.string(), pa.int32()),
        (pa.bool_(), pa.int32()),
        (pa.bool_(), pa.string()),
        (pa.timestamp("us"), pa.string()),
        (pa.date32(), pa.timestamp("us")),
        (pa.decimal128(20, 4), pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), pa.float64()),
        (pa.int32(), pa.list_(pa.int32())),
        (pa.struct([("a", pa.int32())]), pa.int32()),
        (pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32())),
    ],
    ids=str,
)
def test_types_that_do_not_become_each_other(source, target):
    with pytest.raises(SchemaMismatch, match=r"column 'x' of type"):
        column(pa.nulls(1, source), target)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([MILLI.replace(microsecond=1)], pa.timestamp("ns")), pa.timestamp("ms")),
        (pa.array([float("nan")]), pa.decimal128(5, 1)),
        (pa.array([1e300]), pa.decimal128(38, 18)),
        (pa.array([10**6], pa.int64()), pa.decimal128(5, 1)),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_told(values, kind):
    with pytest.raises(SchemaMismatch, match="column 'x'"):
        column(values, kind)


def test_columns_are_told_by_name():
    rows = pa.table({"b": pa.array([1], pa.int32()), "gone": [9], "a": ["x"]})
    found = conform(rows, pa.schema([("a", pa.string()), ("new", pa.list_(pa.int32())), ("b", pa.int64())]))
    assert found.to_pylist() == [{"a": "x", "new": None, "b": 1}]
    assert found["a"].chunk(0).buffers()[1].address == rows["a"].chunk(0).buffers()[1].address


def test_a_required_column_that_older_rows_lack_is_named():
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    with pytest.raises(SchemaMismatch, match="'a'"):
        conform(pa.table({"b": [1]}), schema)
    assert conform(pa.table({"b": pa.array([], pa.int32())}), schema).num_rows == 0
    nested = pa.struct([("p", pa.int32()), pa.field("q", pa.int32(), nullable=False)])
    with pytest.raises(SchemaMismatch, match=r"'x\.q'"):
        column(pa.array([{"p": 1}], P), nested)
    assert column(pa.array([None], pa.struct([("p", pa.int32())])), nested) == [None]


P = pa.struct([("p", pa.int32())])
QP = pa.struct([("q", pa.string()), ("p", pa.int64())])
NESTED = [
    (pa.array([{"p": 1}, None, {"p": None}], P), QP, [{"q": None, "p": 1}, None, {"q": None, "p": None}]),
    (pa.array([[{"p": 1}], [], None, [None]], pa.list_(P)), pa.list_(QP), [[{"q": None, "p": 1}], [], None, [None]]),
    (pa.array([[1], None, [2, 3]], pa.large_list(pa.int32())), pa.list_(pa.int64()), [[1], None, [2, 3]]),
    (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), pa.list_(pa.int64()), [[1, 2], None]),
    (
        pa.array([[("k", {"p": 1})], None, [], [("z", None)]], pa.map_(pa.string(), P)),
        pa.map_(pa.string(), QP),
        [[("k", {"q": None, "p": 1})], None, [], [("z", None)]],
    ),
    (
        pa.array([{"in": [{"p": 5}]}, {"in": None}], pa.struct([("in", pa.list_(P))])),
        pa.struct([("in", pa.list_(QP)), ("more", pa.date32())]),
        [{"in": [{"q": None, "p": 5}], "more": None}, {"in": None, "more": None}],
    ),
]


@pytest.mark.parametrize(("values", "kind", "expected"), NESTED, ids=str)
def test_nested_columns(values, kind, expected):
    assert column(values, kind) == expected


def test_what_stands_behind_a_null_does_not_matter():
    hidden = pa.StructArray.from_arrays([pa.array([1, 2], pa.int32())], fields=list(P), mask=pa.array([True, False]))
    assert column(hidden, QP) == [None, {"q": None, "p": 2}]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3], pa.int32()), mask=pa.array([True, False]))
    assert column(lists, pa.list_(pa.int64())) == [None, [3]]


def _place(**optional: bool) -> pa.StructType:
    place = pa.struct([pa.field("path", pa.string(), **optional), ("at", pa.int64())])
    return pa.struct([pa.field("kind", pa.string(), **optional), ("place", place), pa.field("sizes", pa.list_(place), **optional)])


PLACE, REQUIRED = _place(), _place(nullable=False)
PLACES = [None, {"kind": "a", "place": None, "sizes": []}, {"kind": "b", "place": {"path": "p", "at": 1}, "sizes": [None]}]
_FILED = pa.array(PLACES, PLACE)
HIDDEN = {
    "a file that requires none": pa.StructArray.from_arrays(
        [pc.if_else(_FILED.is_valid(), part, pa.nulls(3, part.type)) for part in _FILED.flatten()],
        fields=list(PLACE),
        mask=_FILED.is_null(),
    ),
    "null indices": pa.array(PLACES, REQUIRED).take(pa.array([None, 1, 2])),
    "a column that is lacking": pa.nulls(3, REQUIRED),
    "a member that is lacking": pa.array([None] * 3, P),
}


@pytest.mark.parametrize("stored", HIDDEN.values(), ids=HIDDEN)
def test_required_members_behind_a_null_are_written_and_cast(stored):
    """Arrow makes nulls there, and refuses to write and to cast them."""
    nested = pa.ListArray.from_arrays([0, 2, 2, 3], stored)
    schema = pa.schema([("c", REQUIRED), ("l", pa.list_(REQUIRED)), ("m", pa.map_(pa.string(), REQUIRED))])
    mapped = pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["x", "y", "z"]), stored)
    rows = conform(pa.table({"c": stored, "l": nested, "m": mapped}), schema)
    found, wanted = settled(rows), stored.to_pylist()
    assert found["c"].to_pylist() == wanted
    assert found["l"].to_pylist() == [wanted[:2], [], wanted[2:]]
    assert found["m"].to_pylist() == [[(key, value)] for key, value in zip("xyz", wanted, strict=True)]
    assert found.cast(schema).equals(found)
    target = pa.BufferOutputStream()
    pq.write_table(found, target)
    assert pq.read_table(pa.BufferReader(target.getvalue())).to_pylist() == found.to_pylist()
    assert settled(rows.slice(1)).to_pylist() == rows.slice(1).to_pylist()


def test_rows_without_required_members_are_not_copied():
    rows = pa.table({"c": pa.array(PLACES, PLACE), "n": [1, 2, 3]})
    assert settled(rows) is rows


@pytest.mark.parametrize(
    ("value", "single", "text"),
    [
        (0.0, False, "0.0"),
        (-0.0, False, "-0.0"),
        (1.0, False, "1.0"),
        (100.0, False, "100.0"),
        (9999999.0, False, "9999999.0"),
        (1e7, False, "1.0E7"),
        (0.001, False, "0.001"),
        (0.00099, False, "9.9E-4"),
        (123456.789, False, "123456.789"),
        (-1.5e300, False, "-1.5E300"),
        (0.1, True, "0.1"),
        (16777216.0, True, "1.6777216E7"),
        (float("-inf"), False, "-Infinity"),
    ],
)
def test_text_of_floating_numbers_is_that_of_java(value, single, text):
    assert java_float_text(value, single=single) == text
    values = pa.array([value, None, value, 1.5], pa.float32() if single else pa.float64())
    assert column(values, pa.string()) == [text, None, text, "1.5"]


# --- what a write changes ---------------------------------------------------------------------------------------------------

TABLE = pa.schema([pa.field("id", pa.string(), nullable=False), ("x", pa.int32()), ("s", P)])
EVOLVE = EvolutionRule()


def with_x(kind):
    return pa.schema([("id", pa.string()), ("x", kind), ("s", P)])


def test_new_columns_and_members_come_last_and_are_nullable():
    incoming = pa.schema([pa.field("new", pa.date32(), nullable=False), ("s", QP), ("x", pa.int32()), ("id", pa.string())])
    found = EVOLVE.evolve(TABLE, incoming)
    nested = pa.struct([("p", pa.int32()), ("q", pa.string())])
    assert found == pa.schema([TABLE.field("id"), TABLE.field("x"), ("s", nested), ("new", pa.date32())])


@pytest.mark.parametrize(
    ("table", "incoming", "widened"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int32(), pa.float32(), True),
        (pa.int32(), pa.string(), True),
        (pa.int64(), pa.float64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.string(), True),
        (pa.decimal128(10, 2), pa.decimal128(20, 4), True),
        (pa.int64(), pa.int32(), False),
        (pa.float64(), pa.int64(), False),
        (pa.string(), pa.int32(), False),
        (pa.string(), pa.binary(), False),
        (pa.binary(), pa.string(), False),
        (pa.int32(), pa.decimal128(20, 4), False),
        (pa.decimal128(20, 4), pa.decimal128(10, 2), False),
        (pa.decimal128(10, 2), pa.string(), False),
        (pa.date32(), pa.string(), False),
        (pa.bool_(), pa.string(), False),
        (pa.timestamp("us"), pa.timestamp("ms"), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), False),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), False),
        (pa.struct([("p", pa.int32())]), pa.struct([("p", pa.int64())]), False),
    ],
    ids=str,
)
def test_which_types_widen(table, incoming, widened):
    schema = pa.schema([("x", table)])
    assert EVOLVE.evolve(schema, pa.schema([("x", incoming)])).field("x").type == (incoming if widened else table)
    assert EvolutionRule(keep_types=True).evolve(schema, pa.schema([("x", incoming)])) == schema


def test_members_are_added_inside_lists_and_maps():
    table = pa.schema([("l", pa.list_(P)), ("m", pa.map_(pa.string(), P))])
    found = EVOLVE.evolve(table, pa.schema([("m", pa.map_(pa.string(), QP)), ("l", pa.large_list(QP))]))
    wide = pa.struct([("p", pa.int32()), ("q", pa.string())])
    assert found.field("l").type == pa.list_(wide)
    assert found.field("m").type == pa.map_(pa.string(), wide)


def test_missing_columns_have_to_be_allowed():
    without = pa.schema([("id", pa.string()), ("s", P)])
    with pytest.raises(SchemaMismatch, match=r"'x'.*set\.null\.for\.missing"):
        EVOLVE.evolve(TABLE, without)
    for rule in (EvolutionRule(missing_is_null=True), EvolutionRule(keep_types=True)):
        assert rule.evolve(TABLE, without) == TABLE
        with pytest.raises(SchemaMismatch, match="'id'"):
            rule.evolve(TABLE, pa.schema([("x", pa.int32()), ("s", P)]))
    with pytest.raises(SchemaMismatch, match=r"'s\.p'"):
        EVOLVE.evolve(TABLE, pa.schema([("id", pa.string()), ("x", pa.int32()), ("s", pa.struct([("q", pa.string())]))]))


def test_meta_fields_of_the_input_do_not_count():
    incoming = pa.schema([("_hoodie_record_key", pa.string()), *TABLE])
    assert EVOLVE.evolve(TABLE, incoming) == TABLE


# --- the Avro text ------------------------------------------------------------------------------------------------------------

ENUM = {"type": "enum", "name": "Side", "symbols": ["L", "R"]}
DECLARED = {
    "type": "record",
    "name": "r",
    "namespace": "n",
    "doc": "kept",
    "fields": [
        {"name": "a", "type": ENUM, "doc": "a side"},
        {"name": "b", "type": ["null", "n.Side"], "default": None},
        {"name": "x", "type": "int"},
    ],
}


def test_unchanged_declarations_are_kept():
    text = json.dumps(DECLARED)
    schema = arrow_from_avro(text)
    evolved = pa.schema([*list(schema)[:2], pa.field("x", pa.int64(), nullable=False), ("y", pa.date32())])
    found = json.loads(avro_evolved(text, evolved, "t"))
    assert found["fields"][:2] == DECLARED["fields"][:2]
    assert found["fields"][2] == {"name": "x", "type": "long"}
    assert found["doc"] == "kept"
    assert arrow_from_avro(json.dumps(found)) == evolved


def test_a_reference_does_not_outlive_its_declaration():
    """The enum is declared in a column that is gone: what refers to it has to be declared anew."""
    evolved = pa.schema(list(arrow_from_avro(json.dumps(DECLARED)))[1:])
    assert arrow_from_avro(avro_evolved(json.dumps(DECLARED), evolved, "t")) == evolved


def test_meta_fields_are_put_in_front_of_everything_else():
    found = json.loads(avro_with_meta_fields(json.dumps(DECLARED)))
    assert [f["name"] for f in found["fields"]][:6] == [
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "_hoodie_partition_path",
        "_hoodie_file_name",
        "a",
    ]
    assert found["fields"][5:] == DECLARED["fields"]
    assert json.loads(avro_with_meta_fields(json.dumps(found))) == found
    with pytest.raises(CorruptMetadata):
        avro_with_meta_fields("[]")
