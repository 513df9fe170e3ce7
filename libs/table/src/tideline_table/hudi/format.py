"""The port to the room of a table version: names, places and content of Apache Hudi's files, and what its tables allow.

`hudi.formats` chooses the implementation once, from `hoodie.properties`. Nothing outside this package compares a version number or a
timeline layout, or makes or parses the name of a timeline file or a log file. What only a writer asks has a default here that refuses,
so that a version that is only read implements the rest.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.instant import Instant
from tideline_table.storage import checked_path


@dataclass(frozen=True, slots=True)
class TableFormat(abc.ABC):
    """The format of the tables of one version. Folders are paths below the base path."""

    layout: ClassVar[str]
    """`hoodie.timeline.layout.version`."""
    version: int
    """`hoodie.table.version`; 0 if the properties name none."""
    timeline_folder: str
    history_folder: str
    """The folder of the archived timeline."""

    @property
    @abc.abstractmethod
    def has_completion_times(self) -> bool:
        """Whether timeline files name the time of completion; incremental queries then go by it."""

    @property
    @abc.abstractmethod
    def has_merge_modes(self) -> bool:
        """Whether properties name a merge mode. If not, the payload class or the merge strategy decides."""

    @property
    def version_text(self) -> str:
        """The version and the layout of the timeline, in words."""
        return f"version {self.version} with timeline layout {self.layout}"

    def version_properties(self) -> Mapping[str, str]:
        """Return the properties of a new table that name its version and the places of its timeline."""
        raise UnsupportedTable(f"a new table of version {self.version}", expected="a version that Tideline writes")

    @abc.abstractmethod
    def timeline_file_name(self, instant: Instant, completion: str = "") -> str:
        """Return the name of the timeline file of an instant in its state. `completion`: the time of completion, if names have it."""

    @abc.abstractmethod
    def parse_timeline_file_name(self, name: str) -> tuple[Instant, str] | None:
        """Return an instant and its completion time (empty if the name has none), or None for names that are not timeline files."""

    def timeline_path(self, instant: Instant, completion: str = "") -> str:
        """Return the path of a timeline file below the base path."""
        return f"{self.timeline_folder}/{self.timeline_file_name(instant, completion)}"


def folder_in(folder: str, name: str) -> str:
    """Return the path of the folder that properties name in `folder`. Raises `UnsafePath`."""
    return f"{folder}/{checked_path(name)}"
