"""Avro object container files with one record, from any Hudi release: decoded with the schema in the file.

The files are not trusted, and in Avro a few bytes can declare any number of items. Therefore the decoder builds only what the bytes
of the file can hold: one block, decompressed up to a limit, and no array whose items take no bytes.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

import fastavro

from tideline_table.errors import RESTORE_FILE, CorruptMetadata

MAX_BYTES = 256 * 1024 * 1024
"""Size limit for a file, and for its only block after decompression."""
MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_FIELDS = {
    "magic": {"type": "fixed", "name": "Magic", "size": len(MAGIC)},
    "meta": {"type": "map", "values": "bytes"},
    "sync": {"type": "fixed", "name": "Sync", "size": _SYNC_BYTES},
    "count": "long",
    "size": "long",
}
_HEADER = fastavro.parse_schema(
    {"type": "record", "name": "Header", "fields": [{"name": n, "type": k} for n, k in _FIELDS.items()]}
)
"""The header of a file, and the count of records and size of its first block."""
_MAX_DEPTH = 64
_EMPTY = frozenset({"null"})


def decode_document(content: bytes, path: str) -> dict[str, Any]:
    """Return the only record of a container file. Raises `CorruptMetadata`, which names `path`, for any other content."""
    if len(content) > MAX_BYTES:
        raise _broken(path, f"has {len(content)} bytes", f"at most {MAX_BYTES} bytes")
    try:
        return _record(content, path)
    except CorruptMetadata:
        raise
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise _broken(path, f"cannot be read ({type(error).__name__}: {error})", "an Avro container with one record") from None


def _broken(path: str, found: str, expected: str) -> CorruptMetadata:
    return CorruptMetadata(f"timeline file {path} {found}", expected=expected, remedy=RESTORE_FILE)


def _record(content: bytes, path: str) -> dict[str, Any]:
    if not content.startswith(MAGIC):
        raise _broken(path, "is not an Avro container", f"{MAGIC!r} at the start")
    source = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(source, _HEADER, None)
    schema = _without_logical_types(json.loads(header["meta"]["avro.schema"]), 0)
    _least_bytes(schema, {}, 0, path)
    size = header["size"]
    if header["count"] != 1:
        raise _broken(path, f"has {header['count']} records in its first block", "exactly one record")
    block = source.read(max(size, 0))
    if size < 0 or len(block) != size or source.read(_SYNC_BYTES) != header["sync"]:
        raise _broken(path, "has a truncated block", "a block and its sync marker")
    if source.read(1):
        raise _broken(path, "continues after its first block", "exactly one record")
    data = io.BytesIO(_unpacked(block, header["meta"].get("avro.codec", b"null"), path))
    record = fastavro.schemaless_reader(data, fastavro.parse_schema(schema), None)
    if not isinstance(record, dict):
        raise _broken(path, f"holds a {type(record).__name__}", "a record")
    return record


def _unpacked(block: bytes, codec: bytes, path: str) -> bytes:
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise _broken(path, f"has codec {codec!r}", "null or deflate")
    unpacker = zlib.decompressobj(wbits=-15)
    data = unpacker.decompress(block, MAX_BYTES)
    if unpacker.unconsumed_tail:
        raise _broken(path, f"unpacks to more than {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes")
    return data


def _without_logical_types(schema: Any, depth: int) -> Any:
    """Remove logical types. Hudi metadata has none, and an untrusted file must not request decimals of any precision."""
    if depth > 4 * _MAX_DEPTH:
        raise ValueError(f"a schema nested deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        return [_without_logical_types(branch, depth + 1) for branch in schema]
    if isinstance(schema, dict):
        return {k: _without_logical_types(v, depth + 1) if k != "default" else v for k, v in schema.items() if k != "logicalType"}
    return schema


def _least_bytes(schema: Any, named: dict[str, int], depth: int, path: str) -> int:
    """Return 0 if a value may take no bytes, otherwise more. Raises `CorruptMetadata` for arrays of items without bytes."""
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
        named[name] = 1  # for recursion: only a union or collection, which takes at least one byte, can end it
        named[name] = sum(_least_bytes(f["type"], named, depth + 1, path) for f in schema["fields"])
        return named[name]
    if kind == "fixed":
        named[name] = min(int(schema["size"]), 1)
        return named[name]
    if kind == "enum":
        named[name] = 1
        return 1
    return _least_bytes(kind, named, depth + 1, path)
