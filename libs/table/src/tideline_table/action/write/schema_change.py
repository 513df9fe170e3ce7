"""The schema of the table after a write: the same one, or the one that it evolves to."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tideline_table.config import (
    BULK_INSERT_SORT_COLUMNS,
    RECONCILE_SCHEMA,
    SCHEMA_EVOLUTION,
    SET_NULL_FOR_MISSING_COLUMNS,
    Options,
    column_list,
)
from tideline_table.errors import SchemaMismatch
from tideline_table.schema import arrow_from_avro
from tideline_table.schema.avro import avro_evolved
from tideline_table.schema.evolution import EvolutionRule
from tideline_table.schema.fit import IS_DELETED
from tideline_table.schema.meta_fields import META_FIELDS, OPERATION_FIELD
from tideline_table.table.definition import TableDefinition
from tideline_table.writer import Operation


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

    Key, partition and ordering columns keep their types, because a new type would change their text or their order. Raises
    `SchemaMismatch` for a change that the options do not allow.
    """
    table = arrow_from_avro(based_on)
    if operation is Operation.DELETE:
        return TargetSchema(based_on, based_on, table)
    beside = {*META_FIELDS, OPERATION_FIELD, IS_DELETED} - set(table.names)
    given = pa.schema([f for f in incoming if f.name not in beside])
    if options[SCHEMA_EVOLUTION] == "refuse" and not options[RECONCILE_SCHEMA]:
        _check_missing(table, given, options)
        return TargetSchema(based_on, based_on, table)
    fixed = {*definition.keygen.key_fields, *definition.keygen.partition_fields, definition.ordering_field}
    given = pa.schema([f.with_type(table.field(f.name).type) if f.name in fixed and f.name in table.names else f for f in given])
    empty = [f.name for f in given if pa.types.is_null(f.type) and f.name not in table.names]
    if empty:
        raise SchemaMismatch(
            f"new column {empty[0]!r} without a type (all null)", expected="a type", remedy="cast or drop the column"
        )
    rule = EvolutionRule(missing_is_null=options[SET_NULL_FOR_MISSING_COLUMNS], keep_types=options[RECONCILE_SCHEMA])
    evolved = rule.evolve(table, given)
    if evolved.equals(table):
        return TargetSchema(based_on, based_on, table)
    text = avro_evolved(based_on, evolved, definition.name)
    return TargetSchema(based_on, text, arrow_from_avro(text))


def _check_missing(table: pa.Schema, given: pa.Schema, options: Options) -> None:
    missing = [name for name in table.names if name not in given.names]
    if missing and not options[SET_NULL_FOR_MISSING_COLUMNS]:
        raise SchemaMismatch(
            f"rows without column(s) {', '.join(map(repr, missing))}",
            expected="every column of the table",
            remedy=f"add them, or set {SET_NULL_FOR_MISSING_COLUMNS.key}=true if they may become null",
        )


def check_sort_columns(schema: pa.Schema, options: Options) -> None:
    """Raise `SchemaMismatch` if `schema` lacks a column that the options sort a bulk insert by."""
    for name in column_list(options[BULK_INSERT_SORT_COLUMNS]):
        if name not in schema.names:
            raise SchemaMismatch(f"sort column {name!r} is not in the schema", expected=f"columns among {', '.join(schema.names)}")
