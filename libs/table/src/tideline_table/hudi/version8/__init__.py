"""Table versions 8 and 9 with timeline layout 2, read only (format reference 16.3)."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import LogFileName
from tideline_table.hudi.format import ArchivedInstant, TableFormat, folder_in
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.version6 import VERSION_6, parse_timeline_file_name
from tideline_table.hudi.version8.history import read_history
from tideline_table.storage import Storage

FIRST_VERSION = 8
_CLUSTERING = "clustering"
_FILE = re.compile(r"^(\d{14,20})(?:_(\d{14,20}))?\.(.+)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version8(TableFormat):
    """The format that releases 1.x of Apache Hudi make by default."""

    layout: ClassVar[str] = "2"

    @classmethod
    def of(cls, properties: Mapping[str, str], version: int) -> Version8:
        """Return the format of a table. Raises `UnsafePath` for folders outside the table."""
        active = folder_in(".hoodie", properties.get(p.TIMELINE_PATH) or "timeline")
        return cls(version, active, folder_in(active, properties.get(p.HISTORY_PATH) or "history"))

    @property
    def has_completion_times(self) -> bool:
        """See `TableFormat`. False in a table that an upgrade left with the version before."""
        return self.version >= FIRST_VERSION

    @property
    def has_merge_modes(self) -> bool:
        """See `TableFormat`. False in a table that an upgrade left with the version before."""
        return self.version >= FIRST_VERSION

    def timeline_file_name(self, instant: Instant, completion: str = "") -> str:
        """See `TableFormat`."""
        if instant.state is State.COMPLETED and completion not in ("", instant.time):
            return f"{instant.time}_{completion}.{completed_as(instant.action)}"
        if instant.is_clustering and instant.state is not State.COMPLETED:
            return f"{instant.time}.{_CLUSTERING}.{instant.state}"
        return VERSION_6.timeline_file_name(instant)

    def possible_paths(self, instant: Instant) -> tuple[str, ...]:
        """See `TableFormat`: a pending replace commit may be a clustering."""
        if instant.action is not Action.REPLACE_COMMIT or instant.state is State.COMPLETED:
            return (self.timeline_path(instant),)
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
        """See `TableFormat`."""
        return log.instant

    def slice_of(self, log: LogFileName, begun: Sequence[str], completion: Callable[[str], str]) -> str:
        """See `TableFormat`: the newest slice that began before the write completed; if there is none, one of its own."""
        at = bisect.bisect_right(begun, completion(log.instant))
        return begun[at - 1] if at else log.instant

    def archived_instants(self, storage: Storage, first: str = "", last: str = "") -> list[ArchivedInstant]:
        """See `TableFormat`."""
        return read_history(storage, self.history_folder, first, last)
