"""Turns the records of a batch into the rows and deletions of a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_ingest.batch import Batch, Received, order_of
from tideline_ingest.changes import ChangeDecoder, Changes
from tideline_ingest.choice import Choice
from tideline_ingest.debezium import check_told
from tideline_ingest.errors import Undecodable
from tideline_ingest.offsets import Place
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_ingest.screening import REFUSALS, Rejected, rejected_among
from tideline_ingest.settings import IngestSettings
from tideline_runtime.errors import InvalidSetting
from tideline_table.action import TargetSchema, target_schema
from tideline_table.errors import InvalidRecord, SchemaMismatch, UnsafePath
from tideline_table.index import KeyScope
from tideline_table.merge import MergeMode, OpenCells
from tideline_table.schema import MetaField, fit_rows, named_field
from tideline_table.storage import exists
from tideline_table.table import Table
from tideline_table.writer import Operation, PreparedInput, prepare_input

_PLAIN_BYTES = 200
"""Length of names, in bytes, that every storage accepts."""


@dataclass(frozen=True, slots=True)
class Intake:
    """The content of one commit: a batch, or the first part of one (`batch`), as rows and deletions."""

    batch: Batch
    rows: pa.Table
    removed: pa.Table | None
    """Keys of deleted rows; None if there are none."""
    rejected: tuple[Rejected, ...]
    superseded: int
    """Number of rows of the batch that a later deletion of the batch removes."""
    deletions: int


class TableIntake:
    """Decodes and checks records for one table, with the current schema of the table.

    `registry` holds the schemas of `avro_registry`. Raises `InvalidSetting` for settings that do not fit the table.
    """

    _decoder: ChangeDecoder
    """Set by `_follow_schema`, like the others."""
    _schema: pa.Schema
    """The columns of the table, and those that it gets from the batch."""
    _schema_json: str

    def __init__(self, settings: IngestSettings, table: Table, registry: SchemaRegistry | None = None) -> None:
        self._settings = settings
        self._table = table
        self._registry = registry
        self._operation = Operation(settings.operation)
        self._refused: Mapping[tuple[Place, int], str] = {}
        """Why records of the batch cannot get columns for their fields."""
        self._choice = Choice(settings, table, registry, self._target)
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
        growth = self._choice.growth(batch.records)
        self._refused = growth.refused if growth else {}
        if self._schema != (wanted := growth.schema if growth else self._table.schema):
            self._decoder, self._schema = self._choice.decoder(wanted), wanted
        while True:
            rejected, good, found = self._screened(batch)
            changes = self._without_empty(found)
            if changes.removed is None:
                return Intake(batch, changes.rows, None, tuple(rejected), 0, 0)
            row_ids, removed, removed_at, removed_ids = self._identified(changes, changes.removed)
            order = order_of(good, changes.rows_at, row_ids, removed_at, removed_ids, last_wins=self._last_wins)
            if not order.cut:
                rows, superseded = changes.rows.filter(pa.array(order.stays)), int((~order.stays).sum())
                keys = removed.filter(pa.array(order.removes))
                return Intake(batch, rows, keys if keys.num_rows else None, tuple(rejected), superseded, removed.num_rows)
            batch = batch.without(order.cut)

    def _without_empty(self, changes: Changes) -> Changes:
        """Return `changes` without new columns that have no values: the records that had them cannot be ingested."""
        known = self._table.schema.names
        empty = [
            n for n in changes.rows.column_names if n not in known and changes.rows.column(n).null_count == changes.rows.num_rows
        ]
        return replace(changes, rows=changes.rows.drop_columns(empty)) if empty and self._schema != self._table.schema else changes

    def _identified(self, changes: Changes, removed: pa.Table) -> tuple[pa.ChunkedArray, pa.Table, Sequence[int], pa.ChunkedArray]:
        """Return the identities of rows, and the deletions with their positions and identities.

        A record that moved a row deletes it where it was, unless that is the same place for the table.
        """
        row_ids, removed_ids = self._prepared(changes.rows).identities, self._prepared_keys(removed).identities
        both = set(changes.rows_at) & set(changes.removed_at)
        if not both:
            return row_ids, removed, changes.removed_at, removed_ids
        own = {(at, found) for at, found in zip(changes.rows_at, row_ids.to_pylist(), strict=True) if at in both}
        places = zip(changes.removed_at, removed_ids.to_pylist(), strict=True)
        kept = np.array([n for n, place in enumerate(places) if place not in own], np.int64)
        return row_ids, removed.take(pa.array(kept)), [changes.removed_at[n] for n in kept], removed_ids.take(pa.array(kept))

    def _follow_schema(self) -> None:
        self._decoder, self._schema = self._choice.decoder(), self._table.schema
        try:
            self._prepared(self._decoder.changes([]).rows)
        except SchemaMismatch as error:
            raise InvalidSetting(
                f"rows of the declared schema do not fit the table: {error}",
                name="ingest.transform" if self._settings.transform else "ingest.schema_files",
                origin="settings",
                expected="a schema that fits",
            ) from error
        self._schema_json = self._table.schema_json

    def _screened(self, batch: Batch) -> tuple[list[Rejected], Sequence[Received], Changes]:
        """Return the records that cannot be ingested, the others, and what the others do."""
        try:
            return [], batch.records, self._accept(batch.records)
        except REFUSALS:
            stops = self._settings.poison == "fail"
            rejected = rejected_among(batch.records, self._accept, 1 if stops else None)
        if rejected and stops:
            raise rejected[0].error()
        aside = {(found.record.place, found.record.offset) for found in rejected}
        good = [r for r in batch.records if (r.place, r.offset) not in aside]
        return rejected, good, self._decoder.changes(good)

    def _accept(self, records: Sequence[Received]) -> Changes:
        if self._refused:
            reason = next((self._refused[r.place, r.offset] for r in records if (r.place, r.offset) in self._refused), None)
            if reason is not None:
                raise Undecodable(reason)
        changes = self._decoder.changes(records)
        if self._needs_values:
            check_told(changes.rows)
        self._prepared(changes.rows)
        if changes.removed is not None:
            self._prepared_keys(changes.removed)
        return changes

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

    def _prepared_keys(self, keys: pa.Table) -> PreparedInput:
        # Not prepared like a delete, which keeps only one of several tombstones of a key.
        keygen, schema = self._table.definition.keygen, self._table.schema
        fitted = fit_rows(keys, pa.schema([named_field(schema, name).with_nullable(nullable=True) for name in keys.column_names]))
        prepared = pa.table({MetaField.RECORD_KEY.value: keygen.written_keys(fitted)})
        return PreparedInput(prepared, keygen.partition_paths(fitted), self._scope)

    @property
    def _needs_values(self) -> bool:
        """Whether events of Debezium may lack values that the table does not keep by its merge rule."""
        partial = self._table.definition.merging.partial
        return self._settings.envelope.startswith("debezium") and (partial is None or partial.cells is not OpenCells.MARKED)

    @property
    def _last_wins(self) -> bool:
        """Whether a written row replaces whatever its place held, so that a deletion just before it changes nothing."""
        merging = self._table.definition.merging
        is_plain = merging.mode is MergeMode.COMMIT_TIME and not merging.needs_older_rows and merging.deletion is None
        return is_plain and not merging.combining_field and self._scope is KeyScope.PARTITION

    @property
    def _scope(self) -> KeyScope:
        return KeyScope.of(self._table.options)
