"""Entries of the table log: one entry per transition of the table's timeline (docs/design/table-log.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tideline_table.errors import UnsupportedTable, parsing
from tideline_table.hudi.instant import Action, Named, State
from tideline_table.json_text import parse_sealed, sealed
from tideline_table.log.body import Bare, Body, Indexed, RestoreBegun, parse_body
from tideline_table.log.plan import LogMove, RollbackStep

LOG_FORMAT = 1
TIDELINE_FOLDER = ".hoodie/.tideline"
IDENTITY_PATH = f"{TIDELINE_FOLDER}/table.json"
LEAVING_PATH = f"{TIDELINE_FOLDER}/leaving"
"""The mark of a table whose Tideline files are being removed."""
LOCK_MARK_PATH = ".hoodie/.lock.crc"
"""What the lock on a disk leaves behind a release (`tideline_locks.hudi_file_lock`)."""
LOCK_GUARD_PATH = f"{TIDELINE_FOLDER}/lock-guard"
"""A file on a disk by which Tideline's processes take turns at the lock file of Apache Hudi."""
LOG_FOLDER = ".hoodie/.tideline/log"
BODY_FOLDER = ".hoodie/.tideline/bodies"
INLINE_BODY_BYTES = 1024 * 1024
"""Bodies above this size are stored beside the log; the entry refers to them by path and hash."""


@dataclass(frozen=True, slots=True)
class BodyReference:
    """Path, expected hash and size of a body that is stored beside the log."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry(Named):
    """One transition at its place in the table log, which has no gaps and a total order. Sequences start at 1."""

    sequence: int
    append_id: str
    recorded: str
    writer_id: str
    instant: str
    action: Action
    before: State
    after: State
    operation: str
    body: Body = Bare()  # noqa: RUF009 - frozen
    body_reference: BodyReference | None = None
    completion: str = ""
    """The completion time in the name of the completed file that it creates or deletes; empty if the table's names have none."""

    @property
    def path(self) -> str:
        """The object that holds this entry."""
        return entry_path(self.sequence)

    @property
    def target(self) -> str:
        """For a rollback, the instant that it undoes; otherwise empty."""
        return self.body.target if isinstance(self.body, RollbackStep) else ""

    @property
    def moved_logs(self) -> tuple[LogMove, ...]:
        """The log files that got other names by the rollback which this entry completes; none for other entries."""
        return (self.body.moves or ()) if isinstance(self.body, RollbackStep) and self.after is State.COMPLETED else ()

    @property
    def begins_restore(self) -> bool:
        """Whether this is the first attempt of a restore, from which on the writes of its plan are undone."""
        return isinstance(self.body, RestoreBegun)

    @property
    def created_index(self) -> Indexed | None:
        """The metadata table that this entry creates, None for other entries."""
        return self.body if isinstance(self.body, Indexed) and self.after is State.COMPLETED else None

    def with_body(self, document: Any, path: str = "") -> Entry:
        """Return this entry with the body parsed from `document`, which was read from `path`. Raises `CorruptMetadata`."""
        with parsing(f"table log entry {path or self.path} ({self.action} {self.instant})", "the body of its action"):
            return replace(self, body=parse_body(self.action, self.after, document))

    def to_bytes(self, body: dict[str, Any] | None = None) -> bytes:
        """Return the content of the object: one JSON document with its digest.

        `body` is the document of the body, if the caller has made it.
        """
        document: dict[str, Any] = {"log_format": LOG_FORMAT} | {name: getattr(self, name) for name in _HEADER}
        if self.completion:
            document["completion"] = self.completion
        if self.body_reference is None:
            document["body"] = self.body.to_json() if body is None else body
        else:
            document["body_reference"] = asdict(self.body_reference)
        return sealed(json.dumps(document, ensure_ascii=False).encode())

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Entry:
        """Parse an entry. Raises `UnsupportedTable` for another log format and `CorruptMetadata` for a malformed entry."""
        with parsing(f"table log entry {path}", "an entry in JSON"):
            return cls.from_json(parse_sealed(content), path)

    @classmethod
    def from_json(cls, document: Any, path: str) -> Entry:
        """Parse an entry from its JSON document. Raises the same errors as `from_bytes`."""
        with parsing(f"table log entry {path}", "an entry in JSON"):
            version = document["log_format"]
            if version != LOG_FORMAT:
                raise UnsupportedTable(
                    f"table log entry {path} in log format {version}",
                    expected=f"log format {LOG_FORMAT}",
                    remedy="upgrade Tideline",
                )
            header = {name: parse(document[name]) for name, parse in _HEADER.items()}
            header["completion"] = str(document.get("completion", ""))
            if reference := document.get("body_reference"):
                found = BodyReference(str(reference["path"]), str(reference["sha256"]), int(reference["size_bytes"]))
                return cls(**header, body_reference=found)
            return cls(**header).with_body(document.get("body") or {}, path)


_HEADER: Mapping[str, Callable[[Any], Any]] = {
    "sequence": int,
    "append_id": str,
    "recorded": str,
    "writer_id": str,
    "instant": str,
    "action": Action,
    "before": State,
    "after": State,
    "operation": str,
}
"""Fields of an entry in the order of its JSON document, with the parser of each."""


def sequence_in(digits: str) -> int | None:
    """Return the sequence in a part of an object name, or None for other texts, so that unknown objects are left alone."""
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdecimal() else None


def entry_path(sequence: int) -> str:
    """Return the path of entry `sequence`. Names sort in the order of sequences."""
    return f"{LOG_FOLDER}/{sequence:020d}.json"
