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
from tideline_table.statistics import StatisticsCollector, is_supported

META_COLUMNS = (MetaField.COMMIT_TIME.value, MetaField.PARTITION_PATH.value, MetaField.RECORD_KEY.value)
"""The meta fields that always have statistics, as in Apache Hudi."""


def statistics_columns(schema: pa.Schema, options: Options) -> tuple[str, ...]:
    """Return the columns of `schema` that have statistics; none if the options switch them off."""
    if not options[COLUMN_STATISTICS]:
        return ()
    own = [field.name for field in schema if field.name not in (*META_FIELDS, OPERATION_FIELD) and is_supported(field.type)]
    named = column_list(options[COLUMN_STATISTICS_LIST])
    chosen = [name for name in named if name in own] if named else own[: options[COLUMN_STATISTICS_MOST]]
    return (*(name for name in META_COLUMNS if name in schema.names), *dict.fromkeys(chosen))


def collector_of(schema: pa.Schema, options: Options) -> StatisticsCollector | None:
    """Return a collector of the statistics of a file with `schema`; None if the options switch them off."""
    columns = statistics_columns(schema, options)
    return StatisticsCollector(columns) if columns else None
