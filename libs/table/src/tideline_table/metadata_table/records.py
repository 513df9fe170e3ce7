"""Records of the partition `files` (format reference 15.3): the partitions of the table, and the files of each of them."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.plans import record_schema
from tideline_table.schema.meta_fields import META_FIELDS

ALL_PARTITIONS = "__all_partitions__"
"""The key of the record that lists the partitions."""
UNPARTITIONED = "."
"""The name of the only partition of a table without partition columns."""
DELETED = -1
"""Stands for the size of a file that was deleted."""
_LISTS_PARTITIONS, _LISTS_FILES = 1, 2


@dataclass(slots=True)
class FilesRecords:
    """What one delta commit says, or what all of them say together."""

    partitions: dict[str, int] | None = None
    """Partition path → 0, or `DELETED`; None if there is no record of partitions."""
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    """Partition path → file name → size in bytes, or `DELETED`."""

    def list_file(self, partition: str, name: str, size_bytes: int) -> None:
        """Add a file. Of several sizes of one file the largest counts, because files only grow."""
        held = self.files.setdefault(partition, {})
        held[name] = max(size_bytes, held.get(name, 0))

    def merge(self, newer: FilesRecords) -> None:
        """Merge a newer delta commit: the union by name, in which a deletion removes an older file and stays without one."""
        if newer.partitions is not None:
            self.partitions = _merged(self.partitions or {}, newer.partitions)
        for partition, names in newer.files.items():
            self.files[partition] = _merged(self.files.get(partition, {}), names)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the records of partitions with these keys, which a delete block names."""
        for key in keys:
            self.files.pop(_path(key), None)


def _merged(older: Mapping[str, int], newer: Mapping[str, int]) -> dict[str, int]:
    held = dict(older)
    for name, size_bytes in newer.items():
        if size_bytes != DELETED:
            held[name] = max(size_bytes, held.get(name, 0))
        elif held.get(name, DELETED) == DELETED:
            held[name] = DELETED
        else:
            del held[name]
    return held


@functools.cache
def record_schema_json(*, with_meta_fields: bool) -> str:
    """Return the Avro schema of the records, with meta fields as files embed it, without as commits name it."""
    schema = record_schema("HoodieMetadataRecord")
    if with_meta_fields:
        meta = [{"name": name, "type": ["null", "string"], "doc": "", "default": None} for name in META_FIELDS]
        schema["fields"] = [*meta, *schema["fields"]]
    return json.dumps(schema, separators=(",", ":"))


@functools.cache
def parsed_schema(schema_json: str) -> Any:
    """Return the schema as fastavro uses it."""
    return fastavro.parse_schema(json.loads(schema_json))


def encode_records(records: FilesRecords) -> list[tuple[bytes, bytes]]:
    """Return key and Avro datum of each record, in order of key. The datum has an empty key, as in Apache Hudi's files."""
    found = [(files_key(partition).encode(), _datum(_LISTS_FILES, names)) for partition, names in records.files.items()]
    if records.partitions is not None:
        found.append((ALL_PARTITIONS.encode(), _datum(_LISTS_PARTITIONS, {files_key(p): n for p, n in records.partitions.items()})))
    return sorted(found)


def _datum(kind: int, sizes: Mapping[str, int]) -> bytes:
    entries = {name: {"size": max(size, 0), "isDeleted": size == DELETED} for name, size in sorted(sizes.items())}
    sink = io.BytesIO()
    record = {"key": "", "type": kind, "filesystemMetadata": entries}
    fastavro.schemaless_writer(sink, parsed_schema(record_schema_json(with_meta_fields=True)), record)
    return sink.getvalue()


def decode_records(entries: Iterable[tuple[bytes, bytes]], schema_json: str, path: str) -> FilesRecords:
    """Return the records of a file. Raises `CorruptMetadata`, which names `path`, for anything else."""
    found = FilesRecords()
    try:
        schema = parsed_schema(schema_json)
        for key, datum in entries:
            _take(found, key.decode(), fastavro.schemaless_reader(io.BytesIO(datum), schema, None))
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise CorruptMetadata(
            f"{path} with records that cannot be read ({type(error).__name__}: {error})", expected="records of the partition files"
        ) from None
    return found


def _take(found: FilesRecords, key: str, record: Any) -> None:
    sizes = {
        str(name): DELETED if held["isDeleted"] else int(held["size"])
        for name, held in (record["filesystemMetadata"] or {}).items()
    }
    expected = _LISTS_PARTITIONS if key == ALL_PARTITIONS else _LISTS_FILES
    if record["type"] != expected:
        raise ValueError(f"record {key!r} of type {record['type']}, expected {expected}")
    if expected == _LISTS_PARTITIONS:
        found.partitions = {_path(name): size for name, size in sizes.items()}
    else:
        found.files[_path(key)] = sizes


def files_key(partition: str) -> str:
    """Return the key of the record that lists the files of a partition, which is its name in the record of all partitions."""
    return partition or UNPARTITIONED


def _path(name: str) -> str:
    return "" if name == UNPARTITIONED else name
