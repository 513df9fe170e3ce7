"""Columnar conversion against one value at a time, and schema texts that anybody may have written."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import quick

from tideline_table.errors import CorruptMetadata
from tideline_table.schema import arrow_from_avro, avro_from_arrow
from tideline_table.schema.evolution import EvolutionRule, conform

LEAVES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(max_size=4),
    pa.bool_(): st.booleans(),
}
WIDER = {pa.int32(): [pa.int32(), pa.int64(), pa.float64(), pa.string()], pa.int64(): [pa.int64(), pa.float64(), pa.string()]}
NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)


@st.composite
def kinds(draw, depth=2):
    """A type, and a newer one that it becomes."""
    shape = draw(st.sampled_from(["leaf", "struct", "list", "map"])) if depth else "leaf"
    if shape == "leaf":
        old = draw(st.sampled_from(sorted(LEAVES, key=str)))
        return old, draw(st.sampled_from(WIDER.get(old, [old])))
    if shape == "struct":
        members = {name: draw(kinds(depth=depth - 1)) for name in draw(NAMES)}
        kept = draw(st.permutations(sorted(members)))[: draw(st.integers(0, len(members)))]
        new = [pa.field(name, members[name][1]) for name in kept] + [pa.field("new", pa.int32())]
        return pa.struct([(name, old) for name, (old, _) in members.items()]), pa.struct(draw(st.permutations(new)))
    old, new = draw(kinds(depth=depth - 1))
    if shape == "list":
        return draw(st.sampled_from([pa.list_, pa.large_list]))(old), pa.list_(new)
    return pa.map_(pa.string(), old), pa.map_(pa.string(), new)


def values_of(kind):
    if pa.types.is_struct(kind):
        inner = st.fixed_dictionaries({f.name: values_of(f.type) for f in kind})
    elif pa.types.is_map(kind):
        inner = st.lists(st.tuples(st.text(max_size=2), values_of(kind.item_type)), max_size=3)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = st.lists(values_of(kind.value_type), max_size=3)
    else:
        inner = LEAVES[kind]
    return st.one_of(st.none(), inner)


def one(value, old, new):
    """The value of one row, as the rules have it."""
    if value is None:
        return None
    if pa.types.is_struct(new):
        known = {f.name: f.type for f in old}
        return {f.name: one(value[f.name], known[f.name], f.type) if f.name in known else None for f in new}
    if pa.types.is_map(new):
        return [(key, one(item, old.item_type, new.item_type)) for key, item in value]
    if pa.types.is_list(new):
        return [one(item, old.value_type, new.value_type) for item in value]
    if new == old:
        return value
    return float(value) if pa.types.is_floating(new) else str(value) if pa.types.is_string(new) else value


@st.composite
def cases(draw):
    old, new = draw(kinds())
    rows = draw(st.lists(values_of(old), max_size=6))
    return old, new, rows, draw(st.integers(0, len(rows))), draw(st.integers(0, len(rows)))


@quick
@given(cases())
def test_value_by_value(case):
    old, new, rows, first, last = case
    column = pa.chunked_array([pa.array(rows, old).slice(first, max(0, last - first)), pa.array(rows, old)])
    found = conform(pa.Table.from_arrays([column], names=["x"]), pa.schema([("x", new)]))
    found.validate(full=True)
    assert found["x"].to_pylist() == [one(v, old, new) for v in [*rows[first:last], *rows]]


@quick
@given(kinds(), kinds())
def test_what_a_table_evolves_to_holds_what_it_held(one_kind, other):
    table, incoming = pa.schema([("x", one_kind[0])]), pa.schema([("x", other[1]), ("y", other[0])])
    evolved = EvolutionRule(missing_is_null=True).evolve(table, incoming)
    assert evolved.names == ["x", "y"]
    conform(table.empty_table(), evolved)
    assert arrow_from_avro(avro_from_arrow(evolved, "t")).names == evolved.names
    assert EvolutionRule(missing_is_null=True).evolve(evolved, incoming) == evolved


WORDS = ["record", "array", "map", "enum", "fixed", "bytes", "int", "long", "string", "null", "union", "r", "n.r", "x", "n.x"]
LOGICAL = ["decimal", "date", "uuid", "timestamp-micros", 7]
SCALARS = st.one_of(st.sampled_from(WORDS), st.none(), st.booleans(), st.integers(-3, 80), st.just(1e999), st.just(2**80))


def declarations(inner):
    keys = {
        "name": st.sampled_from([*WORDS, "", "a.b", 3]),
        "fields": st.lists(inner, max_size=3),
        "items": inner,
        "values": inner,
        "size": SCALARS,
        "precision": SCALARS,
        "scale": SCALARS,
        "logicalType": st.sampled_from(LOGICAL),
        "namespace": st.sampled_from(["n", "", None, 5]),
    }
    return st.one_of(st.lists(inner, max_size=3), st.fixed_dictionaries({"type": inner}, optional=keys))


JSON = st.recursive(SCALARS, declarations, max_leaves=12)


@quick
@given(st.lists(st.one_of(JSON, st.fixed_dictionaries({"name": st.sampled_from(WORDS), "type": JSON})), max_size=4))
def test_arbitrary_declarations_are_read_or_told(fields):
    text = json.dumps({"type": "record", "name": "r", "namespace": "n", "fields": fields})
    try:
        schema = arrow_from_avro(text)
    except CorruptMetadata:
        return
    assert isinstance(schema, pa.Schema)


@quick
@given(JSON)
def test_arbitrary_json_is_read_or_told(document):
    try:
        arrow_from_avro(json.dumps(document))
    except CorruptMetadata:
        return
