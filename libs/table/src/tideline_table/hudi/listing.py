"""The timeline as a listing of its folder shows it: instants in their latest state, and paths of their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import (
    COMPLETED_AS,
    WRITE_ACTIONS,
    Action,
    Instant,
    State,
    instant_from_time,
)
from tideline_table.storage import ObjectStat, Storage

_WITH_CONTENT = {
    State.REQUESTED: frozenset({Action.COMPACTION, Action.LOG_COMPACTION, Action.CLEAN, Action.ROLLBACK, Action.RESTORE}),
    State.COMPLETED: WRITE_ACTIONS | {Action.CLEAN, Action.ROLLBACK, Action.RESTORE},
}
"""Files that are never empty once they are written: plans, and what was done. A replace commit may be requested without a plan."""
_ORDER = (State.NONE, State.REQUESTED, State.INFLIGHT, State.COMPLETED)


@dataclass(frozen=True, slots=True)
class TimelineListing:
    """Content of a timeline listing. A completed compaction is a commit, a clustering is a replace commit."""

    instants: tuple[Instant, ...] = ()
    paths: Mapping[Instant, str] = field(default_factory=dict)
    """Paths of all existing state files."""
    completion: Mapping[str, str] = field(default_factory=dict)
    """Instant → completion time of completed actions except savepoints. If the name has none (version 6), the instant itself."""
    twice: tuple[str, ...] = ()
    """Paths of completed files of writes that have two of them: names with a completion time let two processes complete one."""
    untimed: tuple[str, ...] = ()
    """Paths of completed files whose names lack the completion time that the table's format has."""

    def named_completion(self, instant: str) -> str:
        """Return the completion time in the name of a completed file; empty for a pending instant, and if the name has none."""
        found = self.completion.get(instant, "")
        return "" if found == instant else found

    @property
    def names_completions(self) -> bool:
        """Whether names of completed files have a completion time; False if nothing is completed."""
        return any(self.named_completion(instant) for instant in self.completion)

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


def list_timeline(storage: Storage, form: TableFormat, zone: tzinfo = UTC) -> TimelineListing:
    """List the active timeline, whose instants are in `zone`. Unknown names are ignored."""
    found = {o.path: o for o in storage.list_folder(form.timeline_folder).objects}
    return timeline_listing(form, found, found, zone)


def timeline_listing(
    form: TableFormat, paths: Iterable[str], found: Mapping[str, ObjectStat] | None = None, zone: tzinfo = UTC
) -> TimelineListing:
    """Build the listing from the paths in the folder of the timeline.

    A completed file without the completion time that the format has, which an upgrade of Apache Hudi may leave, completed when
    it was modified, as it was `found`; so it did for Apache Hudi's readers.
    """
    best: dict[tuple[str, Action], Instant] = {}
    there: dict[Instant, str] = {}
    completion: dict[Instant, str] = {}
    twice: list[str] = []
    untimed: list[str] = []
    for path in paths:
        parsed = form.parse_timeline_file_name(path.rsplit("/", 1)[-1])
        if parsed is None:
            continue
        instant, completed = parsed
        if instant in there and instant.action in WRITE_ACTIONS and instant.state is State.COMPLETED:
            twice += [there[instant], path]
        there[instant] = path
        if instant.state is State.COMPLETED:
            if not completed and found and form.has_completion_times:
                untimed.append(path)
                completed = instant_from_time(found[path].modified, zone)
            completion[instant] = completed or instant.time
        known = best.get((instant.time, instant.action))
        if known is None or _ORDER.index(known.state) < _ORDER.index(instant.state):
            best[instant.time, instant.action] = instant
    for action, completed_as in COMPLETED_AS.items():
        for time, _ in [k for k in best if k[1] is action and (k[0], completed_as) in best]:
            del best[time, action]
    instants = tuple(sorted(best.values()))
    times = {i.time: completion[i] for i in instants if i in completion and i.action is not Action.SAVEPOINT}
    return TimelineListing(instants, there, times, tuple(twice), tuple(untimed))


@dataclass(frozen=True, slots=True)
class ListedTimeline:
    """A timeline listing with the modification times of the files, by path."""

    timeline: TimelineListing
    modified: Mapping[str, datetime]
    unwritten: frozenset[str] = frozenset()
    """Instants whose latest file must have content and has none yet: Hudi's releases before 1.0 create a file and then write it."""

    @classmethod
    def read(cls, storage: Storage, form: TableFormat) -> ListedTimeline:
        """List the active timeline. Costs one request per 1,000 names."""
        return cls.of(storage.list_folder(form.timeline_folder).objects, form)

    @classmethod
    def of(cls, objects: Iterable[ObjectStat], form: TableFormat) -> ListedTimeline:
        """Build it from the objects of an existing listing."""
        found = {o.path: o for o in objects}
        timeline = timeline_listing(form, found, found)
        told = (i for i in timeline.instants if i.action in _WITH_CONTENT.get(i.state, ()))
        unwritten = frozenset(i.time for i in told if found[timeline.path(i)].size_bytes == 0)
        return cls(timeline, {path: o.modified for path, o in found.items()}, unwritten)

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
