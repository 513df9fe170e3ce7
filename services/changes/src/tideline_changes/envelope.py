"""Records of row changes: Debezium's envelope around the row before and after. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from tideline_changes.coding import AvroCoder, Coder, JsonCoder
from tideline_changes.connect import Encoding, Form, form_of, struct_of
from tideline_changes.positions import SNAPSHOT, Unit
from tideline_changes.settings import ChangesSettings
from tideline_events import Record
from tideline_table.schema import MetaField
from tideline_table.table import Table

CREATE, UPDATE, DELETE, READ, TRUNCATE = "c", "u", "d", "r", "t"
_SOURCE = {
    "version": pa.string(),
    "connector": pa.string(),
    "name": pa.string(),
    "ts_ms": pa.int64(),
    "snapshot": pa.string(),
    "db": pa.string(),
    "table": pa.string(),
    "uid": pa.string(),
    "instant": pa.string(),
    "sequence": pa.int64(),
    "row": pa.int64(),
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the records of a table look like: its topic, the columns of keys and rows, and how they become bytes."""

    topic: str
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    """What is read: the columns of the table, and what only keys have."""
    coder: Coder
    source: dict[str, Any]
    tombstones: bool

    def change(
        self, op: str, before: Row | None, after: Row | None, source: Row, ts_ms: int, *, shows_before: bool = True
    ) -> list[Record]:
        """Return the records of one changed row. A row whose key columns changed is deleted and created."""
        keys = [None if row is None else self._key(row) for row in (before, after)]
        if before is not None and after is not None and keys[0] != keys[1]:
            return [
                *self.change(DELETE, before, None, source, ts_ms, shows_before=shows_before),
                *self.change(CREATE, None, after, source, ts_ms),
            ]
        record = self._record(keys[0] or keys[1], op, before if shows_before else None, after, source, ts_ms)
        return [record, Record(self.topic, record.key, None)] if op == DELETE and self.tombstones else [record]

    def truncation(self, source: Row, ts_ms: int) -> Record:
        """Return the record that says that the topic begins anew. Like Debezium's, it has no key."""
        return self._record(None, TRUNCATE, None, None, source, ts_ms)

    def _record(self, key: bytes | None, op: str, before: Row | None, after: Row | None, source: Row, ts_ms: int) -> Record:
        value = self.coder.value(before, after, {"source": source, "op": op, "ts_ms": ts_ms})
        return Record(self.topic, key, value, (("content-type", self.coder.content_type.encode()),))

    def _key(self, row: Row) -> bytes:
        return self.coder.key({name: _at(row, name) for name in self.key_columns})

    def source_of(self, unit: Unit, ts_ms: int, row: int) -> Row:
        """Return the field `source` of a change."""
        snapshot = "true" if unit.kind == SNAPSHOT else "false"
        own = {"ts_ms": ts_ms, "snapshot": snapshot, "instant": unit.instant, "sequence": unit.sequence, "row": row}
        return {**self.source, **own}


def key_columns_of(table: Table) -> tuple[str, ...]:
    """Return the columns that name a row in the topic.

    They are those of the record key and, unless the table's index keeps a key unique in the whole table, of the partition.
    """
    keygen = table.definition.keygen
    keys = keygen.key_fields or (str(MetaField.RECORD_KEY),)
    return keys if has_global_keys(table) else tuple(dict.fromkeys((*keys, *keygen.partition_fields)))


def has_global_keys(table: Table) -> bool:
    """Return whether the index of the table keeps a key unique in the whole table."""
    return table.has_record_index or table.definition.kept_index.startswith("GLOBAL_")


def shape_of(table: Table, topic: str, fleet: str, own: ChangesSettings, register: Callable[[str, str], int]) -> Shape:
    """Return the shape of a table's records now. `register`: see `AvroCoder`; only of tables whose format is Avro.

    Raises `UnsupportedTable` for a column of a type that Kafka Connect or Avro lacks, and what `register` raises.
    """
    schema, keys = table.schema, key_columns_of(table)
    columns = tuple(schema.names)
    only_in_keys = tuple(name for name in keys if name.startswith("_hoodie_"))
    encoding: Encoding = "avro" if own.format == "avro" else "connect" if own.schemas else "json"
    forms = {name: Form({"type": "string"}, str) for name in only_in_keys}
    # Numbers in keys that JSON lacks stay texts: a null would be the key of other rows.
    of_keys: Encoding = "avro" if encoding == "avro" else "json"
    key = struct_of(f"{topic}.Key", [(n, forms.get(n) or form_of(_type(schema, n), name=n, encoding=of_keys), True) for n in keys])
    row = struct_of(
        f"{topic}.Value", [(f.name, form_of(f.type, name=f"{topic}.{f.name}", encoding=encoding), True) for f in schema]
    )
    source = {
        "version": version("tideline-hudi"),
        "connector": "tideline",
        "name": fleet or "tideline",
        "ts_ms": 0,
        "snapshot": "false",
        "db": table.definition.properties.get("hoodie.database.name", ""),
        "table": table.definition.name,
        "uid": table.uid,
    }
    coder: Coder
    if encoding == "avro":
        coder = AvroCoder(key, row, _envelope_schema(topic, row), register)
    elif encoding == "connect":
        coder = JsonCoder.with_schemas(key, row, _envelope_schema(topic, row))
    else:
        coder = JsonCoder(key, row)
    return Shape(topic, keys, (*columns, *only_in_keys), coder, source, own.tombstones)


def _envelope_schema(topic: str, row: Form) -> dict[str, Any]:
    make = form_of
    source = struct_of("io.tideline.changes.Source", [(name, make(kind), False) for name, kind in _SOURCE.items()])
    fields = [("before", row, True), ("after", row, True), ("source", source, False)]
    fields += [("op", make(pa.string()), False), ("ts_ms", make(pa.int64()), True)]
    return struct_of(f"{topic}.Envelope", fields).schema


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    found = pa.struct(list(schema))
    for part in (name,) if name in schema.names else name.split("."):
        found = found.field(part).type
    return found


def _at(row: Row, name: str) -> Any:
    if name in row:
        return row[name]
    found: Any = row
    for part in name.split("."):
        found = None if found is None else found[part]
    return found
