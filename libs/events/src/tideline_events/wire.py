"""What values of events look like in an event log: Avro, Avro with the id of a schema registry, or JSON.

`encode` and `decode` know Avro records. A publisher passes each record through `Wire.written` just before it is sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from tideline_events.errors import InvalidEvent, PoisonEvent
from tideline_events.record import MAX_RECORD_BYTES, Record
from tideline_events.schema import URI_PREFIX, published, read_payload, revisions

AVRO = "application/avro"
JSON = "application/json"
REGISTERED = "application/vnd.confluent.avro"
"""Confluent's wire format: a zero byte, the id of the schema in four bytes, the Avro datum."""
_ID_BYTES = 5
_PLAIN_TYPES = {"string": str, "long": int, "int": int, "boolean": bool}
_JSON_TYPES = {"long": "integer", "int": "integer", "double": "number"}
_LONG = 1 << 63


class SchemaIds(Protocol):
    """Where the schemas of events are registered (`tideline_events.kafka_registry`)."""

    def register_all(self) -> None:
        """Register all schemas that are not yet known to be registered. Raises `SchemaRegistryUnavailable`, `SchemaRefused`."""

    def registered(self, dataschema: str) -> tuple[int, str]:
        """Return id and location of a schema. Raises as `register_all`, if it is not known to be registered."""

    def close(self) -> None:
        """Close the connections."""


class RowSchemas(Protocol):
    """Where the schemas of row changes are registered (`tideline_events.kafka_registry`)."""

    def schema_id(self, topic: str, part: str, avro: str) -> int:
        """Return the id of the schema of a topic's keys or values, `part` key or value; registered if it is not.

        Raises `SchemaRegistryUnavailable`, and `SchemaRefused` for a schema that the registry's rule does not allow.
        """

    def close(self) -> None:
        """Close the connections."""


class Wire:
    """The format of values of one event log: JSON if `as_json`, with ids of `registry` if there is one, else Avro."""

    def __init__(self, *, as_json: bool = False, registry: SchemaIds | None = None) -> None:
        self._as_json = as_json
        self._registry = registry

    def prepare(self) -> None:
        """Register the schemas. Without a registry, do nothing."""
        if self._registry is not None:
            self._registry.register_all()

    def close(self) -> None:
        """Close the connections to the registry."""
        if self._registry is not None:
            self._registry.close()

    def written(self, record: Record) -> Record:
        """Return `record` in this format. Deletions and positions, which are no events, stay as they are."""
        if record.value is None or not (self._as_json or self._registry) or record.header("content-type") != AVRO:
            return record
        dataschema = record.header("ce_dataschema") or ""
        if self._registry is not None:
            schema_id, location = self._registry.registered(dataschema)
            value = b"\0" + schema_id.to_bytes(4) + record.value
            changed = {"content-type": REGISTERED, "ce_dataschema": f"{location}#{dataschema.removeprefix(URI_PREFIX)}"}
        else:
            value = json_payload(read_payload(record.header("ce_type") or "", dataschema, record.value))
            changed = {"content-type": JSON}
        if len(value) > MAX_RECORD_BYTES:
            raise InvalidEvent(f"a value of {len(value)} bytes", expected=f"at most {MAX_RECORD_BYTES}")
        headers = tuple((name, changed[name].encode() if name in changed else text) for name, text in record.headers)
        return Record(record.topic, record.key, value, headers)


def read_value(content_type: str, event_type: str, dataschema: str, value: bytes) -> dict[str, Any]:
    """Return the fields of the newest known revision from a value of any format. Raises `PoisonEvent`."""
    if content_type == JSON:
        return _read_json(event_type, value)
    if content_type != REGISTERED:
        return read_payload(event_type, dataschema, value)
    if len(value) < _ID_BYTES or value[0]:
        raise PoisonEvent(f"a value that begins with {value[:_ID_BYTES]!r}", expected="a zero byte and the id of a schema")
    return read_payload(event_type, URI_PREFIX + dataschema.rpartition("#")[2], value[_ID_BYTES:])


def json_payload(fields: Mapping[str, Any]) -> bytes:
    """Return fields as JSON. Times are texts in UTC, bytes are in Base64."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), default=_json_value).encode()


def json_schema(avro: Any) -> dict[str, Any]:
    """Return the JSON schema of what `json_payload` returns for an Avro schema."""
    if isinstance(avro, list):
        inner = json_schema(next(kind for kind in avro if kind != "null"))
        return {**inner, "type": [inner["type"], "null"]}
    kind = avro["type"] if isinstance(avro, dict) else avro
    if kind == "record":
        fields = {f["name"]: {**json_schema(f["type"]), "description": f.get("doc", "")} for f in avro["fields"]}
        required = [f["name"] for f in avro["fields"] if "default" not in f]
        return {"type": "object", "description": avro.get("doc", ""), "properties": fields, "required": required}
    if kind == "array":
        return {"type": "array", "items": json_schema(avro["items"])}
    if kind == "map":
        return {"type": "object", "additionalProperties": json_schema(avro["values"])}
    if isinstance(avro, dict) and "logicalType" in avro:
        return {"type": "string", "format": "date-time"}
    if kind == "bytes":
        return {"type": "string", "contentEncoding": "base64"}
    return {"type": _JSON_TYPES.get(kind, kind)}


def _read_json(event_type: str, value: bytes) -> dict[str, Any]:
    newest = revisions(event_type)[-1]
    try:
        fields: dict[str, Any] = _typed(published(newest), json.loads(value))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise PoisonEvent(
            f"{len(value)} bytes that cannot be decoded ({type(error).__name__}: {error})",
            expected=f"a JSON object with the fields of {newest.uri}",
        ) from error
    return fields


def _typed(avro: Any, value: Any) -> Any:
    """Return a value of JSON as the value of an Avro schema. Raises what Python raises for a value that does not fit."""
    if isinstance(avro, list):
        return None if value is None else _typed(next(kind for kind in avro if kind != "null"), value)
    kind = avro["type"] if isinstance(avro, dict) else avro
    if kind == "record":
        return {f["name"]: _field(f, value) for f in avro["fields"]}
    if kind == "array":
        return [_typed(avro["items"], item) for item in _checked(value, list)]
    if kind == "map":
        return {key: _typed(avro["values"], item) for key, item in _checked(value, dict).items()}
    if isinstance(avro, dict) and "logicalType" in avro:
        return datetime.fromisoformat(_checked(value, str))
    if kind == "bytes":
        return base64.b64decode(_checked(value, str), validate=True)
    if isinstance(avro, dict):
        return _typed(kind, value)
    if kind == "double":
        return float(value if type(value) is int else _checked(value, float))
    found = _checked(value, _PLAIN_TYPES[kind])
    if isinstance(found, int) and not -_LONG <= found < _LONG:
        raise OverflowError(f"{found} has more than 64 bits")
    return found


def _field(field: Mapping[str, Any], record: Any) -> Any:
    values = _checked(record, dict)
    if field["name"] not in values and "default" in field:
        return field["default"]
    return _typed(field["type"], values[field["name"]])


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _json_value(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)
