"""The wire format of schema registries: a zero byte, the id of the writer's schema in four bytes (big-endian), an Avro datum."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from tideline_ingest.decoding import AvroDecoder
from tideline_ingest.errors import Undecodable
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable
from tideline_table.schema import fit_rows
from tideline_table.schema.fit import IS_DELETED
from tideline_table.table.evolution import TargetSchema

_HEADER_BYTES = 5


class Target(Protocol):
    """What rows of all writers become."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as far as it is known now."""
        ...

    def admit(self, incoming: pa.Schema) -> None:
        """Let rows of a writer in. Raises `SchemaMismatch` for a schema whose rows cannot stand beside those of the others."""
        ...


class TableTarget:
    """The schema of a table, or what the schemas of writers make of it, one after the other, as far as `evolve` allows.

    `evolve` tells what a write of rows makes of a table's schema, whose Avro text is `text`, and raises `SchemaMismatch`.
    """

    def __init__(self, text: str, schema: pa.Schema, evolve: Callable[[str, pa.Schema], TargetSchema]) -> None:
        self._text = text
        self.schema = schema
        self._evolve = evolve
        self._admitted: list[pa.Schema] = []

    def admit(self, incoming: pa.Schema) -> None:
        """See `Target.admit`. One that would take the place of those that were let in before is refused, too."""
        evolved = self._evolve(self._text, incoming)
        for known in (incoming, *self._admitted):
            fit_rows(known.empty_table(), evolved.schema)
        if IS_DELETED in incoming.names and not pa.types.is_boolean(incoming.field(IS_DELETED).type):
            raise SchemaMismatch(f"column {IS_DELETED!r} of type {incoming.field(IS_DELETED).type}", expected="type bool")
        self._text, self.schema = evolved.text, evolved.schema
        self._admitted.append(incoming)


class KeyTarget:
    """The columns that name a row. All of them have to be there."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def admit(self, incoming: pa.Schema) -> None:
        """See `Target.admit`."""
        missing = [name for name in self.schema.names if name not in incoming.names]
        if missing:
            raise SchemaMismatch(f"a key without {', '.join(map(repr, missing))}", expected=f"{', '.join(self.schema.names)}")
        fit_rows(incoming.empty_table(), self.schema)


class FramedDecoder:
    """Values that name their writer's schema by its id in a registry, as rows of `target`.

    A schema is judged once, when its first value comes: whether a value can be taken in does not depend on the values beside it. Schemas that
    are no record, where `bare` is given, are the type of a column of that name.
    """

    def __init__(self, registry: SchemaRegistry, target: Target, bare: str | None = None) -> None:
        self._registry = registry
        self._target = target
        self._bare = bare
        self._writers: dict[int, AvroDecoder | str] = {}
        """Or why nothing of that schema can be taken in."""

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`. Columns that a writer's schema lacks are null.

        Raises `RegistryUnavailable` and `RegistryRefused` too: then nothing is known about the values.
        """
        positions: dict[bytes, list[int]] = {}
        for position, value in enumerate(values):
            positions.setdefault(value[:_HEADER_BYTES], []).append(position)
        # All before any row: what one schema makes of the target counts for the rows of the others.
        writers = [self._writer(header) for header in positions]
        parts: list[pa.Table] = []
        for writer, found in zip(writers, positions.values(), strict=True):
            if isinstance(writer, str):
                raise Undecodable(writer)
            parts.append(self._fitted(writer.decode([values[p][_HEADER_BYTES:] for p in found])))
        if len(parts) < 2:
            return parts[0] if parts else self._target.schema.empty_table()
        order = np.argsort(np.concatenate([np.array(found) for found in positions.values()]), kind="stable")
        return pa.concat_tables(parts, promote_options="default").take(pa.array(order))

    def _fitted(self, rows: pa.Table) -> pa.Table:
        fitted = fit_rows(rows, self._target.schema)
        if IS_DELETED in rows.column_names and IS_DELETED not in fitted.column_names:
            return fitted.append_column(IS_DELETED, rows.column(IS_DELETED))
        return fitted

    def _writer(self, header: bytes) -> AvroDecoder | str:
        """Who wrote values with this header, or why they cannot be read."""
        if len(header) < _HEADER_BYTES or header[0]:
            return f"a value that begins with {header.hex() or 'nothing'}; expected 00 and the four bytes of a schema id"
        schema_id = int.from_bytes(header[1:], "big")
        if schema_id not in self._writers:
            try:
                text = self._registry.avro(schema_id)
            except Undecodable as error:
                return str(error)  # the registry keeps what stays so
            self._writers[schema_id] = self._judged(schema_id, text)
        return self._writers[schema_id]

    def _judged(self, schema_id: int, text: str) -> AvroDecoder | str:
        try:
            decoder = AvroDecoder(text if self._bare is None else _as_record(text, self._bare))
            self._target.admit(decoder.schema)
        except (CorruptMetadata, UnsupportedTable, SchemaMismatch, ValueError, RecursionError) as error:
            return f"schema {schema_id} of the registry: {error}"
        return decoder


def _as_record(text: str, name: str) -> str:
    """The schema, or where it is no record, that of a record whose only field it is: its datum has the same bytes."""
    avro = json.loads(text)
    if isinstance(avro, dict) and avro.get("type") == "record":
        return text
    return json.dumps({"type": "record", "name": "key", "fields": [{"name": name, "type": avro}]})
