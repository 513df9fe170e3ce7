"""Which decoder the settings ask for, and whether they fit the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tideline_ingest.batch import Received
from tideline_ingest.changes import ChangeDecoder, Identity, ImageChanges, PlainChanges
from tideline_ingest.csv_decoding import CsvDecoder
from tideline_ingest.debezium import AvroEnvelope, AvroFlat, JsonFlat, JsonUnwrap, declared_forms, envelope_form
from tideline_ingest.debezium_types import usual_form
from tideline_ingest.decoding import AvroDecoder, Decoder, JsonDecoder, SingleObjectDecoder, text_keys
from tideline_ingest.dms import OPERATION, DmsUnwrap
from tideline_ingest.forms import Form, form
from tideline_ingest.growth import Growth, grown
from tideline_ingest.json_events import JsonEvents, Unwrap, document_of
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_ingest.settings import IngestSettings
from tideline_ingest.transformation import Transformation, TransformedChanges, source_schema
from tideline_ingest.wire_format import FramedDecoder, KeyTarget, SourceTarget, TableTarget
from tideline_runtime.errors import InvalidSetting
from tideline_table.action import TargetSchema
from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.log_format import row_schema
from tideline_table.schema import named_field
from tideline_table.table import Table

_SCHEMA_FILES = {
    "json": (0, 1),
    "csv": (0, 0),
    "avro": (1, 1),
    "avro_single_object": (1, None),
    "avro_registry": (0, 0),
    "protobuf_registry": (1, 1),
}
"""Minimum and maximum number of schema files per format."""
_REGISTERED = "avro_registry"
_PROTOBUF = "protobuf_registry"
_FLAT = "debezium_flat"
_ENVELOPE_FORMATS = {"debezium": ("json", _REGISTERED), _FLAT: ("json", _REGISTERED), "dms": ("json", "csv")}


class Choice:
    """The decoders of one application for one table. Raises `InvalidSetting` for settings that do not fit the table.

    `evolve` is that of `TableTarget`.
    """

    def __init__(
        self,
        settings: IngestSettings,
        table: Table,
        registry: SchemaRegistry | None,
        evolve: Callable[[str, pa.Schema], TargetSchema],
    ) -> None:
        self._settings = settings
        self._table = table
        self._registry = registry
        self._evolve = evolve
        self._transformation = self._transform()
        self._check()
        self._texts = [] if settings.format == _PROTOBUF else [_schema_text(path) for path in settings.schema_files]

    def growth(self, records: Sequence[Received]) -> Growth | None:
        """Return what the table needs for the fields of `records`; None if it gets no columns for fields that it lacks."""
        settings = self._settings
        if settings.unknown_fields != "evolve":
            return None
        with_value = [record for record in records if record.value is not None]
        if settings.envelope == "none":
            return grown(self._table.schema, with_value, lambda record: [(document_of(record.value, "a value"), None)])
        unwrap = self._unwrap()
        return grown(
            self._table.schema,
            with_value,
            lambda record: [(event.image, event.declared) for event in unwrap(record) if not event.deletes],
        )

    def decoder(self, schema: pa.Schema | None = None) -> ChangeDecoder:
        """Return a decoder for the present schema of the table, or for `schema`, which has it and more."""
        schema = self._source(schema or self._table.schema)
        if self._transformation is None:
            return self._changes(schema)
        identity = None if self._settings.envelope == "none" else self._identity
        try:
            changes = self._changes(schema)
            self._transformation.check(changes.changes([]).rows.schema)
        except InvalidOption as error:
            raise error if isinstance(error, InvalidSetting) else _wrong("transform", error.found, error.expected) from None
        return TransformedChanges(changes, self._transformation, identity)

    def _changes(self, schema: pa.Schema) -> ChangeDecoder:
        try:
            if self._settings.envelope == "dms":
                return self._dms(schema)
            if self._settings.envelope != "none":
                return self._debezium(schema)
        except InvalidOption as error:
            raise error if isinstance(error, InvalidSetting) else _wrong("envelope", error.found, error.expected) from None
        return PlainChanges(self._values(schema), self._keys() if self._settings.tombstones == "delete" else None)

    def _transform(self) -> Transformation | None:
        settings = self._settings
        if settings.transform_fields and (not settings.transform or settings.schema_files):
            raise _wrong("transform_fields", "setting 'transform_fields'", "a `transform`, and no `schema_files`")
        if not settings.transform:
            return None
        if settings.unknown_fields == "evolve":
            raise _wrong("unknown_fields", "unknown_fields = 'evolve' with a `transform`", "refuse or ignore")
        try:
            found = Transformation(settings.transform)
        except InvalidOption as error:
            raise _wrong("transform", error.found, error.expected) from None
        if settings.envelope != "none" and (changed := found.changed(self._identity.columns)) is not None:
            raise _wrong(
                "transform",
                f"a transformation of column {changed!r} with an envelope",
                "key and partition columns as the events have them, because deletions name rows by them",
            )
        return found

    def _source(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that records have, if they are other than those of the table."""
        if self._transformation is None:
            return schema
        try:
            return source_schema(schema, self._settings.transform_fields)
        except InvalidOption as error:
            raise _wrong("transform_fields", error.found, error.expected) from None

    def _target(self, schema: pa.Schema) -> TableTarget | SourceTarget:
        """Return what fits rows of a registry's schemas: the table, or what the transformation reads."""
        if self._transformation is None:
            return TableTarget(self._table.schema_json, schema, self._evolve)
        return SourceTarget(schema, ignores_unknown=self._ignores_unknown)

    @property
    def _identity(self) -> Identity:
        return Identity(self._table.schema, self._table.definition.keygen)

    @property
    def _ignores_unknown(self) -> bool:
        # If the table grows, what is left unknown is null or empty.
        return self._settings.unknown_fields != "refuse"

    def _unwrap(self) -> Unwrap:
        columns = self._settings.envelope_columns
        if self._settings.envelope == "debezium":
            return JsonUnwrap(self._identity, columns)
        if self._settings.envelope == _FLAT:
            return JsonFlat(self._identity, columns, self._table.schema.names)
        return DmsUnwrap(self._identity, columns, keeps_operation=OPERATION in self._table.schema.names)

    def _debezium(self, schema: pa.Schema) -> ChangeDecoder:
        settings, identity, deletes = self._settings, self._identity, self._settings.tombstones == "delete"
        if settings.format == _REGISTERED:
            assert self._registry is not None
            target, reader = self._target(schema), AvroFlat if settings.envelope == _FLAT else AvroEnvelope
            framed = FramedDecoder(
                self._registry, target, reader=lambda text: reader(text, target.schema, identity, settings.envelope_columns)
            )
            return ImageChanges(framed, identity, self._keys() if deletes else None)
        taken = {name: envelope_form(path, schema.field(name).type) for name, path in settings.envelope_columns.items()}
        fixed = {name: found for name, found in {**self._forms(schema), **taken}.items() if found is not None}
        asked = {*settings.forms, *settings.envelope_columns}
        loose = {f.name: found for f in schema if f.name not in asked and (found := usual_form(f.type)) is not None}

        def forms_of(declared: Any) -> Mapping[str, Form]:
            return {**(loose if declared is None else declared_forms(declared, schema)), **fixed}

        return JsonEvents(self._unwrap(), schema, identity, forms_of, ignores_unknown=self._ignores_unknown, tombstones=deletes)

    def _dms(self, schema: pa.Schema) -> ChangeDecoder:
        forms = self._forms(schema)
        if self._settings.format == "csv":
            return ImageChanges(self._csv(schema, forms, OPERATION), self._identity)
        return JsonEvents(self._unwrap(), schema, self._identity, lambda _: forms, ignores_unknown=self._ignores_unknown)

    def _csv(self, schema: pa.Schema, forms: Mapping[str, Form], operation: str | None = None) -> CsvDecoder:
        settings = self._settings
        unknown = [name for name in settings.csv.columns if name not in schema.names and name != operation]
        if unknown and settings.unknown_fields == "refuse":
            raise _wrong("csv.columns", f"setting 'csv.columns' names {unknown[0]!r}", "a column, or unknown_fields = 'ignore'")
        try:
            return CsvDecoder(schema, settings.csv, forms, operation)
        except InvalidOption as error:
            raise _wrong("csv.columns", error.found, error.expected) from None

    def _protobuf(self, schema: pa.Schema) -> Decoder:
        from tideline_ingest.protobuf_decoding import ProtobufDecoder  # noqa: PLC0415 - few applications need its library

        settings = self._settings
        path = settings.schema_files[0]
        try:
            content = path.read_bytes()
            return ProtobufDecoder(
                content, settings.protobuf_message, schema, self._forms(schema), ignores_unknown=self._ignores_unknown
            )
        except OSError as error:
            raise _wrong("schema_files", f"setting 'schema_files': {path} ({error})", "a readable descriptor set") from None
        except InvalidOption as error:
            raise error if isinstance(error, InvalidSetting) else _wrong("protobuf_message", error.found, error.expected) from None

    def _forms(self, schema: pa.Schema) -> dict[str, Form]:
        """Return the forms that the setting `forms` names. Raises `InvalidSetting` for one that a column cannot have."""
        given = self._settings.forms
        found = {f.name: form(given["*"], f.type) for f in schema if "*" in given and pa.types.is_timestamp(f.type)}
        for name, wanted in given.items():
            if name == "*":
                continue
            known = form(wanted, schema.field(name).type) if name in schema.names else None
            if known is None and (wanted != "text" or name not in schema.names):
                kind = f"a column of type {schema.field(name).type}" if name in schema.names else "no column of the table"
                raise _wrong("forms", f"form {wanted!r} of {name!r}, which is {kind}", "a form that the type has")
            found[name] = known
        return {name: known for name, known in found.items() if known is not None}

    def _values(self, schema: pa.Schema) -> Decoder:
        settings, texts = self._settings, self._texts
        if settings.format == _REGISTERED:
            assert self._registry is not None
            return FramedDecoder(self._registry, self._target(schema))
        if settings.format == "csv":
            return self._csv(schema, self._forms(schema))
        if settings.format == _PROTOBUF:
            return self._protobuf(schema)
        try:
            if settings.format == "json":
                schema = row_schema(texts[0]) if texts else schema
                return JsonDecoder(schema, self._forms(schema), ignores_unknown=self._ignores_unknown)
            return AvroDecoder(texts[0]) if settings.format == "avro" else SingleObjectDecoder(texts)
        except (CorruptMetadata, InvalidOption) as error:
            if isinstance(error, InvalidSetting):
                raise
            raise _wrong("schema_files", str(error), "an Avro record schema that Arrow can hold") from error

    def _keys(self) -> Callable[[Sequence[bytes | None]], pa.Table]:
        keygen, schema = self._table.definition.keygen, self._table.schema
        if self._settings.key_format == "text":
            field = named_field(schema, keygen.key_fields[0])
            return lambda keys: text_keys(keys, field)
        named = [named_field(schema, name).with_nullable(nullable=True) for name in (*keygen.key_fields, *keygen.partition_fields)]
        if self._settings.key_format == _REGISTERED:
            assert self._registry is not None
            # A key can be a bare value only if one column identifies the row.
            framed = FramedDecoder(self._registry, KeyTarget(pa.schema(named)), named[0].name if len(named) == 1 else None)
            return lambda keys: framed.decode([key if key is not None else b"" for key in keys])
        decoder = JsonDecoder(pa.schema(named), ignores_unknown=self._settings.unknown_fields == "ignore")
        return lambda keys: decoder.decode([key if key is not None else b"null" for key in keys])

    def _check(self) -> None:
        settings = self._settings
        if settings.poison == "dead_letter" and not settings.dead_letter_topic:
            raise _wrong("dead_letter_topic", "setting 'dead_letter_topic' is unset", "a topic, because poison = 'dead_letter'")
        if settings.dead_letter_topic in settings.topics:
            raise _wrong("dead_letter_topic", f"setting 'dead_letter_topic' is {settings.dead_letter_topic!r}", "none of `topics`")
        self._check_envelope()
        if settings.tombstones == "delete":
            self._check_tombstones()
        if is_registered(settings) and not settings.schema_registry:
            raise _wrong("schema_registry", "setting 'schema_registry' is unset", f"a URL, because of {_REGISTERED!r}")
        if settings.unknown_fields == "evolve" and (settings.format != "json" or settings.schema_files):
            raise _wrong(
                "unknown_fields",
                "setting 'unknown_fields' is 'evolve'",
                "JSON without schema_files (tables follow schemas of a registry with options tideline.write.schema.evolution)",
            )
        count, (least, most) = len(settings.schema_files), _SCHEMA_FILES[settings.format]
        if count < least or (most is not None and count > most):
            expected = f"{least}" if most == least else f"{least} to {most}" if most else f"at least {least}"
            raise _wrong("schema_files", f"setting 'schema_files' names {count} for format {settings.format!r}", expected)

    def _check_tombstones(self) -> None:
        settings, keygen = self._settings, self._table.definition.keygen
        if settings.operation != "upsert":
            raise _wrong("tombstones", f"tombstones = 'delete' with operation = '{settings.operation}'", "the operation upsert")
        named = (*keygen.key_fields, *keygen.partition_fields)
        if settings.key_format == "text" and (len(keygen.key_fields) > 1 or keygen.partition_fields):
            raise _wrong(
                "key_format",
                "setting 'key_format' is 'text', which cannot name rows of this table",
                f"json: an object of {', '.join(named)}",
            )
        inside = [name for name in named if name not in self._table.schema.names]
        if settings.key_format == _REGISTERED and inside and len(set(named)) > 1:
            raise _wrong(
                "key_format",
                f"setting 'key_format' is {_REGISTERED!r}, and the row is named by fields of structs ({', '.join(inside)})",
                "json: an object with their dotted names, which no Avro record can have",
            )

    def _check_envelope(self) -> None:
        settings = self._settings
        if settings.envelope == "none":
            if settings.envelope_columns:
                raise _wrong("envelope_columns", "setting 'envelope_columns' without an envelope", "an `envelope`")
            return
        formats = _ENVELOPE_FORMATS[settings.envelope]
        if settings.format not in formats:
            raise _wrong(
                "format", f"format {settings.format!r} with envelope {settings.envelope!r}", f"one of {', '.join(formats)}"
            )
        if settings.schema_files:
            raise _wrong("schema_files", "setting 'schema_files' with an envelope", "none: rows have the columns of the table")
        if settings.operation != "upsert":
            raise _wrong("operation", f"operation {settings.operation!r} with an envelope", "upsert")
        if settings.envelope == _FLAT:
            if settings.tombstones == "delete" and settings.format == "json" and settings.key_format != "json":
                raise _wrong("key_format", f"setting 'key_format' is {settings.key_format!r} with {_FLAT!r}", "json")
        elif settings.tombstones != "refuse":
            raise _wrong("tombstones", "tombstones = 'delete' with an envelope", "refuse: its events delete, tombstones do nothing")
        if settings.format == "csv" and settings.envelope_columns:
            raise _wrong("envelope_columns", "setting 'envelope_columns' with CSV", "none: a line has all columns")
        for name in settings.envelope_columns:
            if name not in (*self._table.schema.names, *settings.transform_fields):
                raise _wrong("envelope_columns", f"setting 'envelope_columns' names {name!r}", "a column of the table")


def is_registered(settings: IngestSettings) -> bool:
    """Return whether the settings need a schema registry."""
    return settings.format == _REGISTERED or (settings.tombstones == "delete" and settings.key_format == _REGISTERED)


def _schema_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong("schema_files", f"setting 'schema_files': {path} ({error})", "a readable Avro schema") from None


def _wrong(name: str, found: str, expected: str) -> InvalidSetting:
    return InvalidSetting(found, name=f"ingest.{name}", origin="settings", expected=expected)
