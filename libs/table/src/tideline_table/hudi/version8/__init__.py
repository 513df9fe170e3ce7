"""Table versions 8 and 9 with timeline layout 2 (format reference 16.3, and that of versions 8 and 9)."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import LogFileName
from tideline_table.hudi.format import SINCE_VERSION_9, ArchivedInstant, Feature, TableFormat, folder_in
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.merge_rules import STRATEGIES, MergeRule
from tideline_table.hudi.version6 import VERSION_6, parse_timeline_file_name
from tideline_table.hudi.version8.commit import commit_content
from tideline_table.hudi.version8.history import read_history
from tideline_table.hudi.version8.history_writer import archive
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.storage import Storage

FIRST_VERSION = 8
_TIMELINE, _HISTORY = "timeline", "history"
_CLUSTERING = "clustering"
_FILE = re.compile(r"^(\d{14,20})(?:_(\d{14,20}))?\.(.+)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version8(TableFormat):
    """The format that releases 1.x of Apache Hudi make by default."""

    layout: ClassVar[str] = "2"

    @classmethod
    def of(cls, properties: Mapping[str, str], version: int) -> Version8:
        """Return the format of a table. Raises `UnsafePath` for folders outside the table."""
        active = folder_in(".hoodie", properties.get(p.TIMELINE_PATH) or _TIMELINE)
        return cls(version, active, folder_in(active, properties.get(p.HISTORY_PATH) or _HISTORY))

    @property
    def has_completion_times(self) -> bool:
        """See `TableFormat`. False in a table that an upgrade left with the version before."""
        return self.version >= FIRST_VERSION

    @property
    def has_merge_modes(self) -> bool:
        """See `TableFormat`. False in a table that an upgrade left with the version before."""
        return self.version >= FIRST_VERSION

    @property
    def combines_by_mode(self) -> bool:
        """See `TableFormat`. Since version 9."""
        return self.version > FIRST_VERSION

    @property
    def has_typed_statistics(self) -> bool:
        """See `TableFormat`. Since version 9."""
        return self.version > FIRST_VERSION

    def version_properties(self) -> Mapping[str, str]:
        version = str(self.version)
        return {
            p.VERSION: version,
            p.INITIAL_VERSION: version,
            p.LAYOUT: self.layout,
            p.TIMELINE_PATH: _TIMELINE,
            p.HISTORY_PATH: _HISTORY,
            p.TIMEZONE: "UTC",
        }

    def merge_properties(self, rule: MergeRule, ordering_field: str) -> Mapping[str, str]:
        """See `TableFormat`: the mode; in version 8 also what Apache Hudi 1.0 reads instead of it."""
        ordering = {p.ORDERING_FIELDS: ordering_field} if ordering_field else {}
        if self.version > FIRST_VERSION:
            return {p.MERGE_MODE: rule.mode, **rule.properties, **ordering}
        mode = rule.mode_before_9
        older = {p.PRECOMBINE_FIELD: ordering_field} if ordering_field else {}
        return {p.MERGE_MODE: mode, p.MERGE_STRATEGY: STRATEGIES[mode], p.PAYLOAD_CLASS: rule.payload_class, **ordering, **older}

    @property
    def new_files(self) -> tuple[str, ...]:
        """See `TableFormat`: Apache Hudi's readers fail without the timeline's folder, and read only names of instants in it."""
        return (f"{self.timeline_folder}/.keep",)

    def commit_content(self, metadata: CommitMetadata, *, indent: int | None = 2) -> bytes:  # noqa: ARG002 - for text
        """See `TableFormat`: Avro."""
        return commit_content(metadata)

    @property
    def missing(self) -> Mapping[Feature, int]:
        return {} if self.version > FIRST_VERSION else dict.fromkeys(SINCE_VERSION_9, FIRST_VERSION + 1)

    def log_file_name(self, file_id: str, base_instant: str, instant: str, version: int, token: str) -> str:  # noqa: ARG002
        """See `TableFormat`: the write, not the slice."""
        return f".{file_id}_{instant}.log.{version}_{token}"

    def archive(self, storage: Storage, number: int, files: Sequence[tuple[Instant, str]], batch: int) -> str:  # noqa: ARG002
        return archive(storage, self.history_folder, [(i, self._completion(i, path), path) for i, path in files])

    def _completion(self, instant: Instant, path: str) -> str:
        parsed = self.parse_timeline_file_name(path.rpartition("/")[2])
        return (parsed[1] if parsed is not None else "") or instant.time

    def timeline_file_name(self, instant: Instant, completion: str = "") -> str:
        if instant.state is State.COMPLETED and completion not in ("", instant.time):
            return f"{instant.time}_{completion}.{completed_as(instant.action)}"
        if instant.is_clustering and instant.state is not State.COMPLETED:
            return f"{instant.time}.{_CLUSTERING}.{instant.state}"
        return VERSION_6.timeline_file_name(instant)

    def possible_paths(self, instant: Instant, completion: str = "") -> tuple[str, ...]:
        """See `TableFormat`: a pending replace commit may be a clustering."""
        if instant.action is not Action.REPLACE_COMMIT or instant.state is State.COMPLETED:
            return (self.timeline_path(instant, completion),)
        return tuple(self.timeline_path(replace(instant, is_clustering=one)) for one in (False, True))

    def parse_timeline_file_name(self, name: str) -> tuple[Instant, str] | None:
        """Parse `<requested>[_<completed>].<action>[.<state>]`.

        The completion time is empty for pending instants, and for completed instants of releases that did not write it.
        """
        match = _FILE.match(name)
        if match is None:
            return None
        requested, completed, rest = match.groups()
        # A pending clustering has a name of its own; a completed one is a replace commit.
        left = rest.removeprefix(f"{_CLUSTERING}.")
        instant = parse_timeline_file_name(f"{requested}.{rest if left == rest else f'{Action.REPLACE_COMMIT}.{left}'}")
        if instant is None or (completed and instant.state is not State.COMPLETED):
            return None
        return replace(instant, is_clustering=left != rest), completed or ""

    def writer_of(self, log: LogFileName) -> str:
        return log.instant

    def slice_of(self, log: LogFileName, begun: Sequence[str], completion: Callable[[str], str]) -> str:
        """See `TableFormat`: the newest slice that began before the write completed; if there is none, one of its own."""
        at = bisect.bisect_right(begun, completion(log.instant))
        return begun[at - 1] if at else log.instant

    def archived_instants(self, storage: Storage, first: str = "", last: str = "") -> list[ArchivedInstant]:
        return read_history(storage, self.history_folder, first, last)
