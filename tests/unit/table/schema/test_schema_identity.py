"""Columns told by id: files of earlier schemas read as the query names them."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.log_format import avro_block
from tideline_table.reader import LogRule, read_slice
from tideline_table.schema import avro_from_arrow, avro_with_meta_fields, with_meta_fields, without_meta_fields
from tideline_table.schema.identity import SchemaVersions, history_texts
from tideline_table.storage import MemoryStorage


def at(number: int) -> str:
    return str(20260101000000000 + number)


def version(number: int, *fields) -> str:
    """Fields as (id, name) or (id, name, type)."""
    documents = [{"id": f[0], "name": f[1], "optional": True, "type": f[2] if len(f) > 2 else "int"} for f in fields]
    return json.dumps({"version_id": int(at(number)) if number else 0, "max_column_id": 99, "type": "record", "fields": documents})


def record(*fields):
    return {"type": "record", "fields": [{"id": i, "name": n, "optional": True, "type": "int"} for i, n in fields]}


ID = (0, "id", "string")
OLD_PLACE = record((10, "x"), (11, "y"))
NEW_PLACE = record((10, "y"), (12, "x"))
ITEMS = {"type": "array", "element_id": 20, "element_optional": True}
VALUES = {"type": "map", "key_id": 30, "key": "string", "value_id": 31, "value_optional": True}
VERSIONS = SchemaVersions.parsed(
    [
        version(0, ID, (1, "a"), (2, "b"), (3, "gone"), (4, "place", OLD_PLACE), (5, "same")),
        # a and b change names with each other, gone goes and comes back as another one, place keeps its name.
        version(5, ID, (2, "a"), (1, "b"), (6, "gone"), (4, "place", NEW_PLACE), (5, "same"), (7, "new")),
    ]
)
PLACE = pa.struct([("y", pa.int32()), ("x", pa.int32())])
NOW = with_meta_fields(
    pa.schema(
        [
            ("id", pa.string()),
            *((n, pa.int32()) for n in ("a", "b", "gone")),
            ("place", PLACE),
            ("same", pa.int64()),
            ("new", pa.int32()),
        ]
    )
)
THEN = pa.schema(
    [
        ("id", pa.string()),
        *((n, pa.int32()) for n in ("a", "b", "gone")),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ("same", pa.int32()),
    ]
)


def rows(schema: pa.Schema, *found) -> pa.Table:
    keyed = [{**row, "_hoodie_record_key": row["id"]} for row in found]
    return pa.Table.from_pylist(keyed, schema=with_meta_fields(schema))


BASE = rows(
    THEN,
    {"id": "k", "a": 1, "b": 2, "gone": 3, "place": {"x": 4, "y": 5}, "same": 6},
    {"id": "l", "a": 10, "b": 20, "gone": 30, "place": None, "same": 60},
)
LATE = rows(THEN, {"id": "l", "a": 11, "b": 21, "gone": 31, "place": {"x": 41, "y": 51}, "same": 61})
TODAY = rows(without_meta_fields(NOW), {"id": "m", "a": 7, "b": 8, "gone": 9, "place": {"y": 1, "x": 2}, "same": 3, "new": 4})
K = {"id": "k", "a": 2, "b": 1, "gone": None, "place": {"y": 4, "x": None}, "same": 6, "new": None}
L = {"id": "l", "a": 21, "b": 11, "gone": None, "place": {"y": 41, "x": None}, "same": 61, "new": None}
M = {"id": "m", "a": 7, "b": 8, "gone": 9, "place": {"y": 1, "x": 2}, "same": 3, "new": 4}


@pytest.fixture
def stored() -> tuple[MemoryStorage, FileSlice]:
    """A base file and a log block of the old schema, and a block of today's."""
    storage = MemoryStorage()
    sink = pa.BufferOutputStream()
    pq.write_table(BASE, sink)
    base = f"f_0-0-0_{at(1)}.parquet"
    storage.put(base, sink.getvalue().to_pybytes())
    logs = []
    for number, (found, instant) in enumerate(((LATE, at(2)), (TODAY, at(6))), 1):
        name = f".f_{at(1)}.log.{number}_0-0-0"
        storage.put(name, avro_block(found, avro_with_meta_fields(avro_from_arrow(found.schema, "t")), instant))
        logs.append(LogFile(name, 0, "", number))
    return storage, FileSlice(FileGroupId("", "f"), at(1), base, 0, 2, tuple(logs))


RULE = LogRule(versions=VERSIONS)


def read(stored, rule=RULE, columns=(*K,), where=None, schema=NOW):
    storage, file_slice = stored
    return sorted(read_slice(storage, file_slice, schema, rule, list(columns), where).to_pylist(), key=repr)


def test_files_of_two_schemas(stored):
    assert read(stored) == sorted([K, L, M], key=repr)
    for name in K:
        assert read(stored, columns=[name]) == sorted(({name: row[name]} for row in (K, L, M)), key=repr)


def test_filters_speak_of_todays_columns(stored):
    assert read(stored, columns=["id"], where=pc.field("a") == 2) == [{"id": "k"}]
    assert read(stored, columns=["id"], where=pc.field("gone").is_null() & (pc.field("same") > 6)) == [{"id": "l"}]


def test_queries_of_before_see_the_columns_of_before(stored):
    rule = LogRule(as_of=at(3), versions=VERSIONS)
    found = read(stored, rule, THEN.names, schema=with_meta_fields(THEN))
    names = ["_hoodie_record_key", *THEN.names]
    expected = [*BASE.select(names).to_pylist()[:1], *LATE.select(names).to_pylist()]
    assert found == [{name: row[name] for name in THEN.names} for row in expected]


def test_members_of_lists_and_maps():
    versions = SchemaVersions.parsed(
        [
            version(0, (1, "items", {**ITEMS, "element": OLD_PLACE}), (2, "values", {**VALUES, "value": OLD_PLACE})),
            version(5, (1, "items", {**ITEMS, "element": NEW_PLACE}), (2, "values", {**VALUES, "value": NEW_PLACE})),
        ]
    )
    names = versions.file_names(at(1))
    old = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    items = pa.chunked_array([pa.array([[{"x": 1, "y": 2}], None, []], pa.list_(old)).slice(0, 2)])
    assert names.renamed("items", items).to_pylist() == [[{"y": 1, "\x0011": 2}], None]
    values = pa.chunked_array([pa.array([[("k", {"x": 1, "y": 2})]], pa.map_(pa.string(), old))])
    assert names.renamed("values", values).to_pylist() == [[("k", {"y": 1, "\x0011": 2})]]
    assert not versions.file_names(at(7)).apart


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version_id": 1}', '{"version_id": "x", "type": "record", "fields": []}', version(1, (1, "a", {"type": "map"}))],
)
def test_broken_documents(text):
    with pytest.raises(CorruptMetadata, match="history"):
        SchemaVersions.parsed([text])


def test_broken_history_files():
    assert history_texts(b'{"schemas": [{"version_id": 1}]}', "x") == ['{"version_id": 1}']
    for content in (b"", b"[]", b'{"schemas": 3}'):
        with pytest.raises(CorruptMetadata, match=r"x cannot be read"):
            history_texts(content, "x")
