"""Records of metadata tables, named so that the tables of two writers with the same history have the same ones.

Two writers choose different instants, file ids and file names. So an instant is named by its step of the history, a data file
by the step that wrote it, its partition and its record keys, and a file group by its first file.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.log_format import BlockType, read_deletes, scan_log
from tideline_table.log_format.block import read_content
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.file_keys import file_key, hash_text
from tideline_table.metadata_table.layout import folder_of
from tideline_table.metadata_table.partition import groups_of_keys
from tideline_table.reader.log_keys import log_keys
from tideline_table.storage import LocalStorage

CREATION = "creation"
"""The name of all instants at which partitions of the metadata table were made."""
PARTITIONS = (FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX)

Record = dict[str, Any]


class Place(NamedTuple):
    """Where a record is: the step whose delta commit holds it, the partition, and the key with names instead of hashes."""

    step: str
    partition: str
    key: str


class DataFile(NamedTuple):
    """A data file as it was after the step that wrote it; a clean may have deleted it since."""

    path: str
    name: str
    keys: tuple[str, ...]
    size_bytes: int


@dataclass(slots=True)
class Written:
    """A table of one writer. `observe` is called after each step of the history."""

    base: Path
    steps: dict[str, str] = field(default_factory=dict)
    """Instant of the table → step."""
    files: dict[str, DataFile] = field(default_factory=dict)
    """By file name."""
    groups: dict[tuple[str, str], str] = field(default_factory=dict)
    """Partition path and file id → the name of the first file."""

    @property
    def names(self) -> list[str]:
        """The names of all data files, sorted. A name that is there twice stands for two files."""
        return sorted(file.name for file in self.files.values())

    def observe(self, step: str) -> None:
        """Name the instants and the data files that `step` brought."""
        for path in sorted((self.base / ".hoodie").iterdir()):
            instant = parse_timeline_file_name(path.name)
            if instant is not None and instant.state is State.COMPLETED:
                self.steps.setdefault(instant.time, step)
        for file in sorted(self.base.rglob("*")):
            path = file.relative_to(self.base).as_posix()
            named = parse_base_file_name(file.name) or parse_log_file_name(file.name)
            if named is None or path.startswith(".hoodie/") or file.name in self.files:
                continue
            partition, keys = path.rpartition("/")[0], self._keys(path)
            name = f"{step} {partition} {'base' if path.endswith('.parquet') else 'log'} {' '.join(keys)}"
            self.files[file.name] = DataFile(path, name, keys, file.stat().st_size)
            self.groups.setdefault((partition, named.file_id), name)

    def _keys(self, path: str) -> tuple[str, ...]:
        if path.endswith(".parquet"):
            held = pq.read_table(self.base / path, columns=["_hoodie_record_key"], partitioning=None).column(0)
        else:
            held = log_keys(LocalStorage(str(self.base)), [path])
        return tuple(sorted(held.to_pylist()))

    def records(self, columns: Sequence[str]) -> dict[Place, Record | None]:
        """Return all records of all delta commits of the metadata table by place; None for a key that a delete block names.

        `columns` are those that may have statistics. Fails for a hashed key that does not stand for the file (and column) which
        its record names, and for a key in another file group than the one in which Apache Hudi looks for it.
        """
        known = {hash_text(column) + file_key(file.path): (column, file) for file in self.files.values() for column in columns}
        known |= {file_key(file.path): ("", file) for file in self.files.values()}
        found: dict[Place, Record | None] = {}
        for partition in PARTITIONS:
            for instant, key, record in self._stored(partition):
                column, file = ("", None) if partition in (FILES, RECORD_INDEX) else known[key]
                name = key if file is None else f"{column} of {file.name}".removeprefix(" of ")
                place = Place(self.steps.get(instant, CREATION), partition, name)
                assert place not in found, f"{place} has two records"
                found[place] = None if record is None else _NAMED[partition](self, record, column, file)
        return found

    def _stored(self, partition: str) -> Iterator[tuple[str, str, Record | None]]:
        """Yield instant, key and record of each entry in the files of a partition; without record for a deleted key."""
        storage = LocalStorage(str(self.base))
        paths = [found.path for found in storage.list_folder(folder_of(partition)).objects]
        parsed = {path: parse_base_file_name(_name(path)) or parse_log_file_name(_name(path)) for path in paths}
        named = {path: name for path, name in parsed.items() if name is not None}
        groups = sorted({name.file_id for name in named.values()})
        for path, name in sorted(named.items()):
            for instant, key, record in _entries(storage, path):
                held_by = int(groups_of_keys(pa.array([key]), len(groups))[0])
                assert groups[held_by] == name.file_id, f"{key} is in {name.file_id}"
                yield instant, key, record

    def list_of_files(self, record: Record, _column: str, _file: DataFile | None) -> Record:
        """Name the files in a record of `files`. A size is True if the file on storage had it."""
        listed = {}
        for name, held in record.pop("filesystemMetadata").items():
            file = self.files.get(name)
            size = held["size"] == file.size_bytes if file is not None and not held["isDeleted"] else held["size"]
            listed[name if file is None else file.name] = {**held, "size": size}
        return {**record, **listed}

    def statistics(self, record: Record, column: str, file: DataFile | None) -> Record:
        """Name the file and the instants in statistics. Sizes, which depend on compression, become whether there are some."""
        held = record.pop("ColumnStatsMetadata")
        assert file is not None
        assert (held["columnName"], held["fileName"]) == (column, _name(file.path))
        held |= {
            "fileName": file.name,
            "totalSize": held["totalSize"] > 0,
            "totalUncompressedSize": held["totalUncompressedSize"] > 0,
        }
        for end in ("minValue", "maxValue"):
            if column == "_hoodie_commit_time" and held[end] is not None:
                held[end] = (held[end][0], self.steps[held[end][1]["value"]])
        return {**record, **held}

    def bloom_filter(self, record: Record, _column: str, file: DataFile | None) -> Record:
        """Replace the bytes of a filter by whether they are those of a filter of this size with the keys of the file."""
        held = record.pop("BloomFilterMetadata")
        found = BloomFilter.from_bytes(base64.b64decode(held["bloomFilter"]), is_dynamic=held["type"] == "DYNAMIC_V0")
        assert file is not None
        empty = BloomFilter(found.hashes, found.bits, (bytes(len(found.rows[0])),))
        filled = empty.with_keys(KeyBytes(pa.array(file.keys, pa.string())))
        return {**record, **held, "timestamp": self.steps[held["timestamp"]], "bloomFilter": found == filled}

    def location(self, record: Record, _column: str, _file: DataFile | None) -> Record:
        """Name the file group and the instant in a record of the record index."""
        held = record.pop("recordIndexMetadata")
        bits = (held.pop("fileIdHighBits") % 2**64) << 64 | held.pop("fileIdLowBits") % 2**64
        group = self.groups[held["partitionName"], f"{uuid.UUID(int=bits)}-{held.pop('fileIndex')}"]
        at = {round(time_from_instant(instant).timestamp() * 1000): step for instant, step in self.steps.items()}
        return {**record, **held, "group": group, "instantTime": at.get(held["instantTime"], "no write")}


_NAMED: dict[str, Callable[[Written, Record, str, DataFile | None], Record]] = {
    FILES: Written.list_of_files,
    COLUMN_STATS: Written.statistics,
    BLOOM_FILTERS: Written.bloom_filter,
    RECORD_INDEX: Written.location,
}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _entries(storage: LocalStorage, path: str) -> Iterator[tuple[str, str, Record | None]]:
    base = parse_base_file_name(_name(path))
    if base is not None:
        hfile = HFile(storage.read(path))
        yield from ((base.instant, *found) for found in _decoded(hfile, hfile.file_info["schema"].decode()))
        return
    for block in scan_log(storage, path).blocks:
        if block.type is BlockType.DELETE:
            for key in read_deletes(storage, block).column("_hoodie_record_key").to_pylist():
                yield block.instant, key, None
        else:
            hfile = HFile(read_content(storage, block, BlockType.HFILE))
            yield from ((block.instant, *found) for found in _decoded(hfile, block.schema_json))


def _decoded(hfile: HFile, schema: str) -> Iterator[tuple[str, Record]]:
    """Yield the key and the fields with a value of each record. A bound comes with the name of its wrapper."""
    parsed: Any = fastavro.parse_schema(json.loads(schema))
    for row in hfile.read().to_pylist():
        record: Any = fastavro.schemaless_reader(io.BytesIO(row["value"]), parsed, None, return_record_name=True)
        held = {name: value[1] if isinstance(value, tuple) else value for name, value in record.items() if value is not None}
        yield row["key"].decode(), held
