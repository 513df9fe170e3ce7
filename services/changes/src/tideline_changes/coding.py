"""Keys and values of row changes as bytes: JSON, JSON with schemas, or Avro with the id of a schema registry."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import fastavro

from tideline_changes.avro import avro_name, avro_schema
from tideline_changes.connect import Form, dumps
from tideline_events import REGISTERED
from tideline_table.errors import UnsupportedTable

Row = dict[str, Any]


class Coder(Protocol):
    """Makes the bytes of one topic's records."""

    @property
    def content_type(self) -> str:
        """The header `content-type` of the records."""

    def key(self, row: Row) -> bytes:
        """Return the key of a row, of which only the key columns are given."""

    def value(self, before: Row | None, after: Row | None, more: Row) -> bytes:
        """Return the envelope: the row before and after, and the fields `source`, `op` and `ts_ms` in `more`."""


@dataclass(frozen=True, slots=True)
class JsonCoder:
    """JSON; with heads, each in an object with `schema` and `payload`."""

    key_form: Form
    row: Form
    key_head: str = ""
    value_head: str = ""
    content_type: str = "application/json"

    @classmethod
    def with_schemas(cls, key: Form, row: Form, envelope: Row) -> JsonCoder:
        """Return the coder for Kafka Connect's JSON converter. `envelope` is the schema of values."""
        return cls(key, row, _head(key.schema), _head(envelope))

    def key(self, row: Row) -> bytes:
        """See `Coder.key`."""
        return self._wrapped(self.key_head, dumps(self.key_form.json(row)))

    def value(self, before: Row | None, after: Row | None, more: Row) -> bytes:
        """See `Coder.value`."""
        rows = {"before": before and self.row.json(before), "after": after and self.row.json(after)}
        return self._wrapped(self.value_head, dumps({**rows, **more}))

    @staticmethod
    def _wrapped(head: str, text: str) -> bytes:
        return (f"{head}{text}}}" if head else text).encode()


class AvroCoder:
    """Avro in Confluent's wire format. The schemas are registered as `<topic>-key` and `<topic>-value`."""

    content_type = REGISTERED

    def __init__(self, key: Form, row: Form, envelope: Row, register: Callable[[str, str], int]) -> None:
        """`register` takes `key` or `value` and a schema, and returns its id. Raises what it raises."""
        self._key, self._row = key, row
        self._key_head, self._key_schema = _registered(register, "key", key.schema)
        self._value_head, self._value_schema = _registered(register, "value", envelope)

    def key(self, row: Row) -> bytes:
        """See `Coder.key`."""
        made = {avro_name(column): value for column, value in self._key.json(row).items()}
        return self._written(self._key_head, self._key_schema, made)

    def value(self, before: Row | None, after: Row | None, more: Row) -> bytes:
        """See `Coder.value`."""
        rows = {"before": before and self._row.json(before), "after": after and self._row.json(after)}
        return self._written(self._value_head, self._value_schema, {**rows, **more})

    @staticmethod
    def _written(head: bytes, schema: Any, value: Row) -> bytes:
        sink = io.BytesIO()
        sink.write(head)
        try:
            fastavro.schemaless_writer(sink, schema, value)
        except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
            raise UnsupportedTable(f"a row that does not fit the schema of its table: {error}") from error
        return sink.getvalue()


def _registered(register: Callable[[str, str], int], part: str, connect: Row) -> tuple[bytes, Any]:
    avro = avro_schema(connect)
    return b"\0" + register(part, dumps(avro)).to_bytes(4), fastavro.parse_schema(avro)


def _head(schema: Row) -> str:
    return f'{{"schema":{dumps({**schema, "optional": False})},"payload":'
