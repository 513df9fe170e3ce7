"""Decodes values of records to Arrow rows, many at a time."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import fastavro.schema
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tideline_ingest.errors import Undecodable
from tideline_ingest.forms import Form, first_line, wire_field
from tideline_table.errors import CorruptMetadata, InvalidOption, UnsupportedTable, parsing
from tideline_table.log_format import decode_datums, parse_schema, row_schema

_UNREADABLE = (CorruptMetadata, UnsupportedTable, pa.ArrowInvalid)
_SINGLE_OBJECT = b"\xc3\x01"
_HEADER_BYTES = 10
_SHOWN = 60
"""Characters of a name or value that a reason shows."""
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
"""In JSON, raw line ends can only occur between tokens."""


class Decoder(Protocol):
    """A decoder for one format."""

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """Return one row per value, in order.

        Raises `Undecodable` if any value does not fit; the error does not say which value.
        """
        ...


class JsonDecoder:
    """One JSON object per value, with fields according to `schema`.

    Dates and timestamps are ISO 8601 text, times of day integers in the unit of their column, decimals text or numbers. A missing
    field is null, an unknown one is an error unless `ignores_unknown`. `forms` has other forms of values, by column. Raises
    `InvalidOption` for maps, which have no form here.
    """

    def __init__(self, schema: pa.Schema, forms: Mapping[str, Form] | None = None, *, ignores_unknown: bool = False) -> None:
        self._schema = schema
        self._forms = forms or {}
        wire = [pa.field(f.name, self._forms[f.name].wire) if f.name in self._forms else wire_field(f) for f in schema]
        self._wire = pa.schema([("v", pa.struct(wire))])
        self._ignores_unknown = ignores_unknown
        try:
            self._parsed([b"{}"]).column(0).combine_chunks().flatten()
            self._restored([pa.nulls(0, f.type) for f in self._wire.field("v").type])
        except pa.ArrowNotImplementedError as error:
            raise InvalidOption(f"a schema that JSON cannot represent ({error})", expected="columns without maps") from None

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`."""
        if not values:
            return self._schema.empty_table()
        try:
            if self._ignores_unknown:
                for value in values:
                    json.loads(value)  # the parser below would read text after the object as an unknown field
            rows = self._parsed(values)
            if rows.num_rows != len(values):
                raise Undecodable(f"{rows.num_rows} JSON objects in {len(values)} values", expected="one object per value")
            objects = rows.column(0).combine_chunks()
            objects = objects.chunk(0) if isinstance(objects, pa.ChunkedArray) else objects
            if objects.null_count:
                raise Undecodable("null", expected="a JSON object")
            columns = objects.flatten()
            for column in columns:
                column.validate(full=True)
            return self._restored(columns)
        except (pa.ArrowInvalid, ValueError, RecursionError) as error:
            # The screening decodes a value alone to learn why it does not fit.
            named = self._misfit(values[0]) if len(values) == 1 else ""
            raise Undecodable(
                f"a value that is not JSON of the schema ({named or first_line(error)})", expected="a JSON object of the schema"
            ) from None

    def _restored(self, columns: Sequence[pa.Array]) -> pa.Table:
        named = zip(self._schema.names, columns, strict=True)
        restored = [self._forms[name].restore(column) if name in self._forms else column for name, column in named]
        return pa.Table.from_arrays(restored, names=self._schema.names).cast(self._schema)

    def _misfit(self, value: bytes) -> str:
        """Return which field of an object does not fit the schema, empty if this is no object, or if each field fits alone."""
        try:
            document = json.loads(value)
            return self._misfit_in(document, "") if isinstance(document, dict) else ""
        except (ValueError, RecursionError):
            return ""

    def _misfit_in(self, document: Mapping[str, object], above: str) -> str:
        unknown = [name for name in document if name not in self._schema.names]
        if unknown and not self._ignores_unknown:
            return f"unexpected field {above + unknown[0][:_SHOWN]!r}"
        for field in self._schema:
            found = document.get(field.name)
            own = {field.name: self._forms[field.name]} if field.name in self._forms else {}
            alone = JsonDecoder(pa.schema([field]), own, ignores_unknown=self._ignores_unknown)
            try:
                alone.decode(2 * [json.dumps({field.name: found}).encode()])  # twice: not to be asked for the reason again
            except Undecodable:
                path = f"{above}{field.name}"
                if pa.types.is_struct(field.type) and isinstance(found, dict) and not own:
                    members = JsonDecoder(pa.schema(list(field.type)), ignores_unknown=self._ignores_unknown)
                    if inner := members._misfit_in(found, f"{path}."):
                        return inner
                form = f" as {own[field.name].name}" if own else ""
                return f"field {path!r} has the value {json.dumps(found)[:_SHOWN]}, which is no {field.type}{form}"
        return ""

    def _parsed(self, values: Sequence[bytes]) -> pa.Table:
        # Each value is wrapped in an object on its own line. Two broken values cannot form one object, because no brace follows a
        # brace.
        content = b"".join(b'{"v":%b}\n' % value.translate(_LINE_ENDS) for value in values)
        return pa.json.read_json(
            io.BytesIO(content),
            pa.json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            pa.json.ParseOptions(
                explicit_schema=self._wire, unexpected_field_behavior="ignore" if self._ignores_unknown else "error"
            ),
        )


class AvroDecoder:
    """One plain Avro datum per value, of the record schema `text`. Raises `CorruptMetadata` for other kinds of schemas."""

    def __init__(self, text: str) -> None:
        self._node = parse_schema(text)
        self.schema = row_schema(text)

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`."""
        if not values:
            return self.schema.empty_table()
        try:
            return self._decoded(values, self.schema)
        except _UNREADABLE as error:
            # The screening decodes a value alone to learn why it does not fit.
            named = self._misfit(values[0]) if len(values) == 1 else ""
            raise Undecodable(
                f"a value that is not an Avro datum of the schema ({named}{first_line(error)})", expected="one complete datum"
            ) from None

    def _decoded(self, values: Sequence[bytes], wanted: pa.Schema) -> pa.Table:
        """Decode the columns `wanted`, the first ones of the schema."""
        ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
        begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        columns = decode_datums(b"".join(values), begins, ends, self._node, self.schema, set(wanted.names))
        decoded = pa.Table.from_arrays(columns, schema=wanted)
        decoded.validate(full=True)
        return decoded

    def _misfit(self, value: bytes) -> str:
        """Return the first field that cannot be read from a value; empty if each can, and the value goes on after the last one."""
        for count in range(1, len(self.schema) + 1):
            try:
                self._decoded([value], pa.schema(list(self.schema)[:count]))
            except _UNREADABLE as error:
                if count == len(self.schema) and "longer than its fields" in str(error):
                    return ""
                return f"field {self.schema.names[count - 1]!r}: "
        return ""


class SingleObjectDecoder:
    """Avro's single-object encoding: each value names its writer's schema, one of `texts`, by fingerprint.

    Rows have the columns of all schemas, whichever values a batch holds: the other values do not decide whether one can be
    ingested. Raises `InvalidOption` for schemas whose rows do not fit into one table.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        decoders = [(text, AvroDecoder(text)) for text in texts]  # refuses what has no canonical form
        self._by_header = {_SINGLE_OBJECT + fingerprint(text): decoder for text, decoder in decoders}
        schemas = [decoder.schema for decoder in self._by_header.values()]
        try:
            unified = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise InvalidOption(
                f"schemas that do not fit into one table ({first_line(error)})",
                expected="one type for each field, or types that widen to it",
            ) from None
        lacking = {name for name in unified.names for schema in schemas if name not in schema.names}
        self._schema = pa.schema([f.with_nullable(nullable=f.nullable or f.name in lacking) for f in unified])

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`. Columns that a value's schema lacks are null."""
        positions = positions_by_header(values, _HEADER_BYTES)
        parts: list[pa.Table] = []
        for header, found in positions.items():
            decoder = self._by_header.get(header)
            if decoder is None:
                known = ", ".join(sorted(h[2:].hex() for h in self._by_header))
                raise Undecodable(f"a value that begins with {header.hex()}", expected=f"c301 and a fingerprint among {known}")
            parts.append(decoder.decode([values[p][_HEADER_BYTES:] for p in found]))
        try:
            return in_order([self._widened(part) for part in parts], positions) if parts else self._schema.empty_table()
        except pa.ArrowInvalid as error:
            raise Undecodable(
                f"values of schemas that do not fit together ({first_line(error)})", expected="values that fit the wider types"
            ) from None

    def _widened(self, rows: pa.Table) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), rows], promote_options="permissive").cast(self._schema)


def positions_by_header(values: Sequence[bytes], header_bytes: int) -> dict[bytes, list[int]]:
    """Return the positions of the values that begin with the same header, by header."""
    positions: dict[bytes, list[int]] = {}
    for position, value in enumerate(values):
        positions.setdefault(value[:header_bytes], []).append(position)
    return positions


def in_order(parts: Sequence[pa.Table], positions: Mapping[bytes, list[int]]) -> pa.Table:
    """Return the rows of `parts`, one per header in `positions`, in the order of their values.

    Columns that a part lacks are null.
    """
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([np.array(found) for found in positions.values()]), kind="stable")
    return pa.concat_tables(parts, promote_options="default").take(pa.array(order))


def fingerprint(text: str) -> bytes:
    """Return the CRC-64-AVRO fingerprint of a schema's canonical form, as the 8 bytes in the header of a value.

    Raises `CorruptMetadata` for a schema without such a form.
    """
    with parsing("an Avro schema", "a schema with a canonical form"):
        canonical = fastavro.schema.to_parsing_canonical_form(json.loads(text))
        return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def text_keys(keys: Sequence[bytes | None], field: pa.Field) -> pa.Table:
    """Return a table with the column `field`, parsed from keys that are its values as UTF-8 text. Raises `Undecodable`."""
    try:
        texts = pa.array([None if key is None else key.decode() for key in keys], pa.string())
        return pa.table({field.name: pc.cast(texts, field.type)})
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise Undecodable(
            f"a key that is not of type {field.type} ({first_line(error)})", expected="the record key as text"
        ) from None
