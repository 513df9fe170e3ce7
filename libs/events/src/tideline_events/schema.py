"""Avro schemas of the payloads: every published revision of every event type, and the conversion between bytes and values.

Schemas evolve full-transitively (rules in `schemas/README.md`). A payload of an unknown, newer revision is read up to the fields of
the newest known one. An older payload is filled with defaults.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import fastavro
from fastavro.types import Schema

from tideline_events.errors import InvalidEvent, PoisonEvent

URI_PREFIX = "urn:tideline:schema:"
_FILE_NAME = re.compile(r"(?P<type>[a-z0-9.]+)\.r(?P<revision>[1-9][0-9]*)\.avsc")
_URI = re.compile(r"urn:tideline:schema:(?P<type>[a-z0-9.]+):(?P<revision>[1-9][0-9]{0,5})")

# Errors of fastavro for bytes that do not fit the schema; a fuzz test in tests/unit/events checks that the list is complete.
_UNREADABLE = (EOFError, ValueError, OverflowError, IndexError, TypeError, KeyError, StopIteration, MemoryError)


@dataclass(frozen=True, slots=True)
class PayloadSchema:
    """One revision of the payload of one event type."""

    event_type: str
    revision: int
    source: str
    parsed: Schema

    @property
    def record_name(self) -> str:
        """Full name of the Avro record."""
        return str(self.parsed["name"])  # type: ignore[call-overload, index] # the schema of an event is a record

    @property
    def uri(self) -> str:
        """Value of the `dataschema` attribute."""
        return f"{URI_PREFIX}{self.event_type}:{self.revision}"


@functools.cache
def revisions(event_type: str) -> tuple[PayloadSchema, ...]:
    """Return all published revisions of a type in order; empty for an unknown type."""
    return every_schema().get(event_type, ())


def published(schema: PayloadSchema) -> Any:
    """Return the schema as its file says it."""
    return _loaded(schema.source)


@functools.cache
def _loaded(source: str) -> Any:
    return json.loads(source)


@functools.cache
def every_schema() -> Mapping[str, tuple[PayloadSchema, ...]]:
    """Return all published revisions of all types."""
    found: dict[str, list[PayloadSchema]] = {}
    for file in resources.files("tideline_events").joinpath("schemas").iterdir():
        if match := _FILE_NAME.fullmatch(file.name):
            source = file.read_text(encoding="utf-8")
            schema = PayloadSchema(match["type"], int(match["revision"]), source, fastavro.parse_schema(json.loads(source)))
            found.setdefault(schema.event_type, []).append(schema)
    return {name: tuple(sorted(schemas, key=lambda s: s.revision)) for name, schemas in found.items()}


def write_payload(schema: PayloadSchema, fields: Mapping[str, Any]) -> bytes:
    """Return the Avro binary of `fields`.

    Raises `InvalidEvent` for values that do not fit the schema, and missing or unknown fields.
    """
    sink = io.BytesIO()
    try:
        fastavro.schemaless_writer(sink, schema.parsed, fields, strict=True)
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
        raise InvalidEvent(f"fields that do not fit the schema: {error}", expected=f"the fields of {schema.uri}") from error
    return sink.getvalue()


def read_payload(event_type: str, dataschema: str, payload: bytes) -> dict[str, Any]:
    """Return the fields of the newest known revision. `dataschema` is the URI of the schema by which the payload was written.

    Raises `PoisonEvent` for a URI of another event type, and for bytes that do not fit the schema.
    """
    match = _URI.fullmatch(dataschema)
    if match is None or match["type"] != event_type:
        raise PoisonEvent(f"dataschema {dataschema!r}", expected=f"a revision of {URI_PREFIX}{event_type}")
    known = revisions(event_type)
    newest, revision = known[-1], int(match["revision"])
    writer = known[revision - 1] if revision <= newest.revision else newest
    source = io.BytesIO(payload)
    try:
        fields = fastavro.schemaless_reader(source, writer.parsed, newest.parsed if writer is not newest else None)
    except _UNREADABLE as error:
        raise PoisonEvent(
            f"{len(payload)} bytes that cannot be decoded ({type(error).__name__}: {error})",
            expected=f"an Avro datum of {dataschema}",
        ) from error
    left_over = len(payload) - source.tell()
    if left_over and revision <= newest.revision:
        raise PoisonEvent(f"{left_over} bytes after a payload of {dataschema}", expected="none")
    if not isinstance(fields, dict):
        raise PoisonEvent(f"a payload that is a {type(fields).__name__}", expected=f"a record of {dataschema}")
    return fields


def type_text(kind: object) -> str:
    """Return the type of a field of an Avro schema in words."""
    if isinstance(kind, list):
        return " or ".join(type_text(k) for k in kind)
    if isinstance(kind, dict):
        inner = kind.get("items") or kind.get("values")
        return (
            f"{kind['type']} of {type_text(inner)}" if inner else str(kind.get("logicalType") or kind.get("name") or kind["type"])
        )
    return str(kind)
