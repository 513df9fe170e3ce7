"""File-group reservations ("intents"): writers post the file groups that they will write, and later writers of these wait.

Without reservations, the loser of two writes to one file group learns of it at its commit, after it wrote all of its files. They
only save time: a board that forgets, lies or does not answer changes no decision of the conflict check (architecture, principle 3).

A writer that lost often posts with priority. Then other writers wait until it ends or dies: the pessimistic mode of the
specification's concurrency chapter, per file group, for writers that would starve.

Appends to the logs of a file group rarely conflict, so appending writers neither wait nor block. If one of two writers has
priority, every file group that either writes counts: otherwise writers that append the same rows would still starve it.

In a table shared with Apache Hudi, reservations are between Tideline writers only: Apache Hudi neither posts nor sees them.

A write of very many file groups reserves the whole table instead: it blocks no writer until it has priority, and then every writer.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tideline_table.config import INTENT_WAIT_S, PRIORITY_WAIT_S, Options
from tideline_table.coordination.heartbeat import is_alive
from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.errors import TidelineError

_LOGGER = logging.getLogger(__name__)

MAX_GROUPS = 20_000
"""A reservation of more file groups names none, because the board would become the bottleneck."""
_FIRST_NAP_S = 0.02
_LONGEST_NAP_S = 0.5


@dataclass(frozen=True, slots=True)
class Intent:
    """The file ids that the write `instant` will rewrite. With priority it precedes all reservations without."""

    instant: str
    groups: frozenset[str]
    has_priority: bool = False
    appends: frozenset[str] = frozenset()
    """File ids that it only appends log files to."""
    is_whole_table: bool = False
    """Whether it stands for every file group, because there are too many to name."""

    def bounded(self) -> Intent:
        """Return the same reservation, of at most `MAX_GROUPS` file groups or of the whole table."""
        if len(self.written) <= MAX_GROUPS:
            return self
        return replace(self, groups=frozenset(), appends=frozenset(), is_whole_table=True)

    @property
    def written(self) -> frozenset[str]:
        """All file ids that it names, rewritten or appended to."""
        return self.groups | self.appends

    def overlaps(self, other: Intent) -> bool:
        """Return whether one of the two waits for the other."""
        if self.has_priority or other.has_priority:
            return self.is_whole_table or other.is_whole_table or not self.written.isdisjoint(other.written)
        return not self.groups.isdisjoint(other.groups)

    @property
    def rank(self) -> tuple[bool, str]:
        """Sort key: the smallest is served first."""
        return (not self.has_priority, self.instant)


@dataclass(frozen=True, slots=True)
class PostedIntent:
    """A reservation on the board. `is_active`: the board let its writer go on."""

    intent: Intent
    is_active: bool


class IntentBoard(Protocol):
    """The board with the reservations of all writers of one table. Raises `TidelineError` when it cannot be reached."""

    def claim(self, intent: Intent) -> list[Intent]:
        """Post `intent`, in place of an earlier one of its instant, and return the reservations that go first.

        If there are none, it is active from now on, and later overlapping reservations wait for it.
        """
        ...

    def withdraw(self, instant: str) -> None:
        """Remove the reservation of `instant`, if there is one."""
        ...

    def posted(self) -> list[PostedIntent]:
        """Return all current reservations."""
        ...


class NoIntents:
    """No board: every write goes on at once, and conflicts show at the commit."""

    def claim(self, intent: Intent) -> list[Intent]:  # noqa: ARG002 - the port's
        """See `IntentBoard.claim`."""
        return []

    def withdraw(self, instant: str) -> None:
        """See `IntentBoard.withdraw`."""

    def posted(self) -> list[PostedIntent]:
        """See `IntentBoard.posted`."""
        return []


def going_first(own: Intent, posted: Iterable[PostedIntent]) -> list[Intent]:
    """Return the reservations that `own` must wait for: overlapping ones that are active, or that wait with a smaller rank.

    Writers wait only for smaller ranks or for writers that do not wait, so no cycle of waits is possible.
    """
    return [
        other.intent
        for other in posted
        if other.intent.instant != own.instant and (other.is_active or other.intent.rank < own.rank) and own.overlaps(other.intent)
    ]


class Turn(enum.Enum):
    """How a write got its turn."""

    AT_ONCE = "at once"
    LATER = "later"
    """After other writes, so the table has changed meanwhile."""
    BESIDE = "beside"
    """Beside other writes, after waiting too long for them."""


def await_turn(board: IntentBoard, timeline: ActiveTimeline, intent: Intent, options: Options) -> Turn:
    """Post `intent` and wait for the reservations that go first, at most as long as the options say.

    Removes reservations of writers that are no longer pending on the timeline or whose heartbeat expired.
    """
    if not (intent.written or intent.is_whole_table) or options[INTENT_WAIT_S] <= 0:
        return Turn.AT_ONCE
    intent = intent.bounded()
    clock = timeline.clock
    started_s, nap_s, waited = clock.monotonic_s(), _FIRST_NAP_S, False
    try:
        while first := board.claim(intent):
            timeline.refresh()
            gone = [other for other in first if not _is_running(timeline, other.instant)]
            for other in gone:
                board.withdraw(other.instant)
            waited = True
            if gone:
                continue
            limit = PRIORITY_WAIT_S if any(other.has_priority for other in first) else INTENT_WAIT_S
            if clock.monotonic_s() - started_s >= options[limit]:
                _LOGGER.info("write %s goes on beside %s, which it waited for", intent.instant, first[0].instant)
                return Turn.BESIDE
            clock.sleep(nap_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads waiters, no secret
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
    except TidelineError as error:
        _LOGGER.warning("write %s goes on without intents: %s", intent.instant, error)
    if not waited:
        return Turn.AT_ONCE
    timeline.look()
    return Turn.LATER


def reserved_groups(board: IntentBoard, timeline: ActiveTimeline) -> frozenset[str]:
    """Return file ids that live writers reserve with priority, so that plans can avoid them; none if the board does not answer."""
    try:
        urgent = [posted.intent for posted in board.posted() if posted.intent.has_priority]
    except TidelineError as error:
        _LOGGER.warning("planning goes on without intents: %s", error)
        return frozenset()
    if urgent:
        timeline.refresh()
    running = [intent for intent in urgent if _is_running(timeline, intent.instant)]
    if any(intent.is_whole_table for intent in running):
        return frozenset(file_slice.group.file_id for file_slice in timeline.state.latest_slices())
    return frozenset().union(*(intent.written for intent in running))


def _is_running(timeline: ActiveTimeline, instant: str) -> bool:
    record = timeline.state.actions.get(instant)
    return record is not None and record.is_pending and is_alive(timeline.storage, record, timeline.clock, timeline.options)


def withdraw(board: IntentBoard, instant: str) -> None:
    """Remove the reservation of `instant`. If the board does not answer, waiting writers find by the timeline that it ended."""
    try:
        board.withdraw(instant)
    except TidelineError as error:
        _LOGGER.warning("the intent of write %s stays on the board: %s", instant, error)
