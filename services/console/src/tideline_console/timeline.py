"""The drawn timeline of one table: lanes, bars and marks, placed in percent of the width and pixels of the height."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tideline_console.instants import DONE, PLANNED, RUNNING, UNDONE, Instant
from tideline_console.text import bytes_text, count_text, duration_text, time_text

WINDOWS = {"5min": 300.0, "15min": 900.0, "1h": 3600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
ALL = "all"
_SERVICE_LANES = (
    ("clustering", "Clustering"),
    ("compaction", "Compaction"),
    ("logcompaction", "Log compaction"),
    ("clean", "Clean"),
    ("rollback", "Rollback"),
    ("restore", "Restore"),
    ("indexing", "Indexing"),
    ("archival", "Archival"),
)
_ALWAYS = ("clustering", "compaction", "clean", "rollback")
_MOST_WRITERS = 6
_LANE, _HEAD, _AXIS = 28, 22, 24
_LEAST_WIDTH = 0.35
"""Percent: a shorter bar could not be seen, or hit."""
_GAP = 0.12
"""Percent: closer bars of one lane and colour are drawn as one, so that dense writers cost neither time nor a page of megabytes."""
_TICKS = (
    1,
    5,
    15,
    60,
    300,
    900,
    3600,
    10_800,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
    1_209_600,
    2_592_000,
    7_776_000,
    31_536_000,
)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time that is drawn, in seconds since the epoch."""

    begin_s: float
    end_s: float
    now_s: float

    def x(self, at_s: float) -> float:
        """Return the place of a time in percent, within the drawing."""
        return round(min(100.0, max(0.0, (at_s - self.begin_s) / (self.end_s - self.begin_s) * 100)), 3)


@dataclass(frozen=True, slots=True)
class Lane:
    """A row: a heading, or a lane with marks."""

    label: str
    y: int
    height: int
    is_head: bool = False


@dataclass(slots=True)
class Mark:
    """A bar or a sign. `instant` is that of the newest instant it stands for, `count` how many these are."""

    shape: str
    x: float
    width: float
    y: int
    look: str
    title: str
    instant: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Tie:
    """A dashed line from what a rollback undid to the rollback."""

    x1: float
    y1: int
    x2: float
    y2: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """All that the template draws."""

    span: Span
    lanes: list[Lane]
    marks: list[Mark]
    ties: list[Tie]
    ticks: list[tuple[float, str, str]]
    height: int
    now_x: float
    labels: list[tuple[float, int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Kept:
    """A savepoint or a lease of a reader: what holds files back, from a time on, until a time or for ever."""

    lane: str
    name: str
    begin_s: float
    end_s: float | None
    instant: str


def length_of(window: str) -> float | None:
    """Return the length in seconds of a range that an address names: a key of `WINDOWS`, or seconds; None for another text."""
    seconds = int(window) if window.isascii() and window.isdigit() and len(window) < 11 else 0
    return WINDOWS.get(window, float(seconds) or None)


def choose_span(instants: Sequence[Instant], window: str, now_s: float, until_s: float | None = None) -> tuple[str, Span]:
    """Return the window and the range of time to draw. `instants` are in order of their begin.

    `window` is `ALL`, what `length_of` reads, or empty: the shortest with the last dozen instants. It ends now or at `until_s`.
    """
    end_s = now_s if until_s is None else until_s
    last = bisect_right(instants, end_s, key=lambda one: one.begun_s)
    if not window:
        wanted_s = end_s - instants[max(0, last - 12)].begun_s if last else 0.0
        window = next((name for name, length_s in WINDOWS.items() if length_s >= wanted_s), ALL)
    if window == ALL:
        begin_s = instants[0].begun_s if last else end_s - 3600
        margin_s = max(1.0, (end_s - begin_s) * 0.02)
        return window, Span(max(0.0, begin_s - margin_s), end_s + margin_s * 3, now_s)
    length_s = length_of(window) or WINDOWS["1h"]
    return window, Span(max(0.0, end_s - length_s), end_s + length_s * 0.06, now_s)


def draw(instants: Iterable[Instant], kept: Sequence[Kept], span: Span) -> Drawing:
    """Return the drawing of the instants and of what is kept in a range of time."""
    drawn = (one for one in instants if one.action != "savepoint")  # They are among what is kept.
    shown = [one for one in drawn if one.begun_s <= span.end_s and (one.ended_s or span.now_s) >= span.begin_s]
    lanes, places, y = _laid_out(shown, kept)
    marks: list[Mark] = []
    where: dict[str, tuple[float, int]] = {}
    last: dict[tuple[int, str], Mark] = {}
    for one in shown:
        lane_y = places[_lane_of(one, places)]
        mark = _mark(one, span, lane_y)
        where[one.instant] = mark.x + mark.width / 2, lane_y
        before = last.get((lane_y, mark.look))
        if before is not None and mark.shape == before.shape == "bar" and mark.x - (before.x + before.width) < _GAP:
            before.width = round(max(before.width, mark.x + mark.width - before.x), 3)
            before.count += 1
            before.title = f"{before.count} instants until {mark.instant}"
            before.instant = mark.instant
        else:
            mark.title = _title(one)  # Not of those that are drawn together: there may be many.
            marks.append(mark)
            last[lane_y, mark.look] = mark
    ties = [
        Tie(*where[one.undone], *where[one.instant])
        for one in shown
        if one.undone in where and one.action == "rollback" and where[one.undone][1] != where[one.instant][1]
    ]
    for hold in kept:
        if hold.begin_s <= span.end_s and (hold.end_s is None or hold.end_s >= span.begin_s):
            x, end = span.x(hold.begin_s), span.x(span.now_s if hold.end_s is None else hold.end_s)
            shape = "savepoint" if hold.lane == "Savepoints" else "lease"
            until = "" if hold.end_s is None else f" until {time_text(hold.end_s)}"
            title = f"{hold.name}, keeps {hold.instant}{until}"
            marks.append(Mark(shape, x, max(end - x, _LEAST_WIDTH), places[hold.lane], "kept", title, hold.instant))
    return Drawing(span, lanes, marks, ties, _ticks(span), y + _AXIS, span.x(span.now_s))


def _laid_out(shown: Sequence[Instant], kept: Sequence[Kept]) -> tuple[list[Lane], dict[str, int], int]:
    """Return the lanes, the vertical middle of each by its name, and the height."""
    writers = Counter(one.writer or "unknown" for one in shown if one.is_write)
    named = sorted(name for name, _ in writers.most_common(_MOST_WRITERS if len(writers) <= _MOST_WRITERS else _MOST_WRITERS - 1))
    lanes, places, y = [Lane("Writes", 0, _HEAD, is_head=True)], {}, _HEAD
    others = len(writers) - len(named)

    def add(key: str, label: str) -> None:
        nonlocal y
        lanes.append(Lane(label, y, _LANE))
        places[key] = y + _LANE // 2
        y += _LANE

    for name in named:
        add(f"writer {name}", name)
    if others or not named:
        add("writers", f"{others} other writers" if others else "no write")
    lanes.append(Lane("Services", y, _HEAD, is_head=True))
    y += _HEAD
    present = {one.action for one in shown}
    for key, label in _SERVICE_LANES:
        if key in _ALWAYS or key in present:
            add(key, label)
    names = list(dict.fromkeys(["Savepoints", *(hold.lane for hold in kept)]))
    lanes.append(Lane("Kept", y, _HEAD, is_head=True))
    y += _HEAD
    for name in names:
        add(name, name)
    return lanes, places, y


def _lane_of(one: Instant, places: dict[str, int]) -> str:
    if one.action in places:
        return one.action
    own = f"writer {one.writer or 'unknown'}"
    return own if own in places else "writers" if "writers" in places else next(iter(places))


def _mark(one: Instant, span: Span, y: int) -> Mark:
    begin, end = span.x(one.begun_s), span.x(span.now_s if one.ended_s is None else one.ended_s)
    if one.outcome == PLANNED:
        return Mark("planned", begin, 0.0, y, "planned", "", one.instant)
    if one.action in ("rollback", "restore"):
        return Mark("point", end if one.outcome == DONE else begin, 0.0, y, "bad", "", one.instant)
    look = {UNDONE: "lost", RUNNING: "running"}.get(one.outcome, "write" if one.is_write else "service")
    width = max(end - begin, _LEAST_WIDTH)
    return Mark("bar", min(begin, 100 - width), round(width, 3), y, look, "", one.instant)


def _title(one: Instant) -> str:
    """Return the text that a mark has for people who point at it, or who do not see it."""
    lasted = "" if one.ended_s is None else f", {duration_text(one.ended_s - one.begun_s)}"
    files = f", {count_text(one.files_added)} files, {bytes_text(one.bytes_added)}" if one.files_added else ""
    return f"{one.action} {one.instant}, {one.outcome}{lasted}{files}"


def _ticks(span: Span) -> list[tuple[float, str, str]]:
    """Return places of round times: percent, text in UTC, ISO 8601."""
    length_s = span.end_s - span.begin_s
    step_s = next((step for step in _TICKS if length_s / step <= 7), _TICKS[-1])
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86_400 else "%d %b" if step_s < 7_776_000 else "%b %Y"
    at_s = (span.begin_s // step_s + 1) * step_s
    found = []
    while at_s < span.end_s:
        at = datetime.fromtimestamp(0, UTC) + timedelta(seconds=at_s)
        if 2 < span.x(at_s) < 97:
            found.append((span.x(at_s), at.strftime(form), at.isoformat()))
        at_s += step_s
    return found
