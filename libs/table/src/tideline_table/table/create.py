"""Creating a table."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import UTC

import pyarrow as pa

from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import InvalidOption, ObjectExists, ObjectNotFound, SchemaMismatch, TableExists, UnsupportedTable
from tideline_table.keygen import KeyGenerator, check_key_columns
from tideline_table.schema import META_FIELDS, arrow_from_avro, avro_from_arrow
from tideline_table.storage import Storage, open_storage
from tideline_table.table.definition import TableType, new_properties
from tideline_table.table.identity import create_identity
from tideline_table.timeline.properties import PROPERTIES_PATH, format_properties

_PROBE = ".hoodie/.tideline/probe"


@dataclass(frozen=True, slots=True)
class TableRequest:
    """What a new table shall be. `key_fields` make the record key; without `ordering_field` the later write wins."""

    name: str
    schema: pa.Schema
    key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    ordering_field: str = ""
    type: TableType = TableType.COW
    hive_style: bool = False
    url_encode: bool = False
    database: str = ""


def create_table(base_path: str, request: TableRequest, clock: Clock | None = None, storage: Storage | None = None) -> None:
    """Create an empty table of version 6, exclusive to Tideline's writers.

    Everything is checked before anything is written. Raises `TableExists`, `SchemaMismatch`, `InvalidOption`, `UnsupportedTable` (a store
    whose conditional put does not refuse, or a table type that cannot be written yet).
    """
    clock = clock or SystemClock()
    storage = storage or open_storage(base_path)
    schema_json = _checked(request)
    _refuse_existing(storage, base_path)
    _probe_conditional_put(storage)
    create_identity(storage, clock)
    keygen = KeyGenerator(request.key_fields, request.partition_fields, request.hive_style, request.url_encode)
    properties = new_properties(request.name, request.type, keygen, request.ordering_field, schema_json, request.database)
    content = format_properties(properties, f"Created by Tideline at {clock.now().astimezone(UTC).isoformat()}")
    try:
        storage.put_if_absent(PROPERTIES_PATH, content)
    except ObjectExists:
        raise TableExists(f"a table at {base_path!r}", expected="an empty place") from None


def _checked(request: TableRequest) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", request.name):
        raise InvalidOption(f"table name {request.name!r}", expected="letters, digits, '_', '-' and '.'")
    if request.type is not TableType.COW:
        raise UnsupportedTable(
            f"table type {request.type}", expected=f"{TableType.COW}: this release does not write merge-on-read tables yet"
        )
    if not request.key_fields:
        raise InvalidOption("no record key columns", expected="at least one")
    if not request.schema.names:
        raise SchemaMismatch("a schema without columns", expected="at least the record key columns")
    taken = [n for n in request.schema.names if n in META_FIELDS]
    if taken or len(set(request.schema.names)) < len(request.schema.names):
        raise SchemaMismatch(
            f"columns {', '.join(taken or request.schema.names)}", expected="each name once and no meta field among them"
        )
    check_key_columns(request.schema, request.key_fields, "record key")
    check_key_columns(request.schema, request.partition_fields, "partition")
    if request.ordering_field:
        _check_ordering(request.schema, request.ordering_field)
    text = avro_from_arrow(request.schema, request.name)
    arrow_from_avro(text)
    return text


def _check_ordering(schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise SchemaMismatch(f"ordering column {name!r} is not in the schema", expected=f"one of {', '.join(schema.names)}")
    kind = schema.field(name).type
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind):
        raise SchemaMismatch(f"ordering column {name!r} of type {kind}", expected="a type whose values can be compared")


def _refuse_existing(storage: Storage, base_path: str) -> None:
    try:
        storage.stat(PROPERTIES_PATH)
    except ObjectNotFound:
        return
    raise TableExists(
        f"a table at {base_path!r}", expected="an empty place", remedy="choose another path, or write into this table"
    )


def _probe_conditional_put(storage: Storage) -> None:
    path = f"{_PROBE}/{uuid.uuid4().hex}"
    storage.put_if_absent(path, b"1")
    try:
        storage.put_if_absent(path, b"2")
    except ObjectExists:
        return
    finally:
        storage.delete(path)
    raise UnsupportedTable(
        f"storage {storage.root} accepted a second conditional put of one object",
        expected="a store that refuses it: concurrent writers are safe only there",
    )
