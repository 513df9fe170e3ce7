"""Table version 6 with timeline layout 1, and the older versions that are read like it (format reference 4 to 9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import LogFileName
from tideline_table.hudi.format import ArchivedInstant, TableFormat, folder_in
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.version6.archive import archived_extra, read_archive
from tideline_table.hudi.version6.archived_entry import archive_content
from tideline_table.storage import Storage

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
        """See `TableFormat`."""
        return False

    @property
    def has_merge_modes(self) -> bool:
        """See `TableFormat`."""
        return False

    def version_properties(self) -> Mapping[str, str]:
        """See `TableFormat`."""
        return {p.VERSION: str(_VERSION), p.LAYOUT: self.layout, p.ARCHIVE_FOLDER: _ARCHIVE, p.TIMEZONE: "UTC"}

    def timeline_file_name(self, instant: Instant, completion: str = "") -> str:  # noqa: ARG002
        """Return the file name inside `.hoodie` for an instant in its state (the table in 4.1)."""
        if instant.state is State.COMPLETED:
            return f"{instant.time}.{completed_as(instant.action)}"
        if instant.state is State.INFLIGHT and instant.action is Action.COMMIT:
            return f"{instant.time}.inflight"
        return f"{instant.time}.{instant.action}.{instant.state}"

    def parse_timeline_file_name(self, name: str) -> tuple[Instant, str] | None:
        """See `TableFormat`."""
        instant = parse_timeline_file_name(name)
        return None if instant is None else (instant, "")

    def log_file_name(self, file_id: str, base_instant: str, instant: str, version: int, token: str) -> str:  # noqa: ARG002
        """See `TableFormat`: the slice, not the write."""
        return f".{file_id}_{base_instant}.log.{version}_{token}"

    def writer_of(self, log: LogFileName) -> str:  # noqa: ARG002
        """See `TableFormat`."""
        return ""

    def slice_of(self, log: LogFileName, begun: Sequence[str], completion: Callable[[str], str]) -> str:  # noqa: ARG002
        """See `TableFormat`; ignores modification times (11.3)."""
        return log.instant

    def archived_instants(self, storage: Storage, first: str = "", last: str = "") -> list[ArchivedInstant]:  # noqa: ARG002
        """See `TableFormat`. A truncated end of a file, left by a failed archival, is skipped."""
        return read_archive(storage, self.history_folder)

    def archive_path(self, number: int) -> str:
        """See `TableFormat`."""
        return f"{self.history_folder}/.commits_.archive.{number}_1-0-1"

    def archive_content(self, storage: Storage, files: Iterable[tuple[Instant, str]], batch: int) -> bytes:
        """See `TableFormat`."""
        return archive_content(storage, files, batch)

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
