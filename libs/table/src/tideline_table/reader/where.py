"""Filters written as SQL text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def parse_where(text: str, schema: pa.Schema) -> pc.Expression:
    """Return the condition `text` (`tideline_table.reader.predicate`) on rows of `schema`. Raises `InvalidPredicate`."""
    from tideline_table.reader import predicate

    return predicate.parse_where(text, schema)
