"""Query filters: SQL text or Arrow expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidPredicate
from tideline_table.reader import parse_where
from tideline_table.schema import with_meta_fields

Where: TypeAlias = str | pc.Expression | None
"""A filter: SQL text (comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE over columns and literals) or an Arrow expression."""

Assigned: TypeAlias = Mapping[str, object]
"""Columns with the values that they get: SQL text, or a value of another type."""


def expression_of(where: Where, schema: pa.Schema) -> pc.Expression | None:
    """Return `where` as an Arrow expression over the columns of `schema` and the meta fields, or None to select all rows.

    Raises `InvalidPredicate` for text that is no condition, and for an expression that fits no rows of these columns.
    """
    columns = with_meta_fields(schema)
    if isinstance(where, str):
        return parse_where(where, columns) if where.strip() else None
    if where is not None:
        try:
            columns.empty_table().filter(where)
        except pa.ArrowException as error:
            reason = str(error).split("\n", 1)[0]
            raise InvalidPredicate(f"where {where} ({reason})", expected="a condition on columns of the table") from None
    return where
