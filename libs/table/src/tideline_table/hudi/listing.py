"""The timeline as a listing of its folder shows it, in both layouts: instants in their latest state, and paths of their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import (
    COMPLETED_AS,
    WRITE_ACTIONS,
    Action,
    Instant,
    State,
    parse_layout_two_name,
    parse_timeline_file_name,
)
from tideline_table.storage import ObjectStat, Storage, checked_path

_ORDER = (State.NONE, State.REQUESTED, State.INFLIGHT, State.COMPLETED)
FIRST_VERSION_OF_LAYOUT_TWO = 8


@dataclass(frozen=True, slots=True)
class TimelineFolders:
    """Folders of the active and the archived timeline, from the table properties."""

    layout: int = 1
    active: str = ".hoodie"
    history: str = ".hoodie/archived"

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TimelineFolders:
        """Read the folders. Raises `UnsupportedTable` for layouts other than 1 and 2, `UnsafePath` for folders outside a table."""
        version = properties.get(p.VERSION, "")
        layout = properties.get(p.LAYOUT) or ("2" if version.isdecimal() and int(version) >= FIRST_VERSION_OF_LAYOUT_TWO else "1")
        if layout == "1":
            # Hudi 1.x also writes the folder properties of layout 2 into these tables, where they have no meaning (2.1).
            return cls(1, ".hoodie", _below(".hoodie", properties.get(p.ARCHIVE_FOLDER) or "archived"))
        if layout == "2":
            active = _below(".hoodie", properties.get(p.TIMELINE_PATH) or "timeline")
            return cls(2, active, _below(active, properties.get(p.HISTORY_PATH) or "history"))
        raise UnsupportedTable(f"timeline layout {layout!r}", expected="layout 1 or 2")


def _below(folder: str, name: str) -> str:
    return f"{folder}/{checked_path(name)}" if name else folder


@dataclass(frozen=True, slots=True)
class TimelineListing:
    """Content of a timeline listing. A completed compaction is a commit, a clustering is a replace commit."""

    instants: tuple[Instant, ...] = ()
    paths: Mapping[Instant, str] = field(default_factory=dict)
    """Paths of all existing state files."""
    completion: Mapping[str, str] = field(default_factory=dict)
    """Instant → completion time of completed actions except savepoints. If the name has none (layout 1), the instant itself."""

    def path(self, instant: Instant) -> str:
        """Return the path of a state file. Raises `CorruptMetadata` if it is missing: earlier state files must be kept (6.1)."""
        found = self.paths.get(instant)
        if found is None:
            raise CorruptMetadata(
                f"no timeline file of {instant.action} {instant.time} as {instant.state}",
                expected="the files of all its states",
                remedy="restore the file",
            )
        return found


def list_timeline(storage: Storage, folders: TimelineFolders) -> TimelineListing:
    """List the active timeline. Unknown names are ignored."""
    return timeline_listing(folders, (o.path for o in storage.list_folder(folders.active).objects))


def timeline_listing(folders: TimelineFolders, paths: Iterable[str]) -> TimelineListing:
    """Build the listing from the paths in the folder of the timeline."""
    best: dict[tuple[str, Action], Instant] = {}
    found: dict[Instant, str] = {}
    completion: dict[Instant, str] = {}
    for path in paths:
        instant, completed = _parsed(path.rsplit("/", 1)[-1], folders.layout)
        if instant is None:
            continue
        found[instant] = path
        if instant.state is State.COMPLETED:
            completion[instant] = completed or instant.time
        known = best.get((instant.time, instant.action))
        if known is None or _ORDER.index(known.state) < _ORDER.index(instant.state):
            best[instant.time, instant.action] = instant
    for action, completed_as in COMPLETED_AS.items():
        for time, _ in [k for k in best if k[1] is action and (k[0], completed_as) in best]:
            del best[time, action]
    instants = tuple(sorted(best.values()))
    times = {i.time: completion[i] for i in instants if i in completion and i.action is not Action.SAVEPOINT}
    return TimelineListing(instants, found, times)


def _parsed(name: str, layout: int) -> tuple[Instant | None, str]:
    if layout == 1:
        return parse_timeline_file_name(name), ""
    return parse_layout_two_name(name) or (None, "")


@dataclass(frozen=True, slots=True)
class ListedTimeline:
    """A timeline listing with the modification times of the files, by path."""

    timeline: TimelineListing
    modified: Mapping[str, datetime]

    @classmethod
    def read(cls, storage: Storage) -> ListedTimeline:
        """List the active timeline (layout 1). Costs one request per 1,000 names."""
        return cls.of(storage.list_folder(TimelineFolders().active).objects)

    @classmethod
    def of(cls, objects: Iterable[ObjectStat]) -> ListedTimeline:
        """Build it from the objects of an existing listing (layout 1)."""
        found = {o.path: o.modified for o in objects}
        return cls(timeline_listing(TimelineFolders(), found), found)

    def time_of(self, instant: Instant) -> datetime:
        """Return the modification time of a state file. Raises `CorruptMetadata` if it is missing."""
        return self.modified[self.timeline.path(instant)]

    @property
    def first_completed(self) -> str:
        """Instant of the first completed write, the start of the active timeline. Empty if there is none."""
        return min((i.time for i in self.timeline.instants if i.state is State.COMPLETED and i.action in WRITE_ACTIONS), default="")

    @property
    def last_completion(self) -> datetime | None:
        """The latest modification time of a completed file (format reference 11.3). None if there is none."""
        return max((self.time_of(i) for i in self.timeline.instants if i.state is State.COMPLETED), default=None)

    @property
    def saved(self) -> frozenset[str]:
        """The writes that savepoints protect."""
        return frozenset(i.time for i in self.timeline.instants if i.action is Action.SAVEPOINT)
