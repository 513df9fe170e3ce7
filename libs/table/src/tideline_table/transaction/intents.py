"""Intents: writers say which file groups they are about to write over, and whoever comes later to one of them waits.

Without that, the loser of two writes to one file group learns of it at its commit, with all of its files written for nothing. Intents
save time only: a board that forgets, lies or does not answer changes nothing that the conflict check decides (architecture, principle 3).

A writer that lost often posts its intent with priority. Then the others wait until it is done or dead: the pessimistic mode of the
specification's concurrency chapter, by file group, for those who starve without it.

Appends to the logs of a file group rarely conflict, so writers that append wait for nobody, and nobody for them. Only where one of two has
priority every file group counts that either of them writes: otherwise rivals that append the same rows would starve it all the same.

In a table that Apache Hudi's writers share, intents are between writers of ours: the other side neither posts nor sees them.

A write of very many file groups names none of them, it stands for the whole table: it holds nobody up until it has priority, then everybody.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tideline_table.config import INTENT_WAIT_S, PRIORITY_WAIT_S, Options
from tideline_table.errors import TidelineError
from tideline_table.transaction.active_timeline import ActiveTimeline
from tideline_table.transaction.heartbeat import is_alive

_LOGGER = logging.getLogger(__name__)

MAX_GROUPS = 20_000
"""An intent of more file groups names none: the board would become the bottleneck."""
_FIRST_NAP_S = 0.02
_LONGEST_NAP_S = 0.5


@dataclass(frozen=True, slots=True)
class Intent:
    """The file ids that the write `instant` is about to write over. With priority it goes before all that have none."""

    instant: str
    groups: frozenset[str]
    has_priority: bool = False
    appends: frozenset[str] = frozenset()
    """Those that it only appends log files to."""
    is_whole_table: bool = False
    """Whether it stands for every file group, there being too many to name."""

    def bounded(self) -> Intent:
        """The same, of at most `MAX_GROUPS` file groups or the whole table."""
        if len(self.written) <= MAX_GROUPS:
            return self
        return replace(self, groups=frozenset(), appends=frozenset(), is_whole_table=True)

    @property
    def written(self) -> frozenset[str]:
        """All file ids that it names, written in either way."""
        return self.groups | self.appends

    def overlaps(self, other: Intent) -> bool:
        """Whether one of the two waits for the other."""
        if self.has_priority or other.has_priority:
            return self.is_whole_table or other.is_whole_table or not self.written.isdisjoint(other.written)
        return not self.groups.isdisjoint(other.groups)

    @property
    def rank(self) -> tuple[bool, str]:
        """The smallest goes first."""
        return (not self.has_priority, self.instant)


@dataclass(frozen=True, slots=True)
class PostedIntent:
    """An intent on the board. `is_active`: its writer was told to go on."""

    intent: Intent
    is_active: bool


class IntentBoard(Protocol):
    """Where the writers of one table post their intents. Raises `TidelineError` when it cannot be reached."""

    def claim(self, intent: Intent) -> list[Intent]:
        """Post `intent` in place of an earlier one of its instant and return those that go first.

        None does: it is active from now on, and overlapping ones that come later wait for it.
        """
        ...

    def withdraw(self, instant: str) -> None:
        """Take the intent of `instant` away, if there is one."""
        ...

    def posted(self) -> list[PostedIntent]:
        """What is on the board now."""
        ...


class NoIntents:
    """No board: every write goes ahead, and conflicts show at the commit."""

    def claim(self, intent: Intent) -> list[Intent]:  # noqa: ARG002 - the port's
        """See `IntentBoard.claim`."""
        return []

    def withdraw(self, instant: str) -> None:
        """See `IntentBoard.withdraw`."""

    def posted(self) -> list[PostedIntent]:
        """See `IntentBoard.posted`."""
        return []


def going_first(own: Intent, posted: Iterable[PostedIntent]) -> list[Intent]:
    """Those that `own` has to wait for: overlapping ones that are active, or waiting with a smaller rank.

    Waits lead to smaller ranks or to writers that do not wait, so nobody waits in a circle.
    """
    return [
        other.intent
        for other in posted
        if other.intent.instant != own.instant and (other.is_active or other.intent.rank < own.rank) and own.overlaps(other.intent)
    ]


class Turn(enum.Enum):
    """How a write comes to its turn."""

    AT_ONCE = "at once"
    LATER = "later"
    """Others went first: the table changed meanwhile."""
    BESIDE = "beside"
    """It goes on beside others, for which it waited too long."""


def await_turn(board: IntentBoard, timeline: ActiveTimeline, intent: Intent, options: Options) -> Turn:
    """Post `intent` and wait for those that go first, at most as long as the options say.

    Writers that are not pending on the timeline any more, or whose heartbeat expired, are taken off the board.
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
    """File ids that living writers with priority posted: plans that touch them would make them lose once more. None where the board is silent."""
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
    """Take the intent of `instant` off the board; a board that does not answer finds out by itself that it ended."""
    try:
        board.withdraw(instant)
    except TidelineError as error:
        _LOGGER.warning("the intent of write %s stays on the board: %s", instant, error)
