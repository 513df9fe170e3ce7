"""Which columns of a table have statistics, by the options of its writers."""

from __future__ import annotations

import pyarrow as pa

from tideline_table.config import (
    COLUMN_STATISTICS,
    COLUMN_STATISTICS_LIST,
    COLUMN_STATISTICS_MOST,
    Options,
    column_list,
)
from tideline_table.schema.meta_fields import META_FIELDS, OPERATION_FIELD, MetaField
from tideline_table.schema.nested import field_of, field_path
from tideline_table.statistics import StatisticsCollector, is_supported

META_COLUMNS = (MetaField.COMMIT_TIME.value, MetaField.PARTITION_PATH.value, MetaField.RECORD_KEY.value)
"""The meta fields that always have statistics, as in Apache Hudi."""


def statistics_columns(schema: pa.Schema, options: Options) -> tuple[str, ...]:
    """Return the columns of `schema` that have statistics; none if the options switch them off.

    Fields of structs, by their dotted paths, have some only if the options name them, as in Apache Hudi.
    """
    if not options[COLUMN_STATISTICS]:
        return ()
    named = column_list(options[COLUMN_STATISTICS_LIST]) or schema.names
    most = len(named) if column_list(options[COLUMN_STATISTICS_LIST]) else options[COLUMN_STATISTICS_MOST]
    paths = {name: field_path(schema, name) for name in named if name not in (*META_FIELDS, OPERATION_FIELD)}
    chosen = [name for name, path in paths.items() if path and is_supported(field_of(schema, path).type)][:most]
    return (*(name for name in META_COLUMNS if name in schema.names), *chosen)


def collector_of(schema: pa.Schema, options: Options) -> StatisticsCollector | None:
    """Return a collector of the statistics of a file with `schema`; None if the options switch them off."""
    columns = statistics_columns(schema, options)
    return StatisticsCollector(columns) if columns else None
