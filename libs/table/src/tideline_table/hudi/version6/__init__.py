"""Table version 6 with timeline layout 1, and the older versions that are read like it (format reference 4 to 9)."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tideline_table.errors import ObjectExists, ObjectNotFound
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import LogFileName
from tideline_table.hudi.format import SINCE_VERSION_9, ArchivedInstant, Feature, TableFormat, folder_in
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.merge_rules import MergeRule
from tideline_table.hudi.version6.archive import archived_extra, read_archive
from tideline_table.hudi.version6.archived_entry import archive_content
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.storage import Storage, exists

_VERSION = 6
_FOLDER, _ARCHIVE = ".hoodie", "archived"
_FILE = re.compile(r"^(\d{14,23})\.(?:(inflight)|([a-z]+)(?:\.(requested|inflight))?)\Z", re.ASCII)
_ON_TIMELINE = frozenset(Action) - {Action.ARCHIVAL}


@dataclass(frozen=True, slots=True)
class Version6(TableFormat):
    """The format that Tideline writes. Its timeline files say no completion times: modification times of files stand for them."""

    layout: ClassVar[str] = "1"

    @classmethod
    def of(cls, properties: Mapping[str, str], version: int) -> Version6:
        """Return the format of a table. Raises `UnsafePath` for folders outside the table."""
        # Hudi 1.x also writes the folder properties of layout 2 into these tables, where they have no meaning (2.1).
        return cls(version, _FOLDER, folder_in(_FOLDER, properties.get(p.ARCHIVE_FOLDER) or _ARCHIVE))

    @property
    def has_completion_times(self) -> bool:
        return False

    @property
    def has_merge_modes(self) -> bool:
        return False

    @property
    def missing(self) -> Mapping[Feature, int]:
        return {**dict.fromkeys(SINCE_VERSION_9, 9), Feature.PARTIAL_RECORDS: 8}

    def version_properties(self) -> Mapping[str, str]:
        return {p.VERSION: str(_VERSION), p.LAYOUT: self.layout, p.ARCHIVE_FOLDER: _ARCHIVE, p.TIMEZONE: "UTC"}

    def merge_properties(self, rule: MergeRule, ordering_field: str) -> Mapping[str, str]:
        return {p.PAYLOAD_CLASS: rule.payload_class, **({p.PRECOMBINE_FIELD: ordering_field} if ordering_field else {})}

    def timeline_file_name(self, instant: Instant, completion: str = "") -> str:  # noqa: ARG002
        """Return the file name inside `.hoodie` for an instant in its state (the table in 4.1)."""
        if instant.state is State.COMPLETED:
            return f"{instant.time}.{completed_as(instant.action)}"
        if instant.state is State.INFLIGHT and instant.action is Action.COMMIT:
            return f"{instant.time}.inflight"
        return f"{instant.time}.{instant.action}.{instant.state}"

    def parse_timeline_file_name(self, name: str) -> tuple[Instant, str] | None:
        instant = parse_timeline_file_name(name)
        return None if instant is None else (instant, "")

    def commit_content(self, metadata: CommitMetadata, *, indent: int | None = 2) -> bytes:
        """See `TableFormat`: JSON."""
        return metadata.to_bytes(indent=indent)

    def log_file_name(self, file_id: str, base_instant: str, instant: str, version: int, token: str) -> str:  # noqa: ARG002
        """See `TableFormat`: the slice, not the write."""
        return f".{file_id}_{base_instant}.log.{version}_{token}"

    def writer_of(self, log: LogFileName) -> str:  # noqa: ARG002
        return ""

    def slice_of(self, log: LogFileName, begun: Sequence[str], completion: Callable[[str], str]) -> str:  # noqa: ARG002
        """See `TableFormat`; ignores modification times (11.3)."""
        return log.instant

    def archived_instants(self, storage: Storage, first: str = "", last: str = "") -> list[ArchivedInstant]:  # noqa: ARG002
        """See `TableFormat`. A truncated end of a file, left by a failed archival, is skipped."""
        return read_archive(storage, self.history_folder)

    def archive(self, storage: Storage, number: int, files: Sequence[tuple[Instant, str]], batch: int) -> str:
        """See `TableFormat`: one file, which is created once."""
        path = f"{self.history_folder}/.commits_.archive.{number}_1-0-1"
        if not exists(storage, path):
            try:
                with contextlib.suppress(ObjectExists):
                    storage.put_if_absent(path, archive_content(storage, files, batch))
            except ObjectNotFound:
                # Another run of the same archival may be ahead: it deletes timeline files only after it wrote the archive.
                if not exists(storage, path):
                    raise
        return path

    def archived_extra(self, storage: Storage) -> Iterator[tuple[str, Mapping[str, str]]]:
        """See `TableFormat`; errors as `archived_instants`."""
        return archived_extra(storage, self.history_folder)


def parse_timeline_file_name(name: str) -> Instant | None:
    """Parse a file name inside `.hoodie`. Return None for names that are not timeline files."""
    match = _FILE.match(name)
    if match is None:
        return None
    time, bare_inflight, action, state = match.groups()
    if bare_inflight:
        return Instant(time, Action.COMMIT, State.INFLIGHT)
    if action not in _ON_TIMELINE:
        return None
    return Instant(time, Action(action), State(state) if state else State.COMPLETED)


VERSION_6 = Version6.of({}, _VERSION)
