"""Windows of time in which services may plan, in the local time of a zone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = timedelta(days=1)
_LOOK_AHEAD_DAYS = 8
"""Days after which every window has begun at least once more."""


@dataclass(frozen=True, slots=True)
class Window:
    """On each of `days`, from `begins` to `ends` on the clock of `zone`; until the next day if `ends` is not later than `begins`.

    A local time that a change of the clocks skips counts as the time that the old offset gives; one that occurs twice, as the
    first.
    """

    begins: time
    ends: time
    zone: ZoneInfo
    days: frozenset[str] = frozenset(DAYS)

    def span(self, day: date) -> tuple[datetime, datetime] | None:
        """Return begin (inclusive) and end (exclusive), in UTC, of the window that begins on this local day.

        None if none begins.
        """
        if DAYS[day.weekday()] not in self.days:
            return None
        last = day if self.ends > self.begins else day + _DAY
        return self._utc(day, self.begins), self._utc(last, self.ends)

    def _utc(self, day: date, at: time) -> datetime:
        return datetime.combine(day, at, self.zone).astimezone(UTC)

    def spans(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the spans that begin from one local day before `now` to `_LOOK_AHEAD_DAYS` days after it."""
        today = now.astimezone(self.zone).date()
        for offset in range(-1, _LOOK_AHEAD_DAYS + 1):
            span = self.span(today + timedelta(days=offset))
            if span is not None:
                yield span


def is_open(windows: Sequence[Window], now: datetime) -> bool:
    """Return whether `now` (aware) is in one of the windows. Without windows, every time is."""
    return not windows or any(begin <= now < end for window in windows for begin, end in window.spans(now))


def next_change(windows: Sequence[Window], now: datetime) -> datetime | None:
    """Return the next time (UTC) at which `is_open` changes; None if it never does."""
    opened = is_open(windows, now)
    edges = sorted({edge for window in windows for span in window.spans(now) for edge in span if edge > now})
    return next((edge for edge in edges if is_open(windows, edge) is not opened), None)
