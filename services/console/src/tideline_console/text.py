"""Numbers, sizes, ages and times as people read them, for the templates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tideline_cli.policy_program import value_text
from tideline_cli.report import size_text

NONE = "–"  # noqa: RUF001 - the dash of an empty cell


def count_text(number: float | None) -> str:
    """Return a whole number with separators; a dash for None."""
    return NONE if number is None else f"{number:,.0f}"


def bytes_text(size_bytes: float | None) -> str:
    """Return a size in its largest binary unit; a dash for None."""
    return NONE if size_bytes is None else size_text(int(size_bytes))


def duration_text(seconds: float | None) -> str:
    """Return a duration in one or two units; a dash for None."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, part, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= limit:
            whole, rest = divmod(int(seconds), limit)
            more = rest // part
            return f"{whole} {unit} {more} {name}" if more and whole < 10 else f"{whole} {unit}"
    return f"{seconds:.0f} s"


def short_text(number: float | None) -> str:
    """Return a number with three digits and a unit (k, M, G); a dash for None."""
    if number is None:
        return NONE
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(number) >= limit:
            scaled = number / (limit if limit != 1e4 else 1e3)
            return f"{scaled:.3g}{unit}"
    return f"{number:,.0f}"


def time_text(at_s: float | None) -> str:
    """Return a time in UTC to the second; a dash for None. Pages show it in the viewer's zone, if scripts run."""
    return NONE if at_s is None else f"{_utc(at_s):%Y-%m-%d %H:%M:%S} UTC"


def time_iso(at_s: float | None) -> str:
    """Return a time as ISO 8601 with milliseconds, for `<time datetime>`."""
    return "" if at_s is None else _utc(at_s).isoformat(timespec="milliseconds")


def policy_text(field: str, value: Any) -> str:
    """Return the value of a policy's field with its unit: policies hold seconds and bytes."""
    if isinstance(value, int | float) and field == "objectives.unmerged_log_age":
        return duration_text(value)
    if isinstance(value, int) and field == "budget.bytes_per_day":
        return bytes_text(value)
    return value_text(value)


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
