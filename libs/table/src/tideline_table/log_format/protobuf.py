"""The parts of the protobuf wire format that HFiles and ORC use: varints, and fields that are numbers or bytes."""

from __future__ import annotations

from collections.abc import Iterator

from tideline_table.errors import CorruptMetadata

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_SHIFT = 63


def read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """Read a number (0 to 2^64 - 1). Return it and the offset after it. Raises `CorruptMetadata` if it is truncated or longer."""
    value = 0
    for shift in range(0, _MAX_SHIFT + 1, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128 and value < 2**64:
            return value, at
    raise CorruptMetadata(f"a truncated or too long varint before byte {at}", expected="at most ten bytes")


def read_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a message, in order. Raises `CorruptMetadata` for a malformed message."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = read_varint(message, at)
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
        else:
            raise CorruptMetadata(f"a protobuf field of wire type {kind}", expected="a number or bytes")
        if length > len(message) - at:
            raise CorruptMetadata(f"a protobuf field of {length} bytes", expected=f"at most {len(message) - at}")
        yield number, message[at : at + length]
        at += length


def varint(number: int) -> bytes:
    """Return a number as `read_varint` reads it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def number_field(field: int, value: int) -> bytes:
    """Return a field that is a number."""
    return varint(field << 3) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Return a field of bytes: a text or a message."""
    return varint(field << 3 | 2) + varint(len(value)) + value
