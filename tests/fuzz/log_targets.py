"""Parsers of log files and of what lies in and beside them."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace

import pyarrow as pa
from tests.fuzz.target import Target, stored, typed
from tests.property.avro_shapes import records
from tests.unit.table.hfiles import hfile
from tests.unit.table.kryo_deletes import kryo_content
from tests.unit.table.log_files import single_log

from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.log_format import (
    BlockType,
    HeaderKey,
    avro_block,
    command_block,
    delete_block,
    parquet_block,
    read_deletes,
    read_rows,
    scan_log,
)
from tideline_table.log_format.avro import parse_schema, row_schema
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.key_index import LEAD, MAGIC, Section, index_path, parse_index, read_index, read_keys, read_sections
from tideline_table.log_format.key_index_file import WrittenBlock, index_bytes
from tideline_table.schema import arrow_from_avro

LOG = "p/.f-0_20260101000000000.log.1_0-0-0"
INSTANT = "20260101000000001"
SCHEMA = json.dumps({
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "_hoodie_record_key", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "deep", "type": ["null", {"type": "map", "values": {"type": "record", "name": "q", "fields": [{"name": "x", "type": "int"}]}}]},
    ],
})  # fmt: skip
ROWS = pa.Table.from_pylist(
    [
        {"_hoodie_record_key": f"k{n}", "price": "1.500", "tags": ["a", None] * n, "deep": [("x", {"x": n})] if n else None}
        for n in range(3)
    ],
    schema=pa.schema([f.with_type(pa.string()) if f.name == "price" else f for f in row_schema(SCHEMA)]),
).cast(row_schema(SCHEMA))
DELETED = pa.array(["k1", "k2"])
_ROWS = (BlockType.AVRO, BlockType.PARQUET, BlockType.CDC, BlockType.HFILE)
_AVRO = avro_block(ROWS, SCHEMA, INSTANT)
_DELETES = delete_block(DELETED, "p", pa.array([5, 7], pa.int64()), SCHEMA, INSTANT)
_SMALL = '{"type":"record","name":"r","fields":[{"name":"a","type":["null","string"]},{"name":"b","type":["null","long"]}]}'
_SMALL_ROWS = pa.table({"a": pa.array(["x", None]), "b": pa.array([1, 2], pa.int64())})
_PARQUET = parquet_block(_SMALL_ROWS, _SMALL, INSTANT)
_SMALL_AVRO = avro_block(_SMALL_ROWS, _SMALL, INSTANT)


def content_of(block: bytes) -> bytes:
    """What a block holds."""
    storage = stored(log=block)
    (found,) = scan_log(storage, "log").blocks
    return storage.read_range("log", found.content_offset, found.content_bytes)


def _log_file(content: bytes) -> None:
    storage = stored(log=content)
    scanned = scan_log(storage, "log")
    spans = sorted([(b.offset, b.size_bytes) for b in scanned.blocks] + [(g.offset, g.size_bytes) for g in scanned.gaps])
    at = 0
    for offset, size_bytes in spans:
        assert offset == at, "blocks and gaps that do not fill the file"
        at += size_bytes
    assert at == len(content), "blocks and gaps that do not fill the file"
    for block in scanned.blocks:
        if block.type is BlockType.DELETE:
            typed(lambda b=block: read_deletes(storage, b).validate(full=True))
        elif block.type in _ROWS:
            typed(lambda b=block: read_rows(storage, b).validate(full=True))


def _framed(kind: BlockType, schema: str, content: bytes) -> None:
    _log_file(frame_block(kind, {HeaderKey.INSTANT_TIME: INSTANT, HeaderKey.SCHEMA: schema}, content))


def _with_schema(content: bytes) -> None:
    """An Avro block; the first two bytes say how long its schema is."""
    end = 2 + int.from_bytes(content[:2], "big")
    text = content[2:end].decode(errors="replace")
    typed(arrow_from_avro, text)
    typed(parse_schema, text)
    if "\0" not in text:
        _framed(BlockType.AVRO, text, content[end:])


def _hfile(content: bytes) -> None:
    for batch in HFile(content).entries():
        batch.validate(full=True)


def _hfile_with_fields(content: bytes) -> None:
    """The same without the padding that is most of a small file: the first byte says how long the fields of the trailer are."""
    end = 1 + content[0] if content else 0
    _hfile(content[end:] + (b'TRABLK"$' + content[1:end]).ljust(4092, b"\0") + b"\0\0\0\3")


def _without_padding(file: bytes) -> bytes:
    fields = file[-4096 + 8 : -4].rstrip(b"\0")
    return bytes((len(fields),)) + fields + file[:-4096]


_SOUND_HFILES = tuple(
    hfile(
        [[(b"a%d" % n, b"v" * n) for n in range(part, part + 3)] for part in range(0, 6, 3)],
        levels=levels, gz=gz, checksum=checksum, metas={"b": b"x" * 20}, info={"schema": b"{}"},
    )
    for levels, gz, checksum in ((1, False, 0), (2, True, 0), (3, False, 0), (1, True, 1))
)  # fmt: skip


_HFILE_ROWS = tuple(
    hfile(
        [[(b"k%d" % n, datum)] for n, datum in enumerate(records(content_of(_SMALL_AVRO)))],
        levels=levels,
        gz=levels == 2,
        checksum=0,
    )
    for levels in (1, 2)
)


def _index_of(content: bytes) -> None:
    """Side files are never the truth: nothing that is in one may be more than not used."""
    storage = stored(**{index_path(LOG): content})
    index = read_index(storage, LOG)
    if index is None:
        return
    assert index.logs[-1].path == LOG
    read_keys(storage, index)
    found = read_sections(storage, index, [index.filter])
    if found is not None:
        typed(_may_hold, found[0])


def _index_with_sums(content: bytes) -> None:
    """The same behind its checksums: the document of the head, a NUL, then the sections, one after the other at the places that
    it names."""
    raw, _, sections = content.partition(b"\0")
    head = bytes(pa.Codec("zstd").compress(raw, asbytes=True))
    _index_of(LEAD.pack(MAGIC, len(head), len(raw), zlib.crc32(head)) + head + sections)


def _keys_with_sums(content: bytes) -> None:
    """Sorted keys behind their checksum."""
    packed = bytes(pa.Codec("zstd").compress(content, asbytes=True))
    section = Section(0, len(packed), len(content), zlib.crc32(packed))
    for keys in read_keys(stored(), replace(_SOUND_INDEX, origin=0, first=packed, keys=(section,))) or ():
        keys.validate(full=True)


def _may_hold(content: bytes) -> None:
    keys = KeyBytes(DELETED)
    for is_dynamic in (False, True):
        found = typed(lambda dynamic=is_dynamic: BloomFilter.from_bytes(content, is_dynamic=dynamic))
        if found is not None:
            assert len(found.may_hold(keys)) == len(DELETED)


_INDEX = index_bytes(
    stored(),
    LOG,
    [WrittenBlock(BlockType.AVRO, 0, 100, {HeaderKey.INSTANT_TIME: INSTANT, HeaderKey.SCHEMA: SCHEMA}, DELETED)],
    None,
    2,
)
_SOUND_INDEX = parse_index(LOG, _INDEX)
_INDEX_HEAD = LEAD.unpack_from(_INDEX)
_INDEX_DOCUMENT = bytes(pa.Codec("zstd").decompress(_INDEX[LEAD.size : LEAD.size + _INDEX_HEAD[1]], _INDEX_HEAD[2], asbytes=True))
_INDEX_SECTIONS = _INDEX[LEAD.size + _INDEX_HEAD[1] :]
FILTER = BloomFilter.sized(20, 0.01).with_keys(KeyBytes(DELETED)).to_bytes()
_DYNAMIC = FILTER[:13] + struct.pack(">iii", 20, 1, 2) + FILTER * 2

TARGETS = (
    Target(
        "log-file",
        _log_file,
        (
            _AVRO + _DELETES,
            _DELETES + command_block(INSTANT, INSTANT) + frame_block(BlockType.CDC, {HeaderKey.INSTANT_TIME: INSTANT, HeaderKey.SCHEMA: _SMALL}, b""),
            single_log("valid_log_rollback"),
            frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: INSTANT, HeaderKey.SCHEMA: _SMALL}, _SOUND_HFILES[0]),
        ),
    ),
    Target(
        "log-rows-avro",
        lambda content: _framed(BlockType.AVRO, SCHEMA, content),
        (content_of(_AVRO), content_of(avro_block(ROWS.slice(2), SCHEMA, INSTANT))),
    ),
    Target("log-rows-parquet", lambda content: _framed(BlockType.PARQUET, _SMALL, content), (content_of(_PARQUET),)),
    Target("log-rows-hfile", lambda content: _framed(BlockType.HFILE, _SMALL, content), _HFILE_ROWS),
    Target(
        "log-deletes",
        lambda content: _framed(BlockType.DELETE, SCHEMA, content),
        (
            content_of(_DELETES),
            kryo_content(1, "shared"),
            *(kryo_content(2, name) for name in ("decimal", "utf8", "shared_text")),
        ),
    ),
    Target(
        "avro-schema",
        _with_schema,
        tuple(struct.pack(">H", len(text)) + text.encode() + content_of(block) for text, block in ((SCHEMA, _AVRO),)),
    ),
    Target("hfile", _hfile, _SOUND_HFILES),
    Target("hfile-fields", _hfile_with_fields, tuple(map(_without_padding, _SOUND_HFILES))),
    Target("key-index", _index_of, (_INDEX,)),
    Target("key-index-head", _index_with_sums, (_INDEX_DOCUMENT + b"\0" + _INDEX_SECTIONS, _INDEX_DOCUMENT)),
    Target("key-index-keys", _keys_with_sums, (struct.pack("<Iii", 2, 2, 2) + b"k1k2", struct.pack("<I", 0))),
    Target("bloom-filter", _may_hold, (FILTER, _DYNAMIC)),
)  # fmt: skip
