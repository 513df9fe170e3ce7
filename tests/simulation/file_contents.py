"""Rows of base and log files as their bytes say, read along a path of its own.

Nothing of the engine's reader is used: the frames of log blocks are walked here by the format reference (9.2 to 9.7), Avro is
decoded by fastavro, Parquet by Arrow, and the log is merged by a dictionary, row by row, later over earlier. A mistake in the
engine's block reader, its fold, its indexes or its merge therefore shows as a difference; one that both have in common would
have to be made twice. Tables of histories have no ordering field, so the rule is one line. The price is that nothing else is
understood, and that damage is an error.
"""

from __future__ import annotations

import functools
import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[str, str, str, str, str]
_COLUMNS = ["id", "part", "v", "_hoodie_commit_time", "_hoodie_commit_seqno"]
_MAGIC = b"#HUDI#"
_DELETE, _AVRO, _PARQUET = 1, 3, 5
_INSTANT_HEADER, _SCHEMA_HEADER = 0, 2


def _wrapper(name: str, kind: str) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": "value", "type": kind}]}


_DELETE_RECORD = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "HoodieDeleteRecord",
        "fields": [
            {"name": "recordKey", "type": ["null", "string"]},
            {"name": "partitionPath", "type": ["null", "string"]},
            {"name": "orderingVal", "type": ["null", _wrapper("BooleanWrapper", "boolean"), _wrapper("IntWrapper", "int")]},
        ],
    },
}
"""As far as tables without an ordering field write it: all deletions have the int 0."""


def base_rows(content: bytes) -> tuple[Row, ...]:
    """Rows of a base file, or of a Parquet block."""
    table = pq.ParquetFile(pa.BufferReader(content)).read(columns=_COLUMNS, use_threads=False)
    return tuple(zip(*(table.column(c).to_pylist() for c in _COLUMNS), strict=True))


def log_changes(content: bytes) -> tuple[tuple[str, Row | None], ...]:
    """What a log file says, in order: a key and its row, or None for a deletion."""
    found: list[tuple[str, Row | None]] = []
    for kind, header, body in _blocks(content):
        if kind == _DELETE:
            deleted: Any = fastavro.schemaless_reader(io.BytesIO(body[8:]), _delete_schema(), None)
            found += [(record["recordKey"], None) for record in deleted]
        else:
            rows = _avro_rows(header[_SCHEMA_HEADER], body) if kind == _AVRO else base_rows(body)
            found += [(row[0], row) for row in rows]
    return tuple(found)


def log_instants(content: bytes) -> set[str]:
    """Who wrote a log file, as far as it is whole: half of a block is none."""
    found: set[str] = set()
    with suppress(AssertionError, struct.error, UnicodeDecodeError):
        for _, header, _ in _blocks(content):
            found.add(header[_INSTANT_HEADER])
    return found


def merged(base: Sequence[Row], logs: Sequence[Sequence[tuple[str, Row | None]]]) -> list[Row]:
    """The rows of a slice. Keys that stand twice in the base file stay so until a log says something about them."""
    if not logs:
        return list(base)
    held: dict[str, list[Row]] = {}
    for row in base:
        held.setdefault(row[0], []).append(row)
    for changes in logs:
        for key, row in changes:
            held[key] = [] if row is None else [row]
    return [row for rows in held.values() for row in rows]


def wrong_rows(rows: Sequence[Row], model: Mapping[str, str]) -> str:
    """What is wrong with the rows of a table whose model is key → value; empty when nothing is."""
    found = {row[0]: row[2] for row in rows}
    if len(found) < len(rows):
        keys = [row[0] for row in rows]
        return f"keys that stand twice: {sorted({k for k in keys if keys.count(k) > 1})}"
    odd = sorted(k for k in found.keys() | model.keys() if found.get(k) != model.get(k))
    odder = ", ".join(f"{k}: {found.get(k)!r} instead of {model.get(k)!r}" for k in odd[:3])
    return f"other rows than its operations say: {odder}" if odd else ""


def _blocks(content: bytes) -> Iterator[tuple[int, dict[int, str], bytes]]:
    """Type, header and content of each block."""
    at = 0
    while at < len(content):
        assert content[at : at + 6] == _MAGIC, f"no block at {at}"
        size, version, kind, entries = struct.unpack_from(">qiii", content, at + 6)
        assert version == 1, f"log format version {version}"
        assert kind in (_DELETE, _AVRO, _PARQUET), f"block type {kind}"
        end, place = at + 14 + size, at + 26
        assert struct.unpack_from(">q", content, end - 8) == (size + 6,), f"a torn block at {at}"
        header: dict[int, str] = {}
        for _ in range(entries):
            key, length = struct.unpack_from(">ii", content, place)
            header[key] = content[place + 8 : place + 8 + length].decode()
            place += 8 + length
        (length,) = struct.unpack_from(">q", content, place)
        yield kind, header, content[place + 8 : place + 8 + length]
        at = end


def _avro_rows(schema: str, body: bytes) -> Iterator[Row]:
    _, count = struct.unpack_from(">ii", body)
    at = 8
    for _ in range(count):
        (length,) = struct.unpack_from(">i", body, at)
        record: Any = fastavro.schemaless_reader(io.BytesIO(body[at + 4 : at + 4 + length]), _parsed(schema), None)
        yield tuple(record[name] for name in _COLUMNS)
        at += 4 + length


@functools.lru_cache(maxsize=16)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@functools.cache
def _delete_schema() -> Any:
    return fastavro.parse_schema(_DELETE_RECORD)
