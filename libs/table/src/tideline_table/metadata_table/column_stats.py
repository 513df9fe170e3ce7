"""The partition `column_stats`: the bounds and counts of each indexed column in each data file (format reference 15.2, 15.3, 15.7).

The statistics come from the table log, so no footer is read for a commit. What Apache Hudi's readers do with a record decides what it
says where its release 1.2.0 writes something else: see docs/design/data-skipping.md.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import xxhash

from tideline_table.clock import SystemClock
from tideline_table.log.body import Cleaned, Published, RestoreBegun
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log.plan import RestorePlanned
from tideline_table.log.state import TableState
from tideline_table.log.statistics import files_in, merge_statistics
from tideline_table.log.table_log import TableLog
from tideline_table.metadata_table.partition import MetadataRecord, Records, Source
from tideline_table.metadata_table.records import UNPARTITIONED, record_schema_json
from tideline_table.reader.base_file import read_statistics
from tideline_table.schema import arrow_from_avro
from tideline_table.schema.meta_fields import MetaField
from tideline_table.statistics import ColumnStatistics, FileStatistics, Stored, is_supported, type_of

COLUMN_STATS = "column_stats"
COLUMN_STATS_GROUPS = 2
"""File groups of the partition, as in Apache Hudi."""
_TYPE = 3
_SEED = 0xFFFFFFFFDABADABA
"""Apache Hudi's seed of the 64-bit hash, an int that became a long with its sign."""
_NAMESPACE = "org.apache.hudi.avro.model."
_DECIMAL_DIGITS, _DECIMAL_SCALE = 30, 15
_META_COLUMNS = (MetaField.COMMIT_TIME, MetaField.PARTITION_PATH, MetaField.RECORD_KEY)


class ColumnStatsPartition:
    """The partition `column_stats`. Its records follow from the statistics in the table log."""

    name = COLUMN_STATS
    file_id_prefix = "col-stats"
    writes_every_delta = False

    def changed_by(self, source: Source, entry: Entry) -> Records:
        """See `PartitionKind`. A file without statistics in the entry has no records: readers do not leave it out."""
        if isinstance(entry.body, Published):
            return Records(_records(entry.body.file_statistics))
        gone = [*_cleaned(entry), *_undone(entry, source.state)]
        return Records((), sorted(_key(name, path) for path in gone for name in _columns(source.state)))

    def whole(self, source: Source) -> Records:
        """See `PartitionKind`. Footers are read of base files that Tideline wrote before it took statistics."""
        log = TableLog(source.storage, SystemClock(), "")
        known = files_in(merge_statistics(source.storage, log.read, source.state))
        columns = _columns(source.state)
        for file_slice in source.state.every_slice():
            if file_slice.base_file and file_slice.path not in known:
                found = read_statistics(source.storage, file_slice.path, columns)
                known |= {file_slice.path: found} if found is not None else {}
        return Records(_records(known))

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> Sequence[MetadataRecord] | None:  # noqa: ARG002 - the port's
        """See `PartitionKind`: the statistics beside the log know all files, so nothing of the metadata table is read."""
        return None


def record_key(column: str, partition: str, name: str) -> str:
    """Return the key of the record of a column in the file `name` of a partition path."""
    return _hash64(column) + _hash64(partition or UNPARTITIONED) + _text(hashlib.md5(name.encode(), usedforsecurity=False).digest())


@functools.lru_cache(65536)
def _hash64(text: str) -> str:
    return _text(xxhash.xxh64(text.encode(), seed=_SEED).digest())


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _key(column: str, path: str) -> str:
    partition, _, name = path.rpartition("/")
    return record_key(column, partition, name)


def _columns(state: TableState) -> tuple[str, ...]:
    """Return the columns that files of the table may have records of."""
    texts = dict.fromkeys([*state.schemas.values(), state.schema_json])
    fields = [field for text in texts if text for field in arrow_from_avro(text)]
    return tuple(dict.fromkeys([*_META_COLUMNS, *(field.name for field in fields if is_supported(field.type))]))


def _cleaned(entry: Entry) -> Iterator[str]:
    body = entry.body
    if isinstance(body, Cleaned):
        for partition, part in body.metadata["partitionMetadata"].items():
            for pattern in part["deletePathPatterns"]:
                name = str(pattern).rpartition("/")[2]
                yield f"{partition}/{name}" if partition else name


def _undone(entry: Entry, state: TableState) -> Iterator[str]:
    plan = state.plans.get(entry.instant)
    if isinstance(entry.body, RestoreBegun) and isinstance(plan, RestorePlanned):
        for paths in plan.files.values():
            yield from paths


# --- records -----------------------------------------------------------------------------------------------------------------


def _records(files: Mapping[str, FileStatistics]) -> list[MetadataRecord]:
    return sorted(
        (_key(name, path).encode(), datum)
        for path, file in files.items()
        for name, held in file.columns.items()
        if (datum := _datum(path.rpartition("/")[2], name, file.rows, held)) is not None
    )


@functools.cache
def _schema() -> Any:
    return fastavro.parse_schema(json.loads(record_schema_json(with_meta_fields=True)))


def _datum(file_name: str, column: str, rows: int, held: ColumnStatistics) -> bytes | None:
    """Return the record as Avro; None for a type that Apache Hudi does not index."""
    kind = type_of(held.kind)
    wrapper = _wrapper(kind)
    if wrapper is None:
        return None
    low, high = held.minimum, held.maximum
    if held.nans:
        # To Spark, NaN is greater than any number and equal to itself. -1: there may be some.
        low, high = (float("nan") if low is None else low), float("nan")
    statistics = {
        "fileName": file_name,
        "columnName": column,
        "minValue": _wrapped(wrapper, low),
        "maxValue": _wrapped(wrapper, high),
        "valueCount": rows,
        "nullCount": held.nulls,
        "totalSize": held.size_bytes,
        "totalUncompressedSize": held.uncompressed_bytes,
        "isDeleted": False,
    }
    sink = io.BytesIO()
    record = {"key": "", "type": _TYPE, "ColumnStatsMetadata": statistics}
    fastavro.schemaless_writer(sink, _schema(), record)
    return sink.getvalue()


def _wrapper(kind: pa.DataType) -> str | None:
    if pa.types.is_decimal(kind):
        fits = kind.precision + _DECIMAL_SCALE - kind.scale <= _DECIMAL_DIGITS and kind.scale <= _DECIMAL_SCALE
        return "DecimalWrapper" if fits else None
    if pa.types.is_timestamp(kind):
        # Of milliseconds and microseconds, the number itself; Avro has no other.
        return "LongWrapper" if kind.unit in ("ms", "us") else None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "BytesWrapper"
    return _WRAPPERS.get(str(kind))


_WRAPPERS = {
    "bool": "BooleanWrapper",
    "int8": "IntWrapper",
    "int16": "IntWrapper",
    "int32": "IntWrapper",
    "int64": "LongWrapper",
    "float": "FloatWrapper",
    "double": "DoubleWrapper",
    "string": "StringWrapper",
    "large_string": "StringWrapper",
    "date32[day]": "DateWrapper",
}


def _wrapped(wrapper: str, value: Stored | None) -> tuple[str, dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, Decimal):
        value = round(value, _DECIMAL_SCALE)
    return f"{_NAMESPACE}{wrapper}", {"value": value}


def decode_column_stats(entries: Iterable[tuple[bytes, bytes]], schema_json: str) -> dict[str, dict[str, Any]]:
    """Return the statistics in records by key, as Avro decodes them. Raises what fastavro raises for other bytes."""
    schema = fastavro.parse_schema(json.loads(schema_json))
    return {
        key.decode(): fastavro.schemaless_reader(io.BytesIO(datum), schema, None)["ColumnStatsMetadata"] for key, datum in entries
    }
