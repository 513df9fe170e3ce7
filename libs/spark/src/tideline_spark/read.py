"""Reading a table as a DataFrame: Spark's own Parquet scan over the exact files of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tideline_spark.settings import KNOWN_FILES, planning_settings
from tideline_spark.tagging import scan_files
from tideline_table.errors import SchemaMismatch
from tideline_table.schema import with_meta_fields
from tideline_table.table import Table


def read(spark: SparkSession, table: Table | str, *, as_of: str = "", columns: Sequence[str] | None = None) -> DataFrame:
    """A snapshot query, now or at the instant `as_of` (in): all columns with meta fields first unless `columns` names them.

    The files are fixed when this returns; cleaning may take them once they are older than it retains. An open table is refreshed first.
    Raises what `Table.open` and `Table.slices` raise, and `SchemaMismatch` for unknown columns.
    """
    if isinstance(table, str):
        table = Table.open(table)
    else:
        table.refresh()
    full = with_meta_fields(table.schema)
    for name in columns or ():
        if name not in full.names:
            raise SchemaMismatch(f"column {name!r} is not in the table", expected=f"one of {', '.join(full.names)}")
    wanted = full if columns is None else pa.schema([full.field(name) for name in columns])
    schema = from_arrow_schema(pa.schema([field.with_nullable(nullable=True) for field in wanted]))
    slices = table.slices(as_of)
    if not slices:
        return spark.createDataFrame([], schema)
    with planning_settings(spark, KNOWN_FILES):
        return scan_files(spark, table.storage.root, [s.path for s in slices], schema)
