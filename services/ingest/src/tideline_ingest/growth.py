"""Columns that a table gains because JSON records have fields that it lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tideline_ingest.batch import Received
from tideline_ingest.debezium_types import declared_type
from tideline_ingest.errors import Undecodable
from tideline_ingest.offsets import Place

Json = Any
Images = Callable[[Received], Iterable[tuple[Mapping[str, Json], Json]]]
"""Returns the rows that a record writes, each with Kafka Connect's schema of it, if there is one. Raises `Undecodable`."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that Avro, and so a table, can have."""
_RESERVED = ("_hoodie_", "_tideline_")


@dataclass(frozen=True, slots=True)
class Growth:
    """The schema with the columns that the fields of a batch need, and why fields of some records cannot have a column."""

    schema: pa.Schema
    refused: Mapping[tuple[Place, int], str]
    """By place and offset of the record."""


def grown(schema: pa.Schema, records: Sequence[Received], images: Images) -> Growth:
    """Return `schema` with nullable columns (and members of structs) for the fields of `records` that it lacks.

    A declared field has its declared type. Otherwise the values decide: whole numbers, numbers, booleans, text, structs and lists
    of these; of values that have no type in common the first one decides. Nulls and empty values add nothing.
    """
    found: dict[str, list[Json]] = {}
    declared: dict[str, pa.DataType] = {}
    refused: dict[tuple[Place, int], str] = {}
    for record in records:
        try:
            for image, shape in images(record):
                for name, kind in _declared(shape, schema).items():
                    declared.setdefault(name, kind)
                _check_names(image)
                for name, value in image.items():
                    found.setdefault(name, []).append(value)
        except Undecodable as error:
            refused[record.place, record.offset] = str(error)
    known = [_grown_field(field, found.get(field.name, ())) for field in schema]
    fresh = {name: declared.get(name) or _kind_of(values) for name, values in found.items() if name not in schema.names}
    return Growth(pa.schema([*known, *(pa.field(name, kind) for name, kind in fresh.items() if kind is not None)]), refused)


def _declared(shape: Json, schema: pa.Schema) -> dict[str, pa.DataType]:
    try:
        return {field["field"]: declared_type(field) for field in shape or () if field["field"] not in schema.names}
    except (ValueError, KeyError, TypeError) as error:
        raise Undecodable(f"a field whose type no column can have ({error})", expected="a type of a column") from None


def _check_names(value: Json, above: str = "") -> None:
    if isinstance(value, list):
        for item in value:
            _check_names(item, above)
    elif isinstance(value, dict):
        for name, inside in value.items():
            if not _NAME.fullmatch(name) or name.startswith(_RESERVED):
                raise Undecodable(f"unexpected field {above + name[:60]!r}, which no column can be named after", expected="a name")
            _check_names(inside, f"{above}{name}.")


def _grown_field(field: pa.Field, values: Sequence[Json]) -> pa.Field:
    kind = _grown_type(field.type, values)
    return field if kind == field.type else field.with_type(kind)


def _grown_type(kind: pa.DataType, values: Sequence[Json]) -> pa.DataType:
    if pa.types.is_struct(kind):
        documents = [value for value in values if isinstance(value, dict)]
        members = [_grown_field(f, [d[f.name] for d in documents if f.name in d]) for f in kind]
        names = {f.name for f in kind}
        fresh = dict.fromkeys(name for d in documents for name in d if name not in names)
        kinds = {name: _kind_of([d[name] for d in documents if name in d]) for name in fresh}
        return pa.struct([*members, *(pa.field(name, found) for name, found in kinds.items() if found is not None)])
    if pa.types.is_list(kind):
        items = [item for value in values if isinstance(value, list) for item in value]
        return pa.list_(_grown_field(kind.value_field, items))
    return kind


def _kind_of(values: Sequence[Json]) -> pa.DataType | None:
    """Return the type of a column for values; None if they tell none."""
    given = [value for value in values if value is not None]
    if not given:
        return None
    first = next((value for value in given if value not in ([], {})), given[0])
    if isinstance(first, bool):
        return pa.bool_()
    if isinstance(first, int | float | Decimal):
        whole = all(isinstance(value, int) for value in given if isinstance(value, int | float | Decimal))
        return pa.int64() if whole else pa.float64()
    if isinstance(first, str):
        return pa.string()
    if isinstance(first, list):
        kind = _kind_of([item for value in given if isinstance(value, list) for item in value])
        return None if kind is None else pa.list_(kind)
    kind = _grown_type(pa.struct([]), given)
    return kind if kind.num_fields else None
