"""Commit metadata: write stats and the JSON documents of completed write instants (format reference 5)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tideline_table.errors import UnsupportedTable, parsing
from tideline_table.hudi.avro_container import MAGIC, decode_document
from tideline_table.hudi.file_names import is_log_path, parse_base_file_name, parse_log_file_name
from tideline_table.json_text import parse_json
from tideline_table.row_digest import RowDigest
from tideline_table.statistics import FileStatistics
from tideline_table.storage import DataPath, recorded_ranges

NO_PREVIOUS_COMMIT = "null"
"""Text that Hudi writes for a file group that did not exist before."""
SCHEMA_KEY = "schema"
_RECORD = "tidelineRecord"
LATEST_SCHEMA_KEY = "latest_schema"
"""Extra metadata key, in tables whose columns have ids: the schema version that the write used."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The digest of the rows that were read back from a written file, and what that took."""

    digest: RowDigest
    proof_s: float
    """Seconds for hashing the rows and reading them back."""
    task_s: float
    """Seconds for the whole task, or for its part that this file stands for."""


@dataclass(frozen=True, slots=True)
class FileKeys:
    """What the writer of a base file knows about its record keys, so that the same process need not read them in the file."""

    inserted: pa.ChunkedArray
    """The keys that the write added to the file group: those of all rows if the group is new."""
    bloom: tuple[str, bytes] | None
    """The form of the Bloom filter in the footer, and the filter in Base64; None without a filter."""


@dataclass(frozen=True, slots=True)
class WriteStat:
    """Changes of one write to one file group. Field names are those of Hudi's JSON in snake case."""

    file_id: str
    partition_path: str
    path: str
    prev_commit: str
    num_writes: int
    file_size_bytes: int
    num_inserts: int = 0
    num_updates: int = 0
    num_deletes: int = 0
    base_file: str = ""
    log_files: tuple[str, ...] = ()
    log_version: int = 0
    log_files_compacted: int = 0
    log_offset: int = 0
    """Where the write begins in a log file to which Apache Hudi appended it. `file_size_bytes` then counts what it appended."""
    changes: Mapping[str, int] | None = field(default=None, compare=False)
    """The change file of the write by its path, with its size. Empty for a log file in a table with change files, whose write stats
    name the slice, as Apache Hudi's queries of changes ask there."""
    record: str = field(default="", compare=False)
    """The digests of the file's bytes, as of `DataPath`; empty if its writer, Apache Hudi for example, took none."""
    proof: Proof | None = field(default=None, compare=False)
    """What a table service read back from the file; not part of Hudi's document."""
    statistics: FileStatistics | None = field(default=None, compare=False)
    """Statistics of its columns if the writer took them; not part of Hudi's document."""
    keys: FileKeys | None = field(default=None, compare=False, repr=False)
    """Of a base file that this process wrote with few rows; not part of Hudi's document, and in no entry that was read."""

    @property
    def data_path(self) -> DataPath:
        """The path with what the write recorded about the bytes of the file."""
        return DataPath(self.path, self.end_bytes, self.record)

    @property
    def end_bytes(self) -> int:
        """The size of the file after the write."""
        return self.log_offset + self.file_size_bytes

    @property
    def is_log(self) -> bool:
        """Whether the file written is a log file."""
        return is_log_path(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return Hudi's JSON object for the write stat."""
        stat: dict[str, Any] = {
            "fileId": self.file_id,
            "path": self.path,
            "cdcStats": None if self.changes is None else dict(self.changes),
            "prevCommit": self.prev_commit,
            "numWrites": self.num_writes,
            "numDeletes": self.num_deletes,
            "numUpdateWrites": self.num_updates,
            "numInserts": self.num_inserts,
            "totalWriteBytes": self.file_size_bytes,
            "totalWriteErrors": 0,
            "tempPath": None,
            "partitionPath": self.partition_path,
            "totalLogRecords": 0,
            "totalLogFilesCompacted": self.log_files_compacted,
            "totalLogSizeCompacted": 0,
            "totalUpdatedRecordsCompacted": 0,
            "totalLogBlocks": 0,
            "totalCorruptLogBlock": 0,
            "totalRollbackBlocks": 0,
            "fileSizeInBytes": self.file_size_bytes,
            "minEventTime": None,
            "maxEventTime": None,
            "runtimeStats": None,
        }
        if self.record:
            # Not of Hudi, whose readers ignore fields that they do not know.
            stat[_RECORD] = self.record
        if self.is_log:
            # Every append creates a new file, so its blocks start at offset 0.
            stat |= {
                "logVersion": self.log_version,
                "logOffset": self.log_offset,
                "baseFile": self.base_file,
                "logFiles": list(self.log_files),
                "recordsStats": {"val": None},
            }
        return stat

    @classmethod
    def from_json(cls, stat: Mapping[str, Any]) -> WriteStat:
        """Parse a write stat of any release. Absent numbers are 0."""
        return cls(
            file_id=str(stat["fileId"]),
            partition_path=str(stat.get("partitionPath") or ""),
            path=str(stat["path"] or ""),
            prev_commit=str(stat.get("prevCommit") or NO_PREVIOUS_COMMIT),
            num_writes=int(stat.get("numWrites") or 0),
            file_size_bytes=int(stat.get("fileSizeInBytes") or 0),
            num_inserts=int(stat.get("numInserts") or 0),
            num_updates=int(stat.get("numUpdateWrites") or 0),
            num_deletes=int(stat.get("numDeletes") or 0),
            base_file=str(stat.get("baseFile") or ""),
            log_files=tuple(stat.get("logFiles") or ()),
            log_version=int(stat.get("logVersion") or 0),
            log_files_compacted=int(stat.get("totalLogFilesCompacted") or 0),
            log_offset=int(stat.get("logOffset") or 0),
            changes=None if (changes := stat.get("cdcStats")) is None else {str(path): int(size) for path, size in changes.items()},
            record=str(stat.get(_RECORD) or ""),
        )


RECORDS_KEY = "tideline.records"
"""Extra metadata of commits in Avro, whose write stats have Hudi's fields only: a JSON object from file names to records.

`CommitMetadata.from_json` moves the records back into the stats.
"""
REPLACED_ROWS_KEY = "tideline.replaced.rows"
"""Extra metadata of overwrites and partition deletions: the number of rows in the file groups that they replace, -1 if unknown."""
_REWRITES = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT"})
"""Operations that keep the rows of a table as they are."""
_OVERWRITES = frozenset({"INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE", "DELETE_PARTITION"})
"""Operations that replace file groups without their rows."""


def records_text(stats: Iterable[WriteStat]) -> str:
    """Return the value of `RECORDS_KEY`; empty if no stat has a record. Entries of the log do not keep the order of stats."""
    records = {stat.path.rpartition("/")[2]: stat.record for stat in stats if stat.record}
    return json.dumps(records, separators=(",", ":"), sort_keys=True) if records else ""


def _with_records(stats: tuple[WriteStat, ...], records: Mapping[str, Any]) -> tuple[WriteStat, ...]:
    found = ((stat, str(records.get(stat.path.rpartition("/")[2], ""))) for stat in stats)
    return tuple(replace(stat, record=record) if record else stat for stat, record in found)


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The document of a completed commit, delta commit or replace commit."""

    operation: str
    stats: tuple[WriteStat, ...]
    extra: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, Sequence[str]] | None = None
    compacted: bool = False

    @property
    def is_rewrite(self) -> bool:
        """Whether the commit keeps the rows as they are. Apache Hudi counts the rows that its clustering moves as inserts.

        It does not change the schema of the table: a job that began before another one added a column names the schema of before.
        """
        return self.compacted or self.operation.upper() in _REWRITES

    @property
    def says_more(self) -> bool:
        """Whether the extra metadata has more than the schema: progress of an ingestion, numbers of buckets, rings."""
        return len(self.extra) > (SCHEMA_KEY in self.extra)

    @property
    def rows_inserted(self) -> int:
        """The number of rows with new keys: 0 for a rewrite."""
        return 0 if self.is_rewrite else sum(s.num_inserts for s in self.stats)

    @property
    def rows_updated(self) -> int:
        """The number of rows that replaced an older version: 0 for a rewrite."""
        return 0 if self.is_rewrite else sum(s.num_updates for s in self.stats)

    @property
    def rows_deleted(self) -> int:
        """The number of rows removed, with those of replaced file groups; -1 if unknown: Apache Hudi does not count these."""
        deleted = 0 if self.is_rewrite else sum(s.num_deletes for s in self.stats)
        if self.operation.upper() not in _OVERWRITES:
            return deleted
        replaced = self.extra.get(REPLACED_ROWS_KEY, "")
        return deleted + int(replaced) if replaced.isascii() and replaced.isdecimal() else -1

    def to_json(self) -> dict[str, Any]:
        """Return Hudi's JSON document; that of a replace commit if `replaced` is not None."""
        by_partition: dict[str, list[dict[str, Any]]] = {}
        for stat in self.stats:
            by_partition.setdefault(stat.partition_path, []).append(stat.to_json())
        document: dict[str, Any] = {
            "partitionToWriteStats": by_partition,
            "compacted": self.compacted,
            "extraMetadata": dict(self.extra),
            "operationType": self.operation,
        }
        if self.replaced is not None:
            document["partitionToReplaceFileIds"] = {p: list(ids) for p, ids in self.replaced.items()}
        return document

    def to_bytes(self, *, indent: int | None = 2) -> bytes:
        """Return the document as text. With None for `indent` it has one line, and is encoded much faster."""
        return json.dumps(self.to_json(), indent=indent, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommitMetadata:
        """Parse the document of any release. Unknown keys are ignored."""
        stats = tuple(WriteStat.from_json(s) for part in (document.get("partitionToWriteStats") or {}).values() for s in part)
        replaced = document.get("partitionToReplaceFileIds")
        extra = {str(k): str(v) for k, v in (document.get("extraMetadata") or {}).items()}
        if records := extra.pop(RECORDS_KEY, ""):
            stats = _with_records(stats, parse_json(records.encode()))
        return cls(
            operation=str(document.get("operationType") or "UNKNOWN"),
            stats=stats,
            extra=extra,
            replaced=None if replaced is None else {str(p): tuple(map(str, ids)) for p, ids in replaced.items()},
            compacted=bool(document.get("compacted")),
        )

    def require_hudi_names(self, path: str) -> None:
        """Raise `UnsupportedTable` if this commit, in timeline file `path`, names a data file as no writer of Hudi does.

        Translators of other table formats commit their data files in place, with such names. No listing finds these files, so
        their rows would be missing without an error.
        """
        for stat in self.stats:
            name = stat.path.rsplit("/", 1)[-1]
            if name and parse_base_file_name(name) is None and parse_log_file_name(name) is None:
                raise UnsupportedTable(
                    f"timeline file {path} names the data file {stat.path}",
                    expected="names of Hudi: <file id>_<write token>_<instant>.<extension>, or those of log files",
                    remedy="read the table in its own format (XTable and UniForm translate commits, not files)",
                )

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> CommitMetadata:
        """Parse a completed timeline file in JSON or Avro: upgraded tables mix both (format reference 5, 16.3).

        Raises `CorruptMetadata`, which names `path`, for a malformed file.
        """
        document = decode_document(content, path) if content.startswith(MAGIC) else None
        with parsing(f"timeline file {path}", "commit metadata in JSON" if document is None else "commit metadata in Avro"):
            # All releases use the field names of the JSON document in Avro, too.
            found = cls.from_json(document if document is not None else parse_json(content) if content else {})
            for stat in found.stats:
                recorded_ranges(stat.record)  # nothing protects the bytes of the document itself
        return found
