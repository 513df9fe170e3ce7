"""Options of input rows and the schema of writes and reads."""

from __future__ import annotations

from tideline_table.option import Option

COMBINE_BEFORE_UPSERT = Option(
    "hoodie.combine.before.upsert",
    True,
    "Keep one row per record key of the input: the one with the largest ordering value, the last on ties.",
)
COMBINE_BEFORE_INSERT = Option("hoodie.combine.before.insert", False, "The same for insert and bulk_insert.")
INSERT_DUP_POLICY = Option(
    "hoodie.datasource.insert.dup.policy",
    "none",
    "What insert and bulk_insert do with keys that the table already has: write them again, drop them, or fail.",
    choices=("none", "drop", "fail"),
)
BULK_INSERT_SORT_COLUMNS = Option(
    "hoodie.bulkinsert.user.defined.partitioner.sort.columns",
    "",
    "Comma-separated columns by which bulk_insert sorts the rows of a partition.",
)
BULK_INSERT_SORT_MODE = Option(
    "hoodie.bulkinsert.sort.mode",
    "NONE",
    "GLOBAL_SORT and PARTITION_SORT: bulk_insert sorts the rows of a partition by record key, unless columns are named. The others "
    "leave them in their order. No file has rows of two partitions, whatever the mode.",
    choices=("NONE", "GLOBAL_SORT", "PARTITION_SORT", "PARTITION_PATH_REPARTITION", "PARTITION_PATH_REPARTITION_AND_SORT"),
)
SCHEMA_EVOLUTION = Option(
    "tideline.write.schema.evolution",
    "refuse",
    "What a write does with columns that the table lacks and with types wider than the table's: reject them, or evolve the table "
    "as Apache Hudi's writers do. New columns are nullable and last; whole numbers become larger, floating or text types, decimals "
    "become wider.",
    choices=("refuse", "evolve"),
)
RECONCILE_SCHEMA = Option(
    "hoodie.datasource.write.reconcile.schema",
    False,
    "Evolve the table by new columns only: types stay, and columns that the input lacks become null, but for key, partition and "
    "ordering columns.",
)
SET_NULL_FOR_MISSING_COLUMNS = Option(
    "hoodie.write.set.null.for.missing.columns",
    False,
    "Nullable columns that the input lacks become null, also in rows that the table has. If false, such input is refused. Input "
    "without a key, partition or ordering column is always refused.",
)
READ_OPERATION_FIELD = Option(
    "hoodie.allow.operation.metadata.field",
    False,
    "Read rows with the meta field _hoodie_operation: the operation of their writer, null if the writer did not record it.",
)
