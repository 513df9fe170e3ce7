"""The schema of the table after a write: the same one, or the one that it evolves to."""

from __future__ import annotations

from collections.abc import Mapping
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
from tideline_table.schema.arrow import field_path
from tideline_table.schema.avro import avro_evolved
from tideline_table.schema.evolution import IS_DELETED, EvolutionRule
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
    """Raise `SchemaMismatch` if `schema` lacks a column that the options sort a bulk insert by."""
    for name in column_list(options[BULK_INSERT_SORT_COLUMNS]):
        if name not in schema.names:
            raise SchemaMismatch(f"sort column {name!r} is not in the schema", expected=f"columns among {', '.join(schema.names)}")
