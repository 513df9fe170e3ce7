"""Columns whose conditions Spark's Parquet scan must evaluate on rows, not on statistics in footers."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField, StructType


def scanned_columns(schema: StructType) -> list[Column]:
    """Return the columns of a scan with `schema`, under their names and with their values.

    Conditions on floating columns, and on fields of structs with some, do not reach the scan. Statistics in footers leave out
    NaN, which is greater than all numbers to Spark: files of earlier versions of Tideline would lose rows.
    """
    return [_column(field) for field in schema]


def _column(field: StructField) -> Column:
    column = f.col(f"`{field.name}`")
    if isinstance(field.dataType, FloatType | DoubleType):
        return f.nanvl(column, column).alias(field.name)
    # Spark pushes down conditions on fields of structs, but not on what is in lists and maps.
    if isinstance(field.dataType, StructType) and _has_floats(field.dataType):
        return f.when(column.isNotNull(), column).alias(field.name)
    return column


def _has_floats(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind)
    return isinstance(kind, FloatType | DoubleType)
