"""The five meta fields, the first columns of every row of a Hudi table (format reference 3.4)."""

from __future__ import annotations

import enum

import pyarrow as pa


class MetaField(enum.StrEnum):
    """Names of the meta fields, in column order."""

    COMMIT_TIME = "_hoodie_commit_time"
    COMMIT_SEQNO = "_hoodie_commit_seqno"
    RECORD_KEY = "_hoodie_record_key"
    PARTITION_PATH = "_hoodie_partition_path"
    FILE_NAME = "_hoodie_file_name"


OPERATION_FIELD = "_hoodie_operation"
"""A sixth meta field that some writers add: the operation on the row (`I`, `-U`, `U`, `D`)."""
META_FIELDS: tuple[str, ...] = tuple(field.value for field in MetaField)


def with_meta_fields(schema: pa.Schema, *, operation: bool = False) -> pa.Schema:
    """Return `schema` with the five meta fields first; `operation` adds the sixth."""
    names = [*META_FIELDS, OPERATION_FIELD] if operation else META_FIELDS
    return pa.schema([pa.field(name, pa.string()) for name in names] + [f for f in schema if f.name not in names])


def without_meta_fields(schema: pa.Schema) -> pa.Schema:
    """Return `schema` without the five meta fields."""
    return pa.schema([field for field in schema if field.name not in META_FIELDS])
