"""The wire format of schema registries: a zero byte, the id of the writer's schema in four bytes (big-endian), an Avro datum."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from tideline_ingest.changes import DELETES, MOVED_FROM
from tideline_ingest.decoding import AvroDecoder, in_order, positions_by_header
from tideline_ingest.errors import Undecodable
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_table.action import TargetSchema
from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable
from tideline_table.schema import IS_DELETED, fit_rows

_HEADER_BYTES = 5


class TableTarget:
    """The schema of a table, evolved for each admitted writer schema as far as `evolve` allows.

    `evolve(text, rows)` returns the table schema after a write of `rows`, or raises `SchemaMismatch`. `text` is the Avro schema.
    """

    def __init__(self, text: str, schema: pa.Schema, evolve: Callable[[str, pa.Schema], TargetSchema]) -> None:
        self._text = text
        self.schema = schema
        self._evolve = evolve
        self._admitted: list[pa.Schema] = []

    def admit(self, incoming: pa.Schema) -> None:
        """Evolve the table schema for the schema of a writer.

        Raises `SchemaMismatch` if its rows, or rows of a schema admitted before, do not fit the evolved schema.
        """
        evolved = self._evolve(self._text, incoming)
        for known in (incoming, *self._admitted):
            fit_rows(known.empty_table(), evolved.schema)
        if IS_DELETED in incoming.names and not pa.types.is_boolean(incoming.field(IS_DELETED).type):
            raise SchemaMismatch(f"column {IS_DELETED!r} of type {incoming.field(IS_DELETED).type}", expected="type bool")
        self._text, self.schema = evolved.text, evolved.schema
        self._admitted.append(incoming)


class SourceTarget:
    """The fields that a transformation reads. Values that a writer's schema lacks are null."""

    def __init__(self, schema: pa.Schema, *, ignores_unknown: bool) -> None:
        self.schema = schema
        self._ignores_unknown = ignores_unknown

    def admit(self, incoming: pa.Schema) -> None:
        """Check the schema of a writer. Raises `SchemaMismatch` if its rows do not fit, or for a field that is unknown."""
        unknown = [name for name in incoming.names if name not in self.schema.names]
        if unknown and not self._ignores_unknown:
            raise SchemaMismatch(
                f"unexpected field {unknown[0]!r}", expected="a field in `transform_fields`, or unknown_fields = 'ignore'"
            )
        fit_rows(incoming.empty_table().drop_columns(unknown), self.schema)


class KeyTarget:
    """The columns that identify a row. All of them are required."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def admit(self, incoming: pa.Schema) -> None:
        """Check the schema of a writer. Raises `SchemaMismatch` if its rows do not fit the key columns."""
        missing = [name for name in self.schema.names if name not in incoming.names]
        if missing:
            raise SchemaMismatch(f"a key without {', '.join(map(repr, missing))}", expected=f"{', '.join(self.schema.names)}")
        fit_rows(incoming.empty_table(), self.schema)


class Writer(Protocol):
    """A decoder of values with one writer's schema; `schema` has the columns that it writes to the table."""

    schema: pa.Schema

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`."""
        ...


class FramedDecoder:
    """Decodes values that name their writer's schema by its registry id. The rows fit the columns of `target`.

    `reader` makes the decoder of values from the text of an Avro schema; it raises the errors of `AvroDecoder`.

    Each schema is checked once, at its first value, so that the other values of a batch do not decide whether a value can be
    ingested. With `bare`, a schema that is not a record is the type of the column `bare`.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        target: TableTarget | SourceTarget | KeyTarget,
        bare: str | None = None,
        reader: Callable[[str], Writer] = AvroDecoder,
    ) -> None:
        self._registry = registry
        self._target = target
        self._bare = bare
        self._reader = reader
        self._writers: dict[int, Writer | str] = {}
        """The decoder by schema id, or the reason why values of the schema cannot be ingested."""

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`. Columns that a writer's schema lacks are null.

        Also raises `RegistryUnavailable` and `RegistryRefused`. These errors say nothing about the values.
        """
        positions = positions_by_header(values, _HEADER_BYTES)
        # Admit all schemas before decoding: each can change the target that all rows must fit.
        writers = [self._writer(header) for header in positions]
        parts: list[pa.Table] = []
        for writer, found in zip(writers, positions.values(), strict=True):
            if isinstance(writer, str):
                raise Undecodable(writer)
            parts.append(self._fitted(writer.decode([values[p][_HEADER_BYTES:] for p in found])))
        return in_order(parts, positions) if parts else self._target.schema.empty_table()

    def _fitted(self, rows: pa.Table) -> pa.Table:
        schema, beside = self._target.schema, [n for n in (IS_DELETED, DELETES, MOVED_FROM) if n in rows.column_names]
        if DELETES in beside:
            # What the table requires is checked when rows are prepared: the image of a deleted row may have its key only.
            schema = pa.schema([field.with_nullable(nullable=True) for field in schema])
        fitted = fit_rows(rows.select([n for n in rows.column_names if n in schema.names]), schema)
        for name in beside:
            if name not in fitted.column_names:
                fitted = fitted.append_column(name, rows.column(name))
        return fitted

    def _writer(self, header: bytes) -> Writer | str:
        """Return the decoder for values with this header, or the reason why they cannot be read."""
        if len(header) < _HEADER_BYTES or header[0]:
            return f"a value that begins with {header.hex() or 'nothing'}; expected 00 and the four bytes of a schema id"
        schema_id = int.from_bytes(header[1:], "big")
        if schema_id not in self._writers:
            try:
                text = self._registry.avro(schema_id)
            except Undecodable as error:
                return str(error)  # `SchemaRegistry` caches this until the next batch
            self._writers[schema_id] = self._judged(schema_id, text)
        return self._writers[schema_id]

    def _judged(self, schema_id: int, text: str) -> Writer | str:
        try:
            decoder = self._reader(text if self._bare is None else _as_record(text, self._bare))
            self._target.admit(decoder.schema)
        except (CorruptMetadata, UnsupportedTable, SchemaMismatch, ValueError, RecursionError) as error:
            return f"schema {schema_id} of the registry: {error}"
        return decoder


def _as_record(text: str, name: str) -> str:
    """Return a record schema as it is, and another schema as a record with one field of that schema: a datum has the same bytes."""
    avro = json.loads(text)
    if isinstance(avro, dict) and avro.get("type") == "record":
        return text
    return json.dumps({"type": "record", "name": "key", "fields": [{"name": name, "type": avro}]})
