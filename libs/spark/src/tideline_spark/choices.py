"""What a DataFrame write does in the table as it is now, and what it refuses there. No job of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from tideline_spark.options import SPARK_COLLECT_BYTES
from tideline_table.action import WriteChoices
from tideline_table.config import INSERT_DUP_POLICY, Options
from tideline_table.errors import UnsupportedTable
from tideline_table.index import asks_record_index
from tideline_table.table import Table
from tideline_table.writer import Operation, minds_known_keys


def write_choices(table: Table, operation: Operation, options: Mapping[str, object] | None, columns: pa.Schema) -> WriteChoices:
    """Return what a write of a DataFrame with `columns` does in the table as of its last refresh. Raises as `WriteChoices.of`.

    With a record index, inserts are planned as upserts. With a bucket index they remain inserts: tasks route them to buckets.
    """
    found = WriteChoices.of(table, operation, options, columns)
    return replace(found, operation=found.operation if table.definition.buckets is None else operation)


def refuse_look_ups(table: Table, operation: Operation, options: Options) -> None:
    """Raise `UnsupportedTable` for look-ups that only the driver can do.

    They are those of a duplicate policy with a bucket index, and those of an overwrite with a record index.
    """
    of_table = f"source that does not go through the driver and table {table.definition.name!r}"
    estimate = f"source that Spark estimates at no more than {SPARK_COLLECT_BYTES.key}"
    if operation.overwrites and (table.has_record_index or asks_record_index(options)):
        raise UnsupportedTable(
            f"{operation} for a {of_table} with a record index",
            expected=f"a {estimate}: its keys are looked up in partitions that stay",
            remedy="raise that option, or delete the partitions and upsert the rows",
        )
    if table.definition.buckets is None or operation.looks_up_keys or operation.overwrites:
        return
    if minds_known_keys(operation, options):
        raise UnsupportedTable(
            f"{INSERT_DUP_POLICY.key}={options[INSERT_DUP_POLICY]} for a {of_table} with a bucket index",
            expected=f"an insert whose {estimate}",
            remedy="raise that option, write the source in parts, or leave the policy out: keys that the table has are updated",
        )
