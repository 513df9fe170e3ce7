"""How tables and results look in notebooks: small HTML tables, whose every value is escaped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import pyarrow as pa


def facts(title: str, values: Mapping[str, object]) -> str:
    """Return a table of names and values."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{_text(value)}</td></tr>' for name, value in values.items()
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"


def fields_of(result: object) -> str:
    """Return the fields of a dataclass as a table, titled by its class."""
    assert dataclasses.is_dataclass(result)
    values = {found.name.replace("_", " "): getattr(result, found.name) for found in dataclasses.fields(result)}
    return facts(type(result).__name__, values)


def columns_of(schema: pa.Schema) -> str:
    """Return the columns of a schema with their types as one text."""
    return ", ".join(f"{column.name}: {column.type}" for column in schema)


def _text(value: object) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return escape(str(value))
    if isinstance(value, Sequence):
        return "<br>".join(escape(str(one)) for one in value)
    return escape(str(value))
