"""The port to the room of a table version: names, places and content of Apache Hudi's files, and what its tables allow.

`hudi.formats` chooses the implementation once, from `hoodie.properties`. Nothing outside this package compares a version number
or a timeline layout, or makes or parses the name of a timeline file or a log file.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import LogFileName
from tideline_table.hudi.instant import Instant, State
from tideline_table.hudi.merge_rules import MergeRule
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.storage import Storage, checked_path


@dataclass(frozen=True, slots=True, order=True)
class ArchivedInstant:
    """An archived instant in its latest state. `action` is the name that Hudi uses; `completion` is always empty in layout 1."""

    time: str
    action: str
    completion: str = ""
    state: State = State.COMPLETED


class Feature(enum.StrEnum):
    """What a format may lack though this engine can do it in others."""

    RULES_AS_PROPERTIES = "a merge rule whose payload class Apache Hudi applies to base files and to logs differently"
    SEVERAL_ORDERING_FIELDS = "several ordering columns"
    ORDERED_COMMIT_TIME = "an ordering column beside the merge rule commit_time"
    MERGERS = "a merger of another package"
    PARTIAL_RECORDS = "rows in logs that have some columns only"


SINCE_VERSION_9 = (Feature.RULES_AS_PROPERTIES, Feature.SEVERAL_ORDERING_FIELDS, Feature.ORDERED_COMMIT_TIME, Feature.MERGERS)
"""What only Apache Hudi 1.1 and later do alike on every path, and what its earlier releases would read or write otherwise.

With an ordering column, rows of one input merge by it in releases 0.x, and by their order in 1.x.
"""


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
    def combines_by_mode(self) -> bool:
        """Whether Apache Hudi merges rows of one input by the mode, as rows of two writes."""
        return False

    @property
    def has_typed_statistics(self) -> bool:
        """Whether records of column statistics in the metadata table name the type of their bounds."""
        return False

    @property
    def version_text(self) -> str:
        """The version and the layout of the timeline, in words."""
        return f"version {self.version} with timeline layout {self.layout}"

    def changed_in(self, properties: Mapping[str, str]) -> str:
        """Return the version and timeline layout that properties name, in words; empty for those of this format."""
        version, layout = properties.get(p.VERSION, ""), properties.get(p.LAYOUT, self.layout)
        if (version, layout) == (str(self.version), self.layout):
            return ""
        return f"version {version or 'unknown'} with timeline layout {layout}"

    @abc.abstractmethod
    def version_properties(self) -> Mapping[str, str]:
        """Return the properties of a new table that name its version and the places of its timeline."""

    @abc.abstractmethod
    def merge_properties(self, rule: MergeRule, ordering_field: str) -> Mapping[str, str]:
        """Return the properties of a new table that say how rows merge: by which rule and ordering fields, if any."""

    @property
    def new_files(self) -> tuple[str, ...]:
        """The paths of empty files that a new table needs, so that readers find its folders before the first instant."""
        return ()

    @property
    @abc.abstractmethod
    def missing(self) -> Mapping[Feature, int]:
        """What Tideline does not do in tables of this format, and the version in which it does."""

    def check_supports(self, what: Feature) -> None:
        """Raise `UnsupportedTable` for what Tideline does not do in tables of this format."""
        if what in self.missing:
            raise UnsupportedTable(
                f"{what} in a table of version {self.version}",
                expected=f"a table of version {self.missing[what]}",
                remedy="create a table of that version, and write the rows into it",
            )

    @abc.abstractmethod
    def timeline_file_name(self, instant: Instant, completion: str = "") -> str:
        """Return the name of the timeline file of an instant in a state. `completion`: its completion time, if names have it."""

    @abc.abstractmethod
    def parse_timeline_file_name(self, name: str) -> tuple[Instant, str] | None:
        """Return an instant and its completion time (empty if the name has none), or None for names that are not timeline files."""

    def timeline_path(self, instant: Instant, completion: str = "") -> str:
        """Return the path of a timeline file below the base path."""
        return f"{self.timeline_folder}/{self.timeline_file_name(instant, completion)}"

    def possible_paths(self, instant: Instant, completion: str = "") -> tuple[str, ...]:
        """Return the paths that the timeline file may have of an instant of which only the action is known."""
        return (self.timeline_path(instant, completion),)

    @abc.abstractmethod
    def commit_content(self, metadata: CommitMetadata, *, indent: int | None = 2) -> bytes:
        """Return the content of the completed file of a write. Where it is text, `indent` None makes it one line, much faster.

        All other timeline files have the same content in all versions.
        """

    # --- log files and slices ----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def log_file_name(self, file_id: str, base_instant: str, instant: str, version: int, token: str) -> str:
        """Return the name of the log file that the write `instant` appends to the slice `base_instant`."""

    @abc.abstractmethod
    def writer_of(self, log: LogFileName) -> str:
        """Return the instant of the write that made a log file. Empty if its name does not say it: block headers do."""

    @abc.abstractmethod
    def slice_of(self, log: LogFileName, begun: Sequence[str], completion: Callable[[str], str]) -> str:
        """Return the base instant of the slice that a committed log file belongs to.

        `begun` are the base instants of the slices of its file group so far, ascending; `completion` returns the completion time of
        a committed instant. An instant that is not in `begun` opens a slice.
        """

    # --- archived timeline -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def archived_instants(self, storage: Storage, first: str = "", last: str = "") -> list[ArchivedInstant]:
        """Return the archived instants in order; none if the archive was deleted. Raises `CorruptMetadata` for a malformed archive.

        Snapshot queries do not need them: every instant older than the active timeline was completed when it was archived. A format
        whose archive has an index reads only the part from `first` to `last` (both inclusive; empty: no limit).
        """

    @abc.abstractmethod
    def archive(self, storage: Storage, number: int, files: Sequence[tuple[Instant, str]], batch: int) -> str:
        """Add timeline files (instants and paths) to the archive, which readers then find there; return the path of their file.

        `number` names the archival, from 1: several processes may run it, and a later call completes what an earlier one began.
        `batch`: most records of a block. Raises `ObjectNotFound` for a missing timeline file that is not in the archive yet,
        `CorruptMetadata` for a corrupt one.
        """

    def archived_extra(self, storage: Storage) -> Iterator[tuple[str, Mapping[str, str]]]:  # noqa: ARG002 - the port's
        """Yield the instants of archived completed writes with the extra metadata of their commits, as far as they are read."""
        return iter(())

    def was_completed(self, storage: Storage, instant: str) -> bool:
        """Return whether `instant` completed before it was archived; if not, it was rolled back. Reads the whole archive."""
        return any(found.time == instant and found.state is State.COMPLETED for found in self.archived_instants(storage))

    def is_archived(self, storage: Storage, instant: str) -> bool:
        """Return whether `instant` is in the archive. Reads the whole archive."""
        return any(found.time == instant for found in self.archived_instants(storage))

    def has_archive(self, storage: Storage) -> bool:
        """Return whether there is an archived timeline."""
        return bool(storage.list_folder(self.history_folder).objects)


def folder_in(folder: str, name: str) -> str:
    """Return the path of the folder that properties name in `folder`. Raises `UnsafePath`."""
    return f"{folder}/{checked_path(name)}"
