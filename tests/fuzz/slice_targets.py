"""File slices as they are read: a base file and a log of which no commit recorded a digest."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.fuzz.target import Target
from tests.unit.table.tables import SCHEMA, new_table, write

from tideline_table.reader import read_slice
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

_FIRST = [(f"k{n}", "p", 1, f"value {n}") for n in range(6)]
_LOOKED_UP = pa.array(["k1", "k9"])
_QUERIES: tuple[dict[str, Any], ...] = (
    {},
    {"columns": ["id", "ts"]},
    {"where": pc.field("v") > "value 2"},
    {"keys": _LOOKED_UP, "columns": ["v"]},
)
_ALL = with_meta_fields(SCHEMA)


class _Slice:
    """A slice with two log files, and what lies in its files."""

    def __init__(self, block: str = "avro") -> None:
        options = {"hoodie.logfile.data.block.format": block}
        table, storage, _ = new_table(type=TableType.MOR, partitions=())
        write(table, _FIRST)
        write(table, [("k1", "p", 3, "newer"), ("k2", "p", 0, "older")], **options)
        write(table, [("k3", "p", 2, "")], Operation.DELETE)
        (found,) = table.slices()
        # Apache Hudi records no digests, and earlier releases wrote no checksums of pages.
        logs = tuple(replace(log, record="", size_bytes=-1) for log in found.log_files)
        self.slice = replace(found, record="", size_bytes=-1, log_files=logs)
        self.files = {str(path): storage.read(path) for path in found.paths}
        self.rule = table.log_rule()
        self.base, self.rows, self.deletes = [str(path) for path in found.paths]

    def read(self, changed: Mapping[str, bytes]) -> None:
        storage = MemoryStorage()
        for path, content in {**self.files, **changed}.items():
            storage.put(path, content)
        # One query for an input, chosen by it: reads take longer than parsers.
        asked = _QUERIES[sum(map(len, changed.values())) % len(_QUERIES)]
        read_slice(storage, self.slice, _ALL, self.rule, **asked)


_AVRO, _PARQUET = _Slice(), _Slice("parquet")


def _without_checksums(content: bytes) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(content)), sink, compression="none", use_dictionary=False)
    return sink.getvalue()


TARGETS = (
    Target(
        "slice-base",
        lambda content: _AVRO.read({_AVRO.base: content}),
        (_AVRO.files[_AVRO.base], _without_checksums(_AVRO.files[_AVRO.base])),
    ),
    Target("slice-log-avro", lambda content: _AVRO.read({_AVRO.rows: content}), (_AVRO.files[_AVRO.rows],)),
    Target("slice-log-parquet", lambda content: _PARQUET.read({_PARQUET.rows: content}), (_PARQUET.files[_PARQUET.rows],)),
    Target("slice-log-deletes", lambda content: _AVRO.read({_AVRO.deletes: content}), (_AVRO.files[_AVRO.deletes],)),
)
