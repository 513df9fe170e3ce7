"""How fast Avro log blocks become Arrow: the engine's `log_format` against fastavro record by record, on one block of lineitem
rows."""

from __future__ import annotations

import io
import json
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tideline_table.log_format import LogBlock, avro_block, read_rows, scan_log
from tideline_table.schema import META_FIELDS, avro_from_arrow, avro_with_meta_fields, with_meta_fields
from tideline_table.storage import Storage, open_storage

ROWS = 50_000
TEN = (*META_FIELDS, "l_orderkey", "l_linenumber", "l_quantity", "l_shipdate", "l_shipmode")
_LENGTH = struct.Struct(">i")
_PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class DecodeRates:
    """Rows per second, one figure per repetition; both decoders made the same table, or `equal` is false and they are void."""

    rows: int
    fastavro: tuple[float, ...]
    tideline: tuple[float, ...]
    tideline_of_ten: tuple[float, ...]
    """Of blocks with ten of the columns: the design's measure is a row of so many."""
    equal: bool

    @property
    def ratio(self) -> float:
        """How many times faster the engine's decoder is: median of the repetitions."""
        return statistics.median(o / f for o, f in zip(self.tideline, self.fastavro, strict=True))


def decode_rates(source: Path, folder: Path, repetitions: int) -> DecodeRates:
    """Both decoders in turn on a block of up to `ROWS` rows of `source`."""
    rows = pq.ParquetFile(source).read_row_group(0).slice(0, ROWS)
    full = with_meta_fields(rows.schema)
    meta = [pa.repeat(pa.scalar("20240501000000000"), rows.num_rows)] * len(META_FIELDS)
    table = pa.Table.from_arrays([*meta, *rows.columns], schema=full)
    folder.mkdir(parents=True, exist_ok=True)
    storage = open_storage(str(folder))
    block, ten_columns = _block(storage, "block", table), _block(storage, "ten", table.select(TEN))
    content = storage.read_range(block.path, block.content_offset, block.content_bytes)
    theirs, ours, of_ten = [], [], []
    equal = True
    for _ in range(repetitions):
        one, one_s = _timed(lambda: _record_by_record(content, block.schema_json, full))
        other, other_s = _timed(lambda: read_rows(storage, block))
        fewer, fewer_s = _timed(lambda: read_rows(storage, ten_columns))
        equal = (
            equal and one.equals(other.select(full.names).cast(full)) and one.select(TEN).equals(fewer.cast(one.select(TEN).schema))
        )
        theirs.append(rows.num_rows / one_s)
        ours.append(rows.num_rows / other_s)
        of_ten.append(rows.num_rows / fewer_s)
    return DecodeRates(rows.num_rows, tuple(theirs), tuple(ours), tuple(of_ten), equal)


def _block(storage: Storage, name: str, rows: pa.Table) -> LogBlock:
    """The only block of a log file with these rows."""
    text = avro_with_meta_fields(avro_from_arrow(rows.drop_columns([*META_FIELDS]).schema, "lineitem"))
    storage.put(f"{name}.log", avro_block(rows, text, "20240501000000000"))
    (block,) = scan_log(storage, f"{name}.log").blocks
    return block


def _record_by_record(content: bytes, schema_json: str, schema: pa.Schema) -> pa.Table:
    parsed = fastavro.parse_schema(json.loads(schema_json))
    at, found = _PREFIX_BYTES, []
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        found.append(fastavro.schemaless_reader(io.BytesIO(content[at + 4 : at + 4 + length]), parsed, None))
        at += 4 + length
    return pa.Table.from_pylist(found, schema=schema)


def _timed(decode: Callable[[], Any]) -> tuple[pa.Table, float]:
    began = time.perf_counter()
    table = decode()
    return table, time.perf_counter() - began
