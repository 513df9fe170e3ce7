"""Log files: rows as fastavro reads and writes them, and typed errors only, and quickly, for whatever else is in a file."""

import contextlib
import itertools
import json
import os
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.avro_shapes import fastavro_block, fastavro_table, framed, records, tables
from tests.property.profile import quick

from tideline_table.errors import TidelineError
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
from tideline_table.log_format.framing import frame_block
from tideline_table.storage import MemoryStorage

EXAMPLES = int(os.environ.get("TIDELINE_FUZZ_EXAMPLES", "0"))
moderate = settings(quick, max_examples=EXAMPLES or 150, derandomize=not EXAMPLES)
ROW_TYPES = (BlockType.AVRO, BlockType.PARQUET, BlockType.CDC, BlockType.HFILE)

SCHEMA = json.dumps({
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "_hoodie_record_key", "type": ["null", "string"]},
        {"name": "amount", "type": ["null", {"type": "fixed", "name": "f", "size": 5, "logicalType": "decimal", "precision": 10, "scale": 2}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
        {"name": "kind", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "points", "type": {"type": "array", "items": "double"}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "deep", "type": {"type": "map", "values": {"type": "array", "items": {"type": "map", "values": "long"}}}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "q", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "f"}]}]},
        {"name": "at", "type": ["null", {"type": "record", "name": "t", "fields": [{"name": "t", "type": {"type": "int", "logicalType": "time-millis"}}]}]},
        {"name": "flag", "type": "boolean"},
    ],
})  # fmt: skip
ROWS = [
    {
        "_hoodie_record_key": f"k{number}",
        "amount": None if number % 3 else "12.50",
        "price": "-1.125",
        "kind": "AB"[number % 2],
        "tags": ["a", None] * (number % 4),
        "points": [0.5] * (number % 3),
        "nothing": [None] * (number % 2),
        "deep": {"k": [{"a": 1}, {}], "l": []},
        "inner": None if number % 2 else {"x": number, "y": "1.00"},
        "at": None if number % 5 else {"t": number},
        "flag": number % 2 == 0,
    }
    for number in range(90)
]


def decimal_rows():
    def fixed(row):
        inner = row["inner"] and {**row["inner"], "y": Decimal(row["inner"]["y"])}
        return {**row, "amount": row["amount"] and Decimal(row["amount"]), "price": Decimal(row["price"]), "inner": inner}

    return [fixed(row) for row in ROWS]


WHOLE = fastavro_block(SCHEMA, decimal_rows())
KEYS = pa.array([f"k{number}" for number in range(70)])
DELETES = delete_block(KEYS, "p", pa.array(range(70), pa.int64()), SCHEMA, "20260101000000001")


def stored(content):
    storage = MemoryStorage()
    storage.put("log", content)
    return storage


def content_of(block_bytes):
    storage = stored(block_bytes)
    (block,) = scan_log(storage, "log").blocks
    return storage.read_range("log", block.content_offset, block.content_bytes)


PARQUET = parquet_block(
    pa.table({"a": pa.array(["x", None, "y"]), "b": pa.array([1, 2, 3], pa.int64())}),
    '{"type":"record","name":"r","fields":[{"name":"a","type":["null","string"]},{"name":"b","type":["null","long"]}]}',
    "20260101000000002",
)
FILE = WHOLE + DELETES + command_block("20260101000000003", "20260101000000001") + PARQUET + WHOLE


@moderate
@given(tables())
def test_rows_are_those_of_fastavro(table):
    text, rows = table
    storage = stored(fastavro_block(text, rows))
    (block,) = scan_log(storage, "log").blocks
    expected = fastavro_table(text, records(storage.read_range("log", block.content_offset, block.content_bytes)))
    found = read_rows(storage, block)
    found.validate(full=True)
    assert found.equals(expected)
    for name in expected.column_names:
        alone = read_rows(storage, block, columns=[name])
        assert alone.equals(expected.select([name]))


@moderate
@given(tables(), st.integers(0, 40))
def test_encoded_rows_are_those_of_fastavro(table, start):
    text, rows = table
    storage = stored(fastavro_block(text, rows))
    (block,) = scan_log(storage, "log").blocks
    datums = records(storage.read_range("log", block.content_offset, block.content_bytes))[start:]
    # Slices: Arrow's buffers then begin before the first row.
    written = content_of(avro_block(read_rows(storage, block).slice(start), text, "1"))
    assert fastavro_table(text, records(written)).equals(fastavro_table(text, datums))
    if '"bytes", "logicalType": "decimal"' not in text:
        # fastavro spends a byte more than Java on some decimals; everything else has one encoding.
        assert records(written) == datums


@st.composite
def damaged(draw, whole, least=0):
    """A sound file with bytes changed, inserted, taken out or cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(min(least, len(content)), max(least, len(content) - 1)))
        change = draw(st.sampled_from(["set", "set", "huge", "insert", "take", "cut"]))
        if change == "cut":
            del content[at:]
        elif change == "take":
            del content[at : at + draw(st.integers(1, 9))]
        elif change == "insert":
            content[at:at] = draw(st.binary(max_size=6) | st.just(b"#HUDI#"))
        elif change == "huge":
            content[at : at + 10] = draw(
                st.sampled_from([b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 10, b"\x80" * 10, b"\x7f\xff\xff\xff"])
            )
        elif at < len(content):
            content[at] = draw(st.integers(0, 255))
    return bytes(content)


def read_everything(content):
    storage = stored(content)
    started = time.process_time()
    try:
        scanned = scan_log(storage, "log")
    except TidelineError as error:
        assert error.found  # noqa: PT017 - either outcome is fine, an empty explanation is not
        return
    spans = sorted([(b.offset, b.size_bytes) for b in scanned.blocks] + [(g.offset, g.size_bytes) for g in scanned.gaps])
    assert sum(size for _, size in spans) == len(content)
    assert all(offset + size == next_offset for (offset, size), (next_offset, _) in itertools.pairwise(spans))
    for block in scanned.blocks:
        try:
            if block.type is BlockType.DELETE:
                read_deletes(storage, block).validate(full=True)
            elif block.type in ROW_TYPES:
                read_rows(storage, block).validate(full=True)
        except TidelineError as error:
            assert error.found  # noqa: PT017
    assert time.process_time() - started < 5


@moderate
@given(
    st.one_of(
        damaged(FILE),
        damaged(PARQUET + command_block("2", "1")),
        st.binary(max_size=300),
        st.binary(max_size=80).map(lambda b: b"#HUDI#" + b),
    )
)
def test_damaged_files(content):
    read_everything(content)


@moderate
@given(damaged(content_of(WHOLE), least=8))
def test_damaged_records(content):
    read_everything(frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: SCHEMA}, content))


@moderate
@given(
    st.lists(
        st.binary(max_size=120) | damaged(records(content_of(WHOLE))[2]) | st.sampled_from(records(content_of(WHOLE))), max_size=70
    )
)
def test_damaged_single_records(datums):
    read_everything(framed(SCHEMA, datums))


@moderate
@given(damaged(content_of(DELETES)))
def test_damaged_deletions(content):
    read_everything(frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "1"}, content))


@moderate
@given(damaged(content_of(PARQUET)))
def test_damaged_parquet(content):
    text = scan_log(stored(PARQUET), "log").blocks[0].schema_json
    read_everything(frame_block(BlockType.PARQUET, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: text}, content))


@moderate
@given(damaged(SCHEMA.encode()).map(lambda b: b.decode(errors="replace")))
def test_damaged_schemas(text):
    read_everything(frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "1", HeaderKey.SCHEMA: text}, content_of(WHOLE)))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "content",
    [
        b"#HUDI#" * 9_000,
        b"#HUDI#" + b"\x7f" * 100_000,
        (b"#HUDI#" + b"\x00" * 7 + b"\x40" + b"\x00" * 3 + b"\x01" + b"\x00" * 3 + b"\x03") * 4_500,
        b"#HUDI#\x00" * 14_000,
        b"#" * 100_000,
    ],
    ids=["magics", "absurd-size", "heads", "more-than-10000", "no-magic"],
)
def test_crafted_files_are_scanned_at_once(content):
    started = time.process_time()
    with contextlib.suppress(TidelineError):
        scan_log(stored(content), "log")
    assert time.process_time() - started < 1
