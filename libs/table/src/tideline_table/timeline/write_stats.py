"""Commit metadata: write stats and the JSON documents of completed write instants (format reference 5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tideline_table.errors import CorruptMetadata
from tideline_table.json_text import parse_json

NO_PREVIOUS_COMMIT = "null"
"""Hudi's literal text for a file group that did not exist before."""
SCHEMA_KEY = "schema"
LATEST_SCHEMA_KEY = "latest_schema"
"""In tables whose columns have ids: the version of the schema that the write went by."""


@dataclass(frozen=True, slots=True)
class WriteStat:
    """What one write did to one file group. Names follow Hudi's JSON in Python's case."""

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

    @property
    def is_log(self) -> bool:
        """Whether the file written is a log file."""
        return ".log." in self.path.rsplit("/", 1)[-1]

    def to_json(self) -> dict[str, Any]:
        """Hudi's write stat object."""
        stat: dict[str, Any] = {
            "fileId": self.file_id,
            "path": self.path,
            "cdcStats": None,
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
        if self.is_log:
            # Every append makes a file of its own, so its blocks start at its beginning.
            stat |= {
                "logVersion": self.log_version,
                "logOffset": 0,
                "baseFile": self.base_file,
                "logFiles": list(self.log_files),
                "recordsStats": {"val": None},
            }
        return stat

    @classmethod
    def from_json(cls, stat: Mapping[str, Any]) -> WriteStat:
        """Read a write stat of any release; absent numbers are 0."""
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
        )

    def to_plain(self) -> dict[str, Any]:
        """A dictionary for shipping between processes."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The document of a completed commit, delta commit or replace commit."""

    operation: str
    stats: tuple[WriteStat, ...]
    extra: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, Sequence[str]] | None = None
    compacted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Hudi's document; `replaced` makes it a replace commit's."""
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

    def to_bytes(self) -> bytes:
        """The completed timeline file's content."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommitMetadata:
        """Read the document of any release; unknown keys are ignored."""
        stats = tuple(WriteStat.from_json(s) for part in (document.get("partitionToWriteStats") or {}).values() for s in part)
        replaced = document.get("partitionToReplaceFileIds")
        return cls(
            operation=str(document.get("operationType") or "UNKNOWN"),
            stats=stats,
            extra={str(k): str(v) for k, v in (document.get("extraMetadata") or {}).items()},
            replaced=None if replaced is None else {str(p): tuple(map(str, ids)) for p, ids in replaced.items()},
            compacted=bool(document.get("compacted")),
        )

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> CommitMetadata:
        """Parse a completed timeline file; `CorruptMetadata` names it when it is broken."""
        try:
            document = parse_json(content) if content else {}
            return cls.from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptMetadata(
                f"timeline file {path} cannot be read ({error})",
                expected="commit metadata in JSON",
                remedy="restore the file; nothing was changed",
            ) from None
