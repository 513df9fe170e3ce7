"""File-group reservations: writers post the file groups that they will write, and later writers of these wait.

Without reservations, the loser of two writes to one file group learns of it at its commit, after it wrote all of its files. They
only save time: a store that loses them, returns wrong ones or does not answer changes no decision of the conflict check.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tideline_table.config import PRIORITY_WAIT_S, RESERVATION_WAIT_S, Options
from tideline_table.coordination.heartbeat import is_alive
from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.errors import TidelineError

_LOGGER = logging.getLogger(__name__)

MAX_GROUPS = 20_000
"""A reservation of more file groups names none, because their store would become the bottleneck."""
_NAP_S = 0.002, 0.1
"""Shortest and longest time between two looks at the log of the writer that is next."""
_LONGEST_NAP_S = 0.5
"""Longest time between two looks of the writers behind it."""
_LOOK_SHARE = 20
"""The writer that is next sleeps this many times as long as a look takes, so that it takes little of a processor or of a store.

The second one sleeps twice as long, and so on: otherwise many that wait would take the processors from the one that they wait for.
"""
_LOOKS = 20
"""After so many looks a waiting writer claims again, and sees whether those before it are alive."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The file ids that the write `instant` will rewrite. With priority it precedes all reservations without."""

    instant: str
    groups: frozenset[str]
    has_priority: bool = False
    appends: frozenset[str] = frozenset()
    """File ids that it only appends log files to."""
    is_whole_table: bool = False
    """Whether it stands for every file group, because there are too many to name."""

    def bounded(self) -> Reservation:
        """Return the same reservation, of at most `MAX_GROUPS` file groups or of the whole table."""
        if len(self.written) <= MAX_GROUPS:
            return self
        return replace(self, groups=frozenset(), appends=frozenset(), is_whole_table=True)

    @property
    def written(self) -> frozenset[str]:
        """All file ids that it names, rewritten or appended to."""
        return self.groups | self.appends

    def overlaps(self, other: Reservation) -> bool:
        """Return whether one of the two waits for the other."""
        if self.has_priority or other.has_priority:
            return self.is_whole_table or other.is_whole_table or not self.written.isdisjoint(other.written)
        return not self.groups.isdisjoint(other.groups)

    @property
    def rank(self) -> tuple[bool, str]:
        """Sort key: the smallest is served first."""
        return (not self.has_priority, self.instant)


@dataclass(frozen=True, slots=True)
class PostedReservation:
    """A reservation as its store keeps it. `is_active`: no other one preceded it, so its writer does not wait."""

    reservation: Reservation
    is_active: bool


class Reservations(Protocol):
    """The reservations of all writers of one table. Its methods raise `TidelineError` when their store cannot be reached."""

    def claim(self, reservation: Reservation) -> list[Reservation]:
        """Post `reservation`, in place of an earlier one of its instant, and return the reservations that go first.

        If there are none, it is active from now on, and later overlapping reservations wait for it.
        """
        ...

    def withdraw(self, instant: str) -> None:
        """Remove the reservation of `instant`, if there is one."""
        ...

    def posted(self) -> list[PostedReservation]:
        """Return all current reservations."""
        ...


class NoReservations:
    """No reservations: every write continues at once, and conflicts show at the commit."""

    def claim(self, reservation: Reservation) -> list[Reservation]:  # noqa: ARG002 - the port's
        """See `Reservations.claim`."""
        return []

    def withdraw(self, instant: str) -> None:
        """See `Reservations.withdraw`."""

    def posted(self) -> list[PostedReservation]:
        """See `Reservations.posted`."""
        return []


def going_first(own: Reservation, posted: Iterable[PostedReservation]) -> list[Reservation]:
    """Return the reservations that `own` must wait for: overlapping ones that are active, or that wait with a smaller rank.

    Writers wait only for smaller ranks or for writers that do not wait, so no cycle of waits is possible.
    """
    return [
        other.reservation
        for other in posted
        if other.reservation.instant != own.instant
        and (other.is_active or other.reservation.rank < own.rank)
        and own.overlaps(other.reservation)
    ]


class Turn(enum.Enum):
    """How a write got its turn."""

    AT_ONCE = "at once"
    LATER = "later"
    """After other writes, so the table has changed meanwhile."""
    BESIDE = "beside"
    """Beside other writes, after waiting too long for them."""


def await_turn(reservations: Reservations, timeline: ActiveTimeline, reservation: Reservation, options: Options) -> Turn:
    """Post `reservation` and wait for the reservations that go first, at most as long as the options say.

    Removes reservations of writers that are no longer pending on the timeline or whose heartbeat expired.
    """
    if not (reservation.written or reservation.is_whole_table) or options[RESERVATION_WAIT_S] <= 0:
        return Turn.AT_ONCE
    reservation = reservation.bounded()
    clock = timeline.clock
    started_s, waited = clock.monotonic_s(), False
    try:
        while first := reservations.claim(reservation):
            timeline.refresh()
            gone = [other for other in first if not _is_running(timeline, other.instant)]
            for other in gone:
                reservations.withdraw(other.instant)
            waited = True
            if gone:
                continue
            limit = PRIORITY_WAIT_S if any(other.has_priority for other in first) else RESERVATION_WAIT_S
            if clock.monotonic_s() - started_s >= options[limit]:
                _LOGGER.info("write %s continues beside %s, which it waited for", reservation.instant, first[0].instant)
                return Turn.BESIDE
            # The last one of them waits for the others, as in a queue. Its end shows in the log, which is cheaper to ask.
            _await_last(timeline, [other.instant for other in sorted(first, key=lambda other: other.rank)])
    except TidelineError as error:
        _LOGGER.warning("write %s continues without reservations: %s", reservation.instant, error)
    if not waited:
        return Turn.AT_ONCE
    timeline.refresh_view()
    return Turn.LATER


def _await_last(timeline: ActiveTimeline, queue: Sequence[str]) -> None:
    """Wait a while, at most until the log says that the last write of `queue` is no longer pending."""
    clock = timeline.clock
    for _ in range(_LOOKS):
        looked_s = clock.monotonic_s()
        timeline.refresh()
        if not _is_pending(timeline, queue[-1]):
            return
        nap_s = min(max((clock.monotonic_s() - looked_s) * _LOOK_SHARE, _NAP_S[0]), _NAP_S[1])
        ahead = sum(_is_pending(timeline, instant) for instant in queue)
        clock.sleep(min(nap_s * ahead, _LONGEST_NAP_S) * random.uniform(0.5, 1.0))  # noqa: S311 - spreads waiters, no secret


def reserved_groups(reservations: Reservations, timeline: ActiveTimeline) -> frozenset[str]:
    """Return file ids that live writers reserve with priority, so that plans can avoid them.

    None if their store does not answer.
    """
    try:
        urgent = [posted.reservation for posted in reservations.posted() if posted.reservation.has_priority]
    except TidelineError as error:
        _LOGGER.warning("planning continues without reservations: %s", error)
        return frozenset()
    if urgent:
        timeline.refresh()
    running = [reservation for reservation in urgent if _is_running(timeline, reservation.instant)]
    if any(reservation.is_whole_table for reservation in running):
        return frozenset(file_slice.group.file_id for file_slice in timeline.state.each_latest())
    return frozenset().union(*(reservation.written for reservation in running))


def _is_pending(timeline: ActiveTimeline, instant: str) -> bool:
    record = timeline.state.actions.get(instant)
    return record is not None and record.is_pending


def _is_running(timeline: ActiveTimeline, instant: str) -> bool:
    record = timeline.state.actions.get(instant)
    return record is not None and record.is_pending and is_alive(timeline.storage, record, timeline.clock, timeline.options)


def withdraw(reservations: Reservations, instant: str) -> None:
    """Remove the reservation of `instant`. If their store does not answer, waiting writers find by the timeline that it ended."""
    try:
        reservations.withdraw(instant)
    except TidelineError as error:
        _LOGGER.warning("the reservation of write %s could not be removed: %s", instant, error)
