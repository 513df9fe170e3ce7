"""Values of a statement in the types of a table's columns, by the rules of Spark's setting `storeAssignmentPolicy=ANSI`.

A plain cast makes null of a text that is no number, and wraps numbers that are too large.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tideline_table.errors import SchemaMismatch

_TIMES = DateType, TimestampType, TimestampNTZType


def stored(column: Column, given: DataType, wanted: DataType, name: str) -> Column:
    """Return the values of a `column` of type `given` as those of the column `name`, whose type is `wanted`.

    Raises `SchemaMismatch` for types between which values are not assigned. A number that does not fit fails the job.
    """
    if given == wanted:
        return column
    if not _is_assigned(given, wanted):
        raise SchemaMismatch(
            f"{given.simpleString()} for column {name!r} of type {wanted.simpleString()}",
            expected="a type that Spark assigns to it",
            remedy="cast it in the statement",
        )
    cast = column.cast(wanted)
    if not isinstance(wanted, NumericType):
        return cast
    number, whole = column.cast("double"), cast.cast("double")
    lost = cast.isNull()
    if isinstance(wanted, IntegralType):
        lost = lost | (f.abs(whole - number) >= 1) | f.isnan(number)
    elif isinstance(wanted, FloatType | DoubleType):
        infinite = f.lit(float("inf"))
        lost = lost | ((f.abs(whole) == infinite) & (f.abs(number) != infinite))
    told = f.concat(f.lit(f"column {name!r} of type {wanted.simpleString()} cannot hold "), column.cast("string"))
    return f.when(column.isNotNull() & lost, f.raise_error(told)).otherwise(cast)


def _is_assigned(given: DataType, wanted: DataType) -> bool:
    """Return whether values of a type are assigned to a column of another one; between nested types, part by part."""
    if isinstance(given, NullType) or given == wanted:
        return True
    if isinstance(wanted, StringType):
        return isinstance(given, AtomicType)
    if isinstance(given, NumericType) and isinstance(wanted, NumericType):
        return True
    if isinstance(given, _TIMES) and isinstance(wanted, _TIMES):
        return True
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return _is_assigned(given.elementType, wanted.elementType)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return _is_assigned(given.keyType, wanted.keyType) and _is_assigned(given.valueType, wanted.valueType)
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        pairs = zip(given.fields, wanted.fields, strict=False)
        return len(given.fields) == len(wanted.fields) and all(_is_assigned(a.dataType, b.dataType) for a, b in pairs)
    return False
