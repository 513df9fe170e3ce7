"""Instants: their times, actions, states and legal transitions (format reference 4.1, 4.2)."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from tideline_table.errors import CorruptMetadata, IllegalTransition


class Action(enum.StrEnum):
    """Kind of change that an instant makes to the table. Clustering is a replace commit with a plan (table version 6)."""

    COMMIT = "commit"
    DELTA_COMMIT = "deltacommit"
    REPLACE_COMMIT = "replacecommit"
    COMPACTION = "compaction"
    LOG_COMPACTION = "logcompaction"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    SAVEPOINT = "savepoint"
    INDEXING = "indexing"
    ARCHIVAL = "archival"
    """Used in the table log only. Hudi's timeline has no files for an archival."""


class State(enum.StrEnum):
    """State of an action in its life cycle."""

    NONE = "none"
    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"
    ROLLED_BACK = "rolledback"


TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        (State.NONE, State.REQUESTED),
        (State.NONE, State.INFLIGHT),
        (State.REQUESTED, State.INFLIGHT),
        (State.INFLIGHT, State.INFLIGHT),  # another attempt takes over from a dead one
        (State.INFLIGHT, State.COMPLETED),
        (State.REQUESTED, State.ROLLED_BACK),
        (State.INFLIGHT, State.ROLLED_BACK),
    }
)
"""Legal transitions. `NONE → INFLIGHT` begins a write: one entry creates its requested and its inflight file."""

SAVEPOINT_TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {(State.NONE, State.COMPLETED), (State.COMPLETED, State.ROLLED_BACK)}
)
"""One entry makes a savepoint and one entry deletes it. There is no intermediate state that a crash could leave."""

WRITE_ACTIONS = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT})
"""Actions that write rows, and clustering."""
PUBLISHING_ACTIONS = WRITE_ACTIONS | {Action.COMPACTION, Action.LOG_COMPACTION}
"""Actions whose completion publishes base or log files."""


INDEXING_TRANSITIONS = TRANSITIONS | SAVEPOINT_TRANSITIONS
"""Tideline makes an index by one entry and drops it by one entry; Apache Hudi's indexing has all states."""


def check_transition(instant: str, action: Action, before: State, after: State) -> None:
    """Raise `IllegalTransition` for a step that is not in `TRANSITIONS` (savepoints and indexing have transitions of their own)."""
    legal = {Action.SAVEPOINT: SAVEPOINT_TRANSITIONS, Action.INDEXING: INDEXING_TRANSITIONS}.get(action, TRANSITIONS)
    if (before, after) not in legal:
        allowed = sorted(b.value for a, b in legal if a is before)
        raise IllegalTransition(
            f"{action} {instant} cannot change from {before} to {after}",
            expected=f"a change to {', '.join(allowed)}" if allowed else "no further change",
        )


_FORMAT = "%Y%m%d%H%M%S"
_INSTANT = re.compile(r"\d{14}(?:\d{3}){0,3}", re.ASCII)


def instant_from_time(moment: datetime, zone: tzinfo = UTC) -> str:
    """Format `moment` as `yyyyMMddHHmmssSSS` in `zone`."""
    moment = moment.astimezone(zone)
    return f"{moment.year:04d}{moment:{_FORMAT[2:]}}{moment.microsecond // 1000:03d}"


def time_from_instant(instant: str, zone: tzinfo = UTC) -> datetime:
    """Return the time (UTC) of an instant in `zone`, of 17 digits or 14 (end of the second).

    Ignores suffixes of the metadata table.
    """
    broken = CorruptMetadata(f"instant {instant!r}", expected="yyyyMMddHHmmssSSS")
    if not _INSTANT.fullmatch(instant):
        raise broken
    try:
        seconds = datetime.strptime(instant[:14], _FORMAT).replace(tzinfo=zone)
        return seconds.astimezone(UTC) + timedelta(milliseconds=int(instant[14:17] or 999))
    except (ValueError, OverflowError):
        raise broken from None


def next_instant(now: datetime, last: str) -> str:
    """Return max(`now`, `last` + 1 ms): later than `last` even if the clock stopped or was set back."""
    minted = instant_from_time(now)
    if last and minted <= last:
        return instant_from_time(time_from_instant(last) + timedelta(milliseconds=1))
    return minted


def shifted(instant: str, milliseconds: int) -> str:
    """Return the instant `milliseconds` later, or earlier if they are negative."""
    return instant_from_time(time_from_instant(instant) + timedelta(milliseconds=milliseconds))


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """One action of a table in one state."""

    time: str
    action: Action
    state: State
    is_clustering: bool = field(default=False, compare=False)
    """Whether this replace commit is known to be a clustering: some formats give a pending one names of its own."""


CLUSTER = "CLUSTER"
"""The operation of a clustering."""


class Named:
    """What names an instant and says its operation: an action, an entry or a draft of the table log."""

    __slots__ = ()
    instant: str
    action: Action
    operation: str

    @property
    def is_clustering(self) -> bool:
        """Whether the action is a clustering: a replace commit with a plan."""
        return self.action is Action.REPLACE_COMMIT and self.operation == CLUSTER

    def at(self, state: State) -> Instant:
        """Return the instant in a state."""
        return Instant(self.instant, self.action, state, self.action is Action.REPLACE_COMMIT and self.is_clustering)


COMPLETED_AS = {Action.COMPACTION: Action.COMMIT, Action.LOG_COMPACTION: Action.DELTA_COMMIT}


def completed_as(action: Action) -> Action:
    """Return the action in the name of the completed file: a compaction becomes a commit, a log compaction a delta commit."""
    return COMPLETED_AS.get(action, action)
