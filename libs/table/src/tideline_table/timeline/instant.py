"""Instants: their times, actions, states, legal transitions and file names (format reference 4.1, 4.2)."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tideline_table.errors import CorruptMetadata, IllegalTransition, InvalidOption


class Action(enum.StrEnum):
    """What an instant does to the table. Clustering is a replace commit with a plan (table version 6)."""

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
    """Of the table log alone: on Hudi's timeline an archival shows by the instants that are gone."""


class State(enum.StrEnum):
    """How far an action is."""

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
"""Legal steps. `NONE → INFLIGHT` is a write's begin: its requested and inflight files come from one entry."""

SAVEPOINT_TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {(State.NONE, State.COMPLETED), (State.COMPLETED, State.ROLLED_BACK)}
)
"""A savepoint is made, and deleted, by one entry: there is no work in between that could be left half done."""

WRITE_ACTIONS = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT})
"""Actions whose completion publishes base or log files."""


def check_transition(instant: str, action: Action, before: State, after: State) -> None:
    """Raise `IllegalTransition` for a step that `TRANSITIONS` (of a savepoint: `SAVEPOINT_TRANSITIONS`) does not have."""
    legal = SAVEPOINT_TRANSITIONS if action is Action.SAVEPOINT else TRANSITIONS
    if (before, after) not in legal:
        allowed = sorted(b.value for a, b in legal if a is before)
        raise IllegalTransition(
            f"{action} {instant} would go from {before} to {after}", expected=f"one of {', '.join(allowed) or 'no further step'}"
        )


_FORMAT = "%Y%m%d%H%M%S"
_INSTANT = re.compile(r"\d{14}(?:\d{3}){0,3}", re.ASCII)


def instant_from_time(moment: datetime) -> str:
    """`yyyyMMddHHmmssSSS` of `moment` in UTC."""
    moment = moment.astimezone(UTC)
    return f"{moment:{_FORMAT}}{moment.microsecond // 1000:03d}"


def time_from_instant(instant: str) -> datetime:
    """The moment (UTC) of an instant of 14 or 17 digits; further digits (metadata table suffixes) are ignored."""
    broken = CorruptMetadata(f"instant {instant!r}", expected="yyyyMMddHHmmssSSS")
    if not _INSTANT.fullmatch(instant):
        raise broken
    try:
        seconds = datetime.strptime(instant[:14], _FORMAT).replace(tzinfo=UTC)
        return seconds + timedelta(milliseconds=int(instant[14:17] or 999))
    except ValueError:
        raise broken from None


def next_instant(now: datetime, last: str) -> str:
    """max(`now`, `last` + 1 ms): strictly after `last` even when the clock stands still or went back."""
    minted = instant_from_time(now)
    if last and minted <= last:
        return instant_from_time(time_from_instant(last) + timedelta(milliseconds=1))
    return minted


def parse_as_of(text: str) -> str:
    """An instant from what people type for time travel: instant digits, `yyyy-MM-dd`, or ISO 8601 date and time (UTC without a zone)."""
    if re.fullmatch(r"\d{17}|\d{14}", text, re.ASCII):
        return text if len(text) == 17 else text + "999"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None and re.match(r"\d{4}-\d{2}-\d{2}", text):
        return instant_from_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    raise InvalidOption(
        f"as-of {text!r}", expected="an instant (17 digits), yyyy-MM-dd, or yyyy-MM-dd HH:mm:ss[.SSS] (UTC unless a zone is given)"
    )


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """One action of a table at one state."""

    time: str
    action: Action
    state: State


_FILE = re.compile(r"^(\d{14,20})\.(?:(inflight)|([a-z]+)(?:\.(requested|inflight))?)\Z", re.ASCII)
_ON_TIMELINE = frozenset(Action) - {Action.ARCHIVAL}
_COMPLETED_AS = {Action.COMPACTION: Action.COMMIT, Action.LOG_COMPACTION: Action.DELTA_COMMIT}


def completed_as(action: Action) -> Action:
    """The action that the completed file of `action` names: a compaction becomes a commit, a log compaction a delta commit."""
    return _COMPLETED_AS.get(action, action)


def timeline_file_name(instant: Instant) -> str:
    """The file name inside `.hoodie` for an instant at its state (the table in 4.1)."""
    if instant.state is State.COMPLETED:
        return f"{instant.time}.{completed_as(instant.action)}"
    if instant.state is State.INFLIGHT and instant.action is Action.COMMIT:
        return f"{instant.time}.inflight"
    return f"{instant.time}.{instant.action}.{instant.state}"


def parse_timeline_file_name(name: str) -> Instant | None:
    """The instant behind a file name of `.hoodie`, None for names that are no timeline files."""
    match = _FILE.match(name)
    if match is None:
        return None
    time, bare_inflight, action, state = match.groups()
    if bare_inflight:
        return Instant(time, Action.COMMIT, State.INFLIGHT)
    if action not in _ON_TIMELINE:
        return None
    return Instant(time, Action(action), State(state) if state else State.COMPLETED)
