"""What the operation and the options of a write mean for the table as it is now: its index, and the schema that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from tideline_table.config import (
    BULK_INSERT_SORT_COLUMNS,
    COMBINE_BEFORE_INSERT,
    COMBINE_BEFORE_UPSERT,
    INDEX_TYPE,
    INSERT_DUP_POLICY,
    RECONCILE_SCHEMA,
    SCHEMA_EVOLUTION,
    SET_NULL_FOR_MISSING_COLUMNS,
    Options,
    column_list,
)
from tideline_table.errors import SchemaMismatch, UnsupportedTable, WriteConflict
from tideline_table.index.scope import RECORD_INDEX, KeyScope, asks_record_index, check_index, check_scope, moves_rows
from tideline_table.schema import arrow_from_avro
from tideline_table.schema.arrow import field_path
from tideline_table.schema.avro import avro_evolved
from tideline_table.schema.evolution import IS_DELETED, EvolutionRule
from tideline_table.schema.meta_fields import META_FIELDS, OPERATION_FIELD
from tideline_table.table.definition import TableDefinition, TableView
from tideline_table.table.facade import Table
from tideline_table.writer import Operation
from tideline_table.writer.task import minds_known_keys


@dataclass(frozen=True, slots=True)
class WriteChoices:
    """What a write does in a table as it is now. It changes when another process creates or drops the record index."""

    named: Operation
    """The operation that the commit names."""
    operation: Operation
    """The operation that decides how rows are written; see `in_buckets`."""
    view: TableView
    """The table, with the options of the write, which name the record index of the table if they name no index."""
    holds_once: bool
    """Whether the index has one place for each key."""

    @property
    def options(self) -> Options:
        """The options of the write."""
        return self.view.options

    @classmethod
    def of(cls, table: Table, operation: Operation, given: Mapping[str, object] | None, columns: pa.Schema) -> WriteChoices:
        """Return the choices as of the last refresh of `table`, for rows with `columns`.

        Deletions that lack a partition column look their keys up in all partitions.

        Raises `InvalidOption` if `given` names an index that the table does not have, `UnsupportedTable` for rows that would move
        and are merged cell by cell, `SchemaMismatch` for deletions without partition columns in a table with a bucket index.
        """
        view = table.view(table.write_options(given))
        if operation is Operation.DELETE and KeyScope.of(view.options) is KeyScope.PARTITION and _lack_partition(view, columns):
            view = replace(view, options=table.write_options({**(given or {}), INDEX_TYPE.key: "GLOBAL_SIMPLE"}))
        options, index = view.options, view.definition.buckets
        check_moves(view, operation)
        check_index(index, options)
        if operation.overwrites:
            refuse_replacement(view, operation)
        check_scope(kept_index(view), options, only_deletes=operation is Operation.DELETE)
        holds_once = index is not None or meets_record_index(view)
        return cls(operation, in_buckets(operation, options) if holds_once else operation, view, holds_once)


def _lack_partition(view: TableView, columns: pa.Schema) -> bool:
    missing = [name for name in view.definition.keygen.partition_fields if not field_path(columns, name)]
    if missing and view.definition.buckets is not None:
        raise SchemaMismatch(
            f"keys without {', '.join(missing)}, for a table with a bucket index",
            expected="the partition columns, too: a key names a bucket of its partition",
            remedy="add these columns to the keys",
        )
    return bool(missing)


def kept_index(view: TableView) -> str:
    """Return the index type that all writers of the table have to agree with; empty if each names its own."""
    return view.definition.kept_index or (RECORD_INDEX if view.holds_keys_once else "")


def index_state(view: TableView) -> tuple[str, bool]:
    """Return what the choices of a write depend on.

    `kept_index`, and whether there is a record index, beside whatever index is kept.
    """
    return kept_index(view), view.holds_keys_once


def check_index_state(view: TableView, kept: tuple[str, bool], error: Exception | None = None) -> None:
    """Raise `WriteConflict` if `index_state` is no longer `kept`, by which the choices of a write were made.

    `error` is what showed it.
    """
    if index_state(view) != kept:
        raise WriteConflict(
            "another process created or dropped the record index since this write began", with_instant=""
        ) from error


def meets_record_index(view: TableView) -> bool:
    """Return whether a key may be in one place of the table only.

    It has a record index, also if the write looks keys up by another one.
    """
    return view.holds_keys_once or asks_record_index(view.options)


def check_moves(view: TableView, operation: Operation) -> None:
    """Raise `UnsupportedTable` if rows may move to other partitions while a merge takes their missing cells from the old row."""
    moves = operation is Operation.UPSERT and KeyScope.of(view.options) is KeyScope.TABLE and moves_rows(view.options)
    if moves and view.definition.merging.needs_older_rows:
        raise UnsupportedTable(
            f"table {view.definition.name!r} merges rows cell by cell ({view.definition.payload_class}), with a global index "
            "that moves rows",
            expected="rows that stay in their partition",
            remedy="hoodie.simple.index.update.partition.path=false, or an index by partition",
        )


def refuse_replacement(view: TableView, operation: Operation) -> None:
    """Raise `UnsupportedTable` for an operation that replaces file groups of a hash ring in a table shared with Apache Hudi.

    The partitions get other rings. A writer of Apache Hudi would go on with the ring that it has read before.
    """
    index = view.definition.ring_index
    if index is not None and not view.capabilities.changes_buckets:
        raise UnsupportedTable(
            f"{operation} in the shared table {view.definition.name!r} with {index.text}",
            expected="upsert, insert or delete: a replacement gives partitions other hash rings, and a writer of Hudi goes on "
            "with those that it has read",
            remedy="delete the rows by their keys, or write the new rows into another table",
        )


def in_buckets(operation: Operation, options: Options) -> Operation:
    """Return how rows are written by `operation` into a table with a bucket index or a record index.

    It holds each key once: without a duplicate policy, inserts update the rows whose key the table has, as log files would.
    """
    inserts = operation in (Operation.INSERT, Operation.BULK_INSERT)
    return Operation.UPSERT if inserts and not minds_known_keys(operation, options) else operation


def combines_input(operation: Operation, options: Options) -> bool:
    """Return whether input rows that share a key are combined into one before they are written."""
    if operation.looks_up_keys:
        return options[COMBINE_BEFORE_UPSERT]
    # Dropping keys that the table holds must not leave two rows of one new key either.
    return options[COMBINE_BEFORE_INSERT] or (minds_known_keys(operation, options) and options[INSERT_DUP_POLICY] == "drop")


@dataclass(frozen=True, slots=True)
class TargetSchema:
    """The schema after a write (`text` as Avro, `schema` as Arrow), and `based_on`, the Avro text that it was derived from."""

    based_on: str
    text: str
    schema: pa.Schema


def target_schema(
    definition: TableDefinition, based_on: str, incoming: pa.Schema, operation: Operation, options: Options
) -> TargetSchema:
    """Return the schema that a table with the Avro schema `based_on` has after a write of rows with the schema `incoming`.

    Key, partition and ordering columns keep their types, because a new type would change their text or their order, and rows must
    have them: null would be another key, another partition or another order. Raises `SchemaMismatch` for a change that the
    options do not allow, and for columns that rows may not lack.
    """
    table = arrow_from_avro(based_on)
    if operation is Operation.DELETE:
        return TargetSchema(based_on, based_on, table)
    beside = {*META_FIELDS, OPERATION_FIELD, IS_DELETED} - set(table.names)
    given = pa.schema([f for f in incoming if f.name not in beside])
    evolves = options[SCHEMA_EVOLUTION] != "refuse" or options[RECONCILE_SCHEMA]
    if not evolves and set(given.names) - set(table.names):
        return TargetSchema(based_on, based_on, table)  # `fit_rows` refuses the unknown column: a misspelt one lacks, too
    fixed = _fixed_columns(definition, table)
    _check_fixed(fixed, given)
    rule = EvolutionRule(missing_is_null=options[SET_NULL_FOR_MISSING_COLUMNS], keep_types=options[RECONCILE_SCHEMA])
    if not evolves:
        rule.evolve(table, given)  # only for its checks
        return TargetSchema(based_on, based_on, table)
    given = pa.schema([f.with_type(table.field(f.name).type) if f.name in fixed and f.name in table.names else f for f in given])
    empty = [f.name for f in given if pa.types.is_null(f.type) and f.name not in table.names]
    if empty:
        raise SchemaMismatch(
            f"new column {empty[0]!r} without a type (all null)", expected="a type", remedy="cast or drop the column"
        )
    evolved = rule.evolve(table, given)
    if evolved.equals(table):
        return TargetSchema(based_on, based_on, table)
    text = avro_evolved(based_on, evolved, definition.name)
    return TargetSchema(based_on, text, arrow_from_avro(text))


def _fixed_columns(definition: TableDefinition, table: pa.Schema) -> dict[str, str]:
    """Return the key, partition and ordering fields that `table` has, and what each is."""
    ordering = (name.strip() for name in definition.ordering_field.split(","))
    named: dict[str, str] = {}
    for role, names in (
        ("key", definition.keygen.key_fields),
        ("partition", definition.keygen.partition_fields),
        ("ordering", ordering),
    ):
        for name in names:
            if name and field_path(table, name):
                named.setdefault(name, role)
    return named


def _check_fixed(fixed: Mapping[str, str], given: pa.Schema) -> None:
    missing = [f"{role} column {name!r}" for name, role in fixed.items() if not field_path(given, name)]
    if missing:
        raise SchemaMismatch(
            f"rows without {', '.join(missing)}",
            expected="every key, partition and ordering column of the table, whatever the options say",
            remedy="add them; `delete` removes rows by their keys alone",
        )


def check_sort_columns(schema: pa.Schema, options: Options) -> None:
    """Raise `SchemaMismatch` if `schema` lacks a column that the options sort a bulk insert by, or it has no order."""
    for name in column_list(options[BULK_INSERT_SORT_COLUMNS]):
        if name not in schema.names:
            raise SchemaMismatch(f"sort column {name!r} is not in the schema", expected=f"columns among {', '.join(schema.names)}")
        if not _has_order(kind := schema.field(name).type):
            raise SchemaMismatch(
                f"sort column {name!r} of type {kind}", expected="a column whose values have an order: no lists or maps"
            )


def _has_order(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_has_order(child.type) for child in kind)
    return not pa.types.is_nested(kind)
