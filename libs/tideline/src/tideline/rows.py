"""Arrow input: convert schemas, rows and keys of other libraries into types that a table can store."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from tideline_table.checked import is_rows
from tideline_table.errors import SchemaMismatch, SourceFailed
from tideline_table.extras import extra
from tideline_table.schema import named_field, storable_rows, storable_schema


class ArrowStream(Protocol):
    """Rows with the Arrow PyCapsule interface: a pyarrow Table or reader, a Polars or pandas DataFrame, a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule of a stream of record batches."""


class ArrowArray(Protocol):
    """One batch of rows with the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the capsules of the schema and of a struct array."""


class ArrowSchema(Protocol):
    """A schema with the Arrow PyCapsule interface."""

    def __arrow_c_schema__(self) -> object:
        """Return the capsule of the schema."""


Rows = ArrowStream | ArrowArray
Schema = ArrowSchema | ArrowStream | str
Keys = Rows | Iterable[object]


def table_from(rows: Rows) -> pa.Table:
    """Return all of `rows` in types that a table can store. An unnamed pandas index is dropped.

    Raises `SchemaMismatch` for an object without the Arrow PyCapsule interface, and for values that the conversion would change:
    timestamps finer than a microsecond, and unsigned numbers that are too large.
    """
    if not is_rows(rows):
        raise SchemaMismatch(
            f"rows of type {type(rows).__name__}",
            expected="an object with the Arrow PyCapsule interface: of pyarrow, pandas, Polars or DuckDB",
            remedy="pyarrow.table(...) and pyarrow.Table.from_pylist(...) convert Python objects",
        )
    return storable_rows(_read_all(rows))


def _read_all(rows: Rows) -> pa.Table:
    try:
        if isinstance(rows, pa.Table) or not hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
        stream = pa.RecordBatchReader.from_stream(rows)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(f"rows that Arrow cannot convert ({_first_line(error)})", expected="one type per column") from None
    try:
        return stream.read_all()
    except (pa.ArrowException, OSError) as error:
        # The types are known by now: what produces the rows has failed, for example a job of Spark.
        raise SourceFailed(
            f"the source of the rows failed ({_first_line(error)})",
            expected="all of its rows; nothing was written",
            remedy="see the log of the library that made the rows",
        ) from error


def schema_from(schema: Schema) -> pa.Schema:
    """Return the columns of a table for such rows: storable types, without meta fields and without an unnamed pandas index."""
    unreadable: tuple[type[Exception], ...] = (pa.ArrowException, TypeError)
    expected = "an Arrow schema, rows with the Arrow PyCapsule interface, a StructType, or columns as text"
    try:
        if hasattr(schema, "__arrow_c_schema__"):
            found = pa.schema(schema)
        elif hasattr(schema, "__arrow_c_stream__"):
            found = pa.RecordBatchReader.from_stream(schema).schema
        elif isinstance(schema, str):
            with extra("sql"):
                import duckdb
            unreadable = (duckdb.Error,)
            found = duckdb.connect().execute(f"create table rows ({schema})").table("rows").arrow().schema
        elif hasattr(schema, "fieldNames"):
            found = importlib.import_module("pyspark.sql.pandas.types").to_arrow_schema(schema, timezone="UTC")
        else:
            raise SchemaMismatch(f"a schema of type {type(schema).__name__}", expected=expected)
    except unreadable as error:
        raise SchemaMismatch(f"a schema that cannot be read ({_first_line(error)})", expected=expected) from None
    return storable_schema(found)


def keys_from(keys: Keys, schema: pa.Schema, key_fields: tuple[str, ...], partition_fields: tuple[str, ...] = ()) -> pa.Table:
    """Return `keys` as rows. They are rows or mappings with the key columns, or plain values if the key has one column.

    For a key or partition field of a struct they have the struct or a column of its dotted name. An empty list lacks no column.
    """
    if is_rows(keys):
        return table_from(keys)
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
        raise SchemaMismatch(f"keys of type {type(keys).__name__}", expected="rows with the key columns, or a list of keys")
    given: list[Any] = list(keys)
    columns: dict[str, list[Any]]
    if not given:
        columns = {name: [] for name in (*key_fields, *partition_fields)}
    elif all(isinstance(key, Mapping) for key in given):
        beside = [name for name in (*key_fields, *partition_fields) if name not in schema.names]
        names = [name for name in (*schema.names, *beside) if name in given[0]]
        columns = {name: [key.get(name) for key in given] for name in names}
    elif len(key_fields) == 1:
        columns = {key_fields[0]: given}
    else:
        raise SchemaMismatch(
            "keys that are single values", expected=f"rows or mappings with the key columns {', '.join(key_fields)}"
        )
    try:
        arrays = [_exactly(values, named_field(schema, name).type) for name, values in columns.items()]
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise SchemaMismatch(
            f"keys that Arrow cannot convert ({_first_line(error)})", expected="values of the key columns' types"
        ) from None
    return pa.Table.from_arrays(arrays, list(columns))


def _exactly(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array. Raises `ValueError` for one that Arrow would round or cut: it would be another key."""
    array = pa.array(values, kind)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        for value, found in zip(values, array.to_pylist() if pa.types.is_integer(kind) else array, strict=True):
            if not _is_exact(value, found):
                raise ValueError(f"{value!r} is no value of {kind}")
    return array


def _is_exact(value: Any, found: Any) -> bool:
    """Whether `found`, a whole number or a scalar of a time, holds all of `value`."""
    if not isinstance(found, pa.Scalar):
        return value is None or bool(value == found)
    if not isinstance(value, datetime):
        return not isinstance(value, float | Decimal)
    if pa.types.is_date(found.type):
        return value.time() == time()
    return value.microsecond % _microseconds(found.type) == 0


def _microseconds(kind: pa.DataType) -> int:
    """Return how many microseconds a unit of a timestamp type has; 1 for finer units and other types."""
    unit = kind.unit if pa.types.is_timestamp(kind) else ""
    return {"s": 1_000_000, "ms": 1000}.get(unit, 1)


def column_list(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return one name or several names as a tuple."""
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _first_line(error: Any) -> str:
    return str(error).split("\n", 1)[0]
