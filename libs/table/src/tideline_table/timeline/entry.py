"""Entries of the table log: what one transition of the table's timeline says (design: "One table log")."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.json_text import parse_json
from tideline_table.timeline.instant import Action, State

LOG_FORMAT = 1
LOG_FOLDER = ".hoodie/.tideline/log"
BODY_FOLDER = ".hoodie/.tideline/bodies"
INLINE_BODY_BYTES = 1024 * 1024
"""Bodies above this are stored beside the log and referred to by hash."""


@dataclass(frozen=True, slots=True)
class BodyReference:
    """Where the body of a large entry is, and what it must hash to."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One transition at its place in the gapless, totally ordered log of a table. Sequences start at 1."""

    sequence: int
    append_id: str
    recorded: str
    writer_id: str
    instant: str
    action: Action
    before: State
    after: State
    operation: str
    body: Mapping[str, Any] = field(default_factory=dict)
    body_reference: BodyReference | None = None

    @property
    def path(self) -> str:
        """The object that holds this entry."""
        return entry_path(self.sequence)

    @property
    def target(self) -> str:
        """For a rollback the instant that it undoes, otherwise empty."""
        return str(self.body.get("target", "")) if self.action is Action.ROLLBACK else ""

    def with_body(self, body: Mapping[str, Any]) -> Entry:
        """This entry with its referenced body filled in."""
        return replace(self, body=body)

    def to_bytes(self) -> bytes:
        """The object's content: one JSON document."""
        document: dict[str, Any] = {
            "log_format": LOG_FORMAT,
            "sequence": self.sequence,
            "append_id": self.append_id,
            "recorded": self.recorded,
            "writer_id": self.writer_id,
            "instant": self.instant,
            "action": self.action.value,
            "before": self.before.value,
            "after": self.after.value,
            "operation": self.operation,
        }
        if self.body_reference is None:
            document["body"] = dict(self.body)
        else:
            reference = self.body_reference
            document["body_reference"] = {"path": reference.path, "sha256": reference.sha256, "size_bytes": reference.size_bytes}
        return json.dumps(document, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Entry:
        """Read an entry; a newer log format is refused by name, a broken one is `CorruptMetadata`."""
        try:
            return cls.from_json(parse_json(content), path)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, error) from None

    @classmethod
    def from_json(cls, document: Any, path: str) -> Entry:
        """The entry that `document` says; errors as `from_bytes`."""
        try:
            version = document["log_format"]
            if version != LOG_FORMAT:
                raise UnsupportedTable(
                    f"table log entry {path} in log format {version}",
                    expected=f"log format {LOG_FORMAT}",
                    remedy="upgrade Tideline",
                )
            reference = document.get("body_reference")
            return cls(
                sequence=int(document["sequence"]),
                append_id=str(document["append_id"]),
                recorded=str(document["recorded"]),
                writer_id=str(document["writer_id"]),
                instant=str(document["instant"]),
                action=Action(document["action"]),
                before=State(document["before"]),
                after=State(document["after"]),
                operation=str(document["operation"]),
                body=dict(document.get("body") or {}),
                body_reference=BodyReference(str(reference["path"]), str(reference["sha256"]), int(reference["size_bytes"]))
                if reference
                else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> CorruptMetadata:
    return CorruptMetadata(
        f"table log entry {path} cannot be read ({type(error).__name__}: {error})",
        expected="an entry in JSON",
        remedy="restore the file; nothing was changed",
    )


def entry_path(sequence: int) -> str:
    """The object of entry `sequence`; names sort like sequences."""
    return f"{LOG_FOLDER}/{sequence:020d}.json"
