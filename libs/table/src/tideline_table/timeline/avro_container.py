"""Avro object container files with one record, whatever release wrote them: decoded with the schema that they carry.

Files come from storage that others write to, and Avro lets a few bytes claim any number of items. So only what a file's own bytes can hold
is ever built: one block, unpacked up to a limit, and no collection whose items take no bytes.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

import fastavro

from tideline_table.errors import CorruptMetadata

MAX_BYTES = 256 * 1024 * 1024
"""Neither a file nor its only block, unpacked, is larger."""
MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_DEPTH = 64
_EMPTY = frozenset({"null"})


def read_one_record(content: bytes, path: str) -> dict[str, Any]:
    """The one record of a container file. Raises `CorruptMetadata`, which names `path`, for everything else."""
    if len(content) > MAX_BYTES:
        raise _broken(path, f"has {len(content)} bytes", f"at most {MAX_BYTES} bytes")
    try:
        return _record(content, path)
    except CorruptMetadata:
        raise
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise _broken(path, f"cannot be read ({type(error).__name__}: {error})", "an Avro container with one record") from None


def _broken(path: str, found: str, expected: str) -> CorruptMetadata:
    return CorruptMetadata(f"timeline file {path} {found}", expected=expected, remedy="restore the file; nothing was changed")


def _record(content: bytes, path: str) -> dict[str, Any]:
    source = io.BytesIO(content)
    if source.read(len(MAGIC)) != MAGIC:
        raise _broken(path, "is no Avro container", f"{MAGIC!r} in front")
    header = _header(source)
    sync = source.read(_SYNC_BYTES)
    schema = _without_logical_types(json.loads(header["avro.schema"]), 0)
    _least_bytes(schema, {}, 0, path)
    count, size = _read_long(source), _read_long(source)
    if count != 1:
        raise _broken(path, f"has {count} records in its first block", "exactly one record")
    block = source.read(max(size, 0))
    if size < 0 or len(block) != size or source.read(_SYNC_BYTES) != sync or len(sync) != _SYNC_BYTES:
        raise _broken(path, "has a block that is cut off", "a block and its sync marker")
    if source.read(1):
        raise _broken(path, "goes on behind its first block", "exactly one record")
    data = io.BytesIO(_unpacked(block, header.get("avro.codec", b"null"), path))
    record = fastavro.schemaless_reader(data, fastavro.parse_schema(schema), None)
    if not isinstance(record, dict):
        raise _broken(path, f"holds a {type(record).__name__}", "a record")
    return record


def _header(source: io.BytesIO) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while count := _read_long(source):
        if count < 0:
            _read_long(source)
        for _ in range(abs(count)):
            name = _read_bytes(source).decode()
            found[name] = _read_bytes(source)
    return found


def _read_long(source: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = source.read(1)
        if not byte or shift > 63:
            raise ValueError("a number that is cut off")
        value |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return (value >> 1) ^ -(value & 1)


def _read_bytes(source: io.BytesIO) -> bytes:
    length = _read_long(source)
    found = source.read(length) if length >= 0 else b""
    if len(found) != length:
        raise ValueError(f"{length} bytes that are cut off")
    return found


def _unpacked(block: bytes, codec: bytes, path: str) -> bytes:
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise _broken(path, f"has codec {codec!r}", "null or deflate")
    unpacker = zlib.decompressobj(wbits=-15)
    data = unpacker.decompress(block, MAX_BYTES)
    if unpacker.unconsumed_tail:
        raise _broken(path, f"unpacks to more than {MAX_BYTES} bytes", "less")
    return data


def _without_logical_types(schema: Any, depth: int) -> Any:
    """Plans and metadata have none; decoding decimals of any precision is nothing that a stranger's file should ask for."""
    if depth > 4 * _MAX_DEPTH:
        raise ValueError(f"a schema nested deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        return [_without_logical_types(branch, depth + 1) for branch in schema]
    if isinstance(schema, dict):
        return {k: _without_logical_types(v, depth + 1) if k != "default" else v for k, v in schema.items() if k != "logicalType"}
    return schema


def _least_bytes(schema: Any, named: dict[str, int], depth: int, path: str) -> int:
    """The fewest bytes that a value takes (only 0 or more matters). Refuses collections whose items may take none."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"a schema nested deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        for branch in schema:
            _least_bytes(branch, named, depth + 1, path)
        return 1
    if isinstance(schema, str):
        return named.get(schema, named.get(schema.rpartition(".")[2], 0 if schema in _EMPTY else 1))
    return _least_complex(schema, named, depth, path)


def _least_complex(schema: Mapping[str, Any], named: dict[str, int], depth: int, path: str) -> int:
    kind = schema["type"]
    name = str(schema.get("name", "")).rpartition(".")[2]
    if kind in ("array", "map"):
        if not _least_bytes(schema["items" if kind == "array" else "values"], named, depth + 1, path) and kind == "array":
            raise _broken(path, "has an array whose items take no bytes", "items of at least one byte")
        return 1
    if kind in ("record", "error"):
        named[name] = 1  # while it is open: no value of it is finite unless a union or collection, of at least one byte, ends it
        named[name] = sum(_least_bytes(f["type"], named, depth + 1, path) for f in schema["fields"])
        return named[name]
    if kind == "fixed":
        named[name] = min(int(schema["size"]), 1)
        return named[name]
    if kind == "enum":
        named[name] = 1
        return 1
    return _least_bytes(kind, named, depth + 1, path)
