"""Decodes Protobuf behind the header of a schema registry: a zero byte, the id of a schema, the position of a message in it."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import SerializationError

from tideline_ingest.decoding import JsonDecoder
from tideline_ingest.errors import Undecodable
from tideline_ingest.forms import Form, first_line, form
from tideline_table.errors import InvalidOption
from tideline_table.extras import extra

with extra("kafka"):
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass
    from google.protobuf.unknown_fields import UnknownFieldSet

_AS_TEXT = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
_WRAPPED = "Value"
_PACKAGE = "google.protobuf."


class ProtobufDecoder:
    """Messages of the type `name` in the descriptor set `content` (`protoc --include_imports --descriptor_set_out`).

    Rows have the columns of `schema`. Absent fields are null if the message tells absence, otherwise the default. Raises
    `InvalidOption` for a set without that message.
    """

    def __init__(self, content: bytes, name: str, schema: pa.Schema, forms: Mapping[str, Form], *, ignores_unknown: bool) -> None:
        pool = DescriptorPool()
        try:
            for file in FileDescriptorSet.FromString(content).file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(name)
        except (DecodeError, TypeError, KeyError) as error:
            raise InvalidOption(
                f"no message {name!r} in the descriptor set ({first_line(error)})", expected="its full name, with the package"
            ) from None
        self._message = GetMessageClass(descriptor)
        self._name = descriptor.full_name
        self._indexes = _indexes(descriptor)
        self._ignores_unknown = ignores_unknown
        raw = {f.name: found for f in schema if (found := form("base64", f.type)) and pa.types.is_binary(f.type)}
        self._rows = JsonDecoder(schema, {**raw, **forms}, ignores_unknown=ignores_unknown)

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`."""
        return self._rows.decode([self._row(value) for value in values])

    def _row(self, value: bytes) -> bytes:
        header = SchemaId("PROTOBUF")
        try:
            content = header.from_bytes(io.BytesIO(value)).read()
            if header.message_indexes != self._indexes:
                raise Undecodable(
                    f"message {header.message_indexes} of a schema",
                    expected=f"{self._message.DESCRIPTOR.full_name}, {self._indexes}",
                )
            message = self._message.FromString(content)
            return json.dumps(self._fields(message, ""), allow_nan=False).encode()
        except (SerializationError, struct.error, EOFError, DecodeError, ValueError, RecursionError) as error:
            raise Undecodable(f"a value that is no message ({first_line(error)})", expected=f"a header and {self._name}") from None

    def _fields(self, message: Message, above: str) -> dict[str, Any]:
        if not self._ignores_unknown and len(unknown := UnknownFieldSet(message)):
            raise Undecodable(f"unexpected field {above}{unknown[0].field_number}", expected="fields of the descriptor set")
        return {
            field.name: self._value(field, getattr(message, field.name), above)
            for field in message.DESCRIPTOR.fields
            if not field.has_presence or message.HasField(field.name)
        }

    def _value(self, field: FieldDescriptor, value: Any, above: str) -> Any:
        path = f"{above}{field.name}"
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                raise Undecodable(f"field {path!r} is a map, which has no form here", expected="a table without its column")
            return [self._single(field, item, path) for item in value]
        return self._single(field, value, path)

    def _single(self, field: FieldDescriptor, value: Any, path: str) -> Any:
        if field.message_type is not None:
            name = field.message_type.full_name
            if name in _AS_TEXT:
                return value.ToJsonString()
            if name.startswith(_PACKAGE) and name.endswith(_WRAPPED) and name != f"{_PACKAGE}{_WRAPPED}":
                return self._single(field.message_type.fields_by_name["value"], value.value, path)
            return self._fields(value, f"{path}.")
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        if isinstance(value, bytes):
            if "." in path:
                raise Undecodable(f"field {path!r} has bytes inside of a message", expected="bytes as a column of their own")
            return base64.b64encode(value).decode()
        return value


def _indexes(descriptor: Descriptor) -> list[int]:
    """Return the position of a message in its file, from the outermost message that contains it."""
    above = descriptor.containing_type
    siblings = list(above.nested_types if above is not None else descriptor.file.message_types_by_name.values())
    at = next(n for n, found in enumerate(siblings) if found.full_name == descriptor.full_name)
    return [*(_indexes(above) if above is not None else []), at]
