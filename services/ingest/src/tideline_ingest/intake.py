"""Turns the records of a batch into the rows and deletions of a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tideline_ingest.batch import Batch, Received, order_of
from tideline_ingest.decoding import AvroDecoder, Decoder, JsonDecoder, SingleObjectDecoder, text_keys
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_ingest.screening import Rejected, rejected_among
from tideline_ingest.settings import IngestSettings
from tideline_ingest.wire_format import FramedDecoder, KeyTarget, TableTarget
from tideline_runtime.errors import InvalidSetting
from tideline_table.action import TargetSchema, target_schema
from tideline_table.errors import CorruptMetadata, InvalidOption, InvalidRecord, SchemaMismatch, UnsafePath
from tideline_table.index import KeyScope
from tideline_table.log_format import row_schema
from tideline_table.schema import MetaField, fit_rows, named_field
from tideline_table.storage import exists
from tideline_table.table import Table
from tideline_table.writer import Operation, PreparedInput, prepare_input

_PLAIN_BYTES = 200
"""Length of names, in bytes, that every storage accepts."""
_SCHEMA_FILES = {"json": (0, 1), "avro": (1, 1), "avro_single_object": (1, None), "avro_registry": (0, 0)}
"""Minimum and maximum number of schema files per format."""
_REGISTERED = "avro_registry"


@dataclass(frozen=True, slots=True)
class Intake:
    """The content of one commit: a batch, or the first part of one (`batch`), as rows and deletions."""

    batch: Batch
    rows: pa.Table
    removed: pa.Table | None
    """Keys of tombstones; None if there are none."""
    rejected: tuple[Rejected, ...]
    superseded: int
    """Number of rows of the batch that a later tombstone of the batch removes."""
    tombstones: int


class TableIntake:
    """Decodes and checks records for one table, with the current schema of the table.

    `registry` holds the schemas of `avro_registry`. Raises `InvalidSetting` for settings that do not fit the table.
    """

    def __init__(self, settings: IngestSettings, table: Table, registry: SchemaRegistry | None = None) -> None:
        self._settings = settings
        self._table = table
        self._registry = registry
        self._operation = Operation(settings.operation)
        self._deletes = settings.tombstones == "delete"
        self._check_settings()
        self._texts = [_schema_text(path) for path in settings.schema_files]
        self._follow_schema()

    def take(self, batch: Batch) -> Intake:
        """Decode `batch`, or the part of it that one commit can hold.

        Raises `PoisonRecord` for the first record that cannot be ingested, unless `poison` is "dead_letter"; `InvalidSetting` if no
        record fits the changed table schema; `RegistryUnavailable` and `RegistryRefused` before judging any record.
        """
        if self._registry is not None:
            self._registry.begin_batch()
        # After the read: a producer adds a column to the table before it sends values for it.
        self._table.refresh()
        if self._table.schema_json != self._schema_json:
            self._follow_schema()
        while True:
            rejected, good = self._screened(batch)
            rows_at = [i for i, r in enumerate(good) if r.value is not None]
            removed_at = [i for i, r in enumerate(good) if r.value is None]
            rows = self._decoded([good[i] for i in rows_at])
            if not removed_at:
                return Intake(batch, rows, None, tuple(rejected), 0, 0)
            keys = self._decoded_keys([good[i] for i in removed_at])
            order = order_of(good, rows_at, self._prepared(rows).identities, removed_at, self._prepared_keys(keys).identities)
            if not order.cut:
                superseded = int((~order.stays).sum())
                return Intake(batch, rows.filter(pa.array(order.stays)), keys, tuple(rejected), superseded, len(removed_at))
            batch = batch.without(order.cut)

    def _follow_schema(self) -> None:
        self._values = self._value_decoder()
        self._keys = self._key_decoder() if self._deletes else None
        try:
            self._prepared(self._values.decode([]))
        except SchemaMismatch as error:
            raise _wrong(
                "schema_files", f"rows of the declared schema do not fit the table: {error}", "a schema that fits"
            ) from error
        self._schema_json = self._table.schema_json

    def _screened(self, batch: Batch) -> tuple[list[Rejected], list[Received]]:
        with_value = [r for r in batch.records if r.value is not None]
        without = [r for r in batch.records if r.value is None]
        stops = self._settings.poison == "fail"
        at_most = 1 if stops else None
        rejected = rejected_among(with_value, lambda records: self._prepared(self._decoded(records)), at_most)
        if self._deletes:
            rejected += rejected_among(without, lambda records: self._prepared_keys(self._decoded_keys(records)), at_most)
        else:
            rejected += [Rejected(r, "the record has no value, and tombstones = 'refuse'") for r in without]
        rejected.sort(key=lambda found: (found.record.place, found.record.offset))
        if rejected and stops:
            raise rejected[0].error()
        aside = {(found.record.place, found.record.offset) for found in rejected}
        return rejected, [r for r in batch.records if (r.place, r.offset) not in aside]

    def _decoded(self, records: Sequence[Received]) -> pa.Table:
        return self._values.decode([r.value for r in records if r.value is not None])

    def _prepared(self, rows: pa.Table) -> PreparedInput:
        """Prepare rows as the write does.

        So rows that the write would reject are found here, where the error can name the record.
        """
        definition = self._table.definition
        target = self._target(self._table.schema_json, rows.schema)
        prepared = prepare_input(
            rows,
            target.schema,
            definition.keygen,
            definition.merging,
            self._operation,
            combine=False,
            scope=self._scope,
            has_record_index=self._table.has_record_index,
        )
        self._check_names(prepared.partition_paths)
        return prepared

    def _target(self, based_on: str, incoming: pa.Schema) -> TargetSchema:
        return target_schema(self._table.definition, based_on, incoming, self._operation, self._table.options)

    def _check_names(self, partitions: pa.ChunkedArray) -> None:
        """Raise `InvalidRecord` for a partition name that the storage cannot hold. Only unusual names need a request."""
        for name in pc.unique(partitions).to_pylist():
            if name.isprintable() and len(name.encode()) <= _PLAIN_BYTES:
                continue
            try:
                exists(self._table.storage, name)
            except UnsafePath as error:
                raise InvalidRecord(
                    f"partition path {name[:_PLAIN_BYTES]!r}", expected=error.expected or "a folder name that the storage allows"
                ) from None

    def _decoded_keys(self, records: Sequence[Received]) -> pa.Table:
        assert self._keys is not None
        return self._keys([r.key for r in records])

    def _prepared_keys(self, keys: pa.Table) -> PreparedInput:
        # Not prepared like a delete, which keeps only one of several tombstones of a key.
        keygen, schema = self._table.definition.keygen, self._table.schema
        fitted = fit_rows(keys, pa.schema([named_field(schema, name).with_nullable(nullable=True) for name in keys.column_names]))
        prepared = pa.table({MetaField.RECORD_KEY.value: keygen.written_keys(fitted)})
        return PreparedInput(prepared, keygen.partition_paths(fitted), self._scope)

    @property
    def _scope(self) -> KeyScope:
        return KeyScope.of(self._table.options)

    def _check_settings(self) -> None:
        settings, keygen = self._settings, self._table.definition.keygen
        if settings.poison == "dead_letter" and not settings.dead_letter_topic:
            raise _wrong("dead_letter_topic", "setting 'dead_letter_topic' is unset", "a topic, because poison = 'dead_letter'")
        if settings.dead_letter_topic in settings.topics:
            raise _wrong("dead_letter_topic", f"setting 'dead_letter_topic' is {settings.dead_letter_topic!r}", "none of `topics`")
        if self._deletes and self._operation is not Operation.UPSERT:
            raise _wrong("tombstones", f"tombstones = 'delete' with operation = '{self._operation}'", "the operation upsert")
        if self._deletes and settings.key_format == "text" and (len(keygen.key_fields) > 1 or keygen.partition_fields):
            raise _wrong(
                "key_format",
                "setting 'key_format' is 'text', which cannot name rows of this table",
                f"json: an object of {', '.join((*keygen.key_fields, *keygen.partition_fields))}",
            )
        inside = [name for name in (*keygen.key_fields, *keygen.partition_fields) if name not in self._table.schema.names]
        if (
            self._deletes
            and settings.key_format == _REGISTERED
            and inside
            and len({*keygen.key_fields, *keygen.partition_fields}) > 1
        ):
            raise _wrong(
                "key_format",
                f"setting 'key_format' is {_REGISTERED!r}, and the row is named by fields of structs ({', '.join(inside)})",
                "json: an object with their dotted names, which no Avro record can have",
            )
        if is_registered(settings) and not settings.schema_registry:
            raise _wrong("schema_registry", "setting 'schema_registry' is unset", f"a URL, because of {_REGISTERED!r}")
        count, (least, most) = len(settings.schema_files), _SCHEMA_FILES[settings.format]
        if count < least or (most is not None and count > most):
            expected = f"{least}" if most == least else f"{least} to {most}" if most else f"at least {least}"
            raise _wrong("schema_files", f"setting 'schema_files' names {count} for format {settings.format!r}", expected)

    def _value_decoder(self) -> Decoder:
        settings, texts, table = self._settings, self._texts, self._table
        if settings.format == _REGISTERED:
            assert self._registry is not None
            return FramedDecoder(self._registry, TableTarget(table.schema_json, table.schema, self._target))
        try:
            if settings.format == "json":
                schema = row_schema(texts[0]) if texts else self._table.schema
                return JsonDecoder(schema, ignores_unknown=settings.unknown_fields == "ignore")
            return AvroDecoder(texts[0]) if settings.format == "avro" else SingleObjectDecoder(texts)
        except (CorruptMetadata, InvalidOption) as error:
            raise _wrong("schema_files", str(error), "an Avro record schema that Arrow can hold") from error

    def _key_decoder(self) -> Callable[[Sequence[bytes | None]], pa.Table]:
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
