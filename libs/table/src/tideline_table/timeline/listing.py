"""The timeline as a listing of its folder shows it, in either layout: instants at their highest state and where their files are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.storage import Storage, checked_path
from tideline_table.timeline import properties as p
from tideline_table.timeline.instant import Action, Instant, State, parse_timeline_file_name
from tideline_table.timeline.layout_two import parse_layout_two_name

_ORDER = (State.NONE, State.REQUESTED, State.INFLIGHT, State.COMPLETED)
_COMPLETED_AS = ((Action.COMPACTION, Action.COMMIT), (Action.LOG_COMPACTION, Action.DELTA_COMMIT))
FIRST_VERSION_OF_LAYOUT_TWO = 8


@dataclass(frozen=True, slots=True)
class TimelineFolders:
    """Where a table's timeline lies, by its properties."""

    layout: int = 1
    active: str = ".hoodie"
    history: str = ".hoodie/archived"

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TimelineFolders:
        """Raises `UnsupportedTable` for a layout that is neither 1 nor 2, `UnsafePath` for folders outside the table."""
        version = properties.get(p.VERSION, "")
        layout = properties.get(p.LAYOUT) or ("2" if version.isdecimal() and int(version) >= FIRST_VERSION_OF_LAYOUT_TWO else "1")
        if layout == "1":
            # Releases of Hudi 1.x write the folders of layout 2 into such tables, too, where they mean nothing (2.1).
            return cls(1, ".hoodie", _below(".hoodie", properties.get(p.ARCHIVE_FOLDER) or "archived"))
        if layout == "2":
            active = _below(".hoodie", properties.get(p.TIMELINE_PATH) or "timeline")
            return cls(2, active, _below(active, properties.get(p.HISTORY_PATH) or "history"))
        raise UnsupportedTable(f"timeline layout {layout!r}", expected="layout 1 or 2")


def _below(folder: str, name: str) -> str:
    return f"{folder}/{checked_path(name)}" if name else folder


@dataclass(frozen=True, slots=True)
class TimelineListing:
    """What a listing says. Compaction counts as the commit that it becomes, clustering as a replace commit."""

    instants: tuple[Instant, ...] = ()
    paths: Mapping[Instant, str] = field(default_factory=dict)
    """Of every state file that is there."""
    completion: Mapping[str, str] = field(default_factory=dict)
    """Instant → completion time of completed actions (not of savepoints, which share an instant); where file names do not say it (layout 1), the instant itself."""

    def path(self, instant: Instant) -> str:
        """The file of an instant at its state. `CorruptMetadata` when it is not there: earlier states have to be kept (6.1)."""
        found = self.paths.get(instant)
        if found is None:
            raise CorruptMetadata(
                f"no timeline file of {instant.action} {instant.time} as {instant.state}",
                expected="the files of all its states",
                remedy="restore the file",
            )
        return found


def list_timeline(storage: Storage, folders: TimelineFolders) -> TimelineListing:
    """The active timeline; unknown names are ignored."""
    return timeline_listing(folders, (o.path for o in storage.list_folder(folders.active).objects))


def timeline_listing(folders: TimelineFolders, paths: Iterable[str]) -> TimelineListing:
    """The same from the paths of the timeline's folder."""
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
    for action, completed_as in _COMPLETED_AS:
        for time, _ in [k for k in best if k[1] is action and (k[0], completed_as) in best]:
            del best[time, action]
    instants = tuple(sorted(best.values()))
    times = {i.time: completion[i] for i in instants if i in completion and i.action is not Action.SAVEPOINT}
    return TimelineListing(instants, found, times)


def _parsed(name: str, layout: int) -> tuple[Instant | None, str]:
    if layout == 1:
        return parse_timeline_file_name(name), ""
    return parse_layout_two_name(name) or (None, "")
