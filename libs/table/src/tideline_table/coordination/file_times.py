"""When a slice may complete. Apache Hudi 1.x places log files by file times, if no names have completion times (reference 11.3)."""

from __future__ import annotations

from datetime import datetime, timedelta

from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.hudi.instant import instant_from_time, next_instant, time_from_instant
from tideline_table.log.state import TableState


def pass_instant(timeline: ActiveTimeline, base: str, *, opens: bool) -> None:
    """Wait until the store dates files after `base`, the instant of a slice that completes or is appended to; empty: no slice.

    A slice completed with a file time before its instant looks older than it is: Hudi would place log files appended to it into the
    slice before it, if the file group has one. `opens`: the commit makes such a slice; then raises `ClockSkew` for an instant too
    far ahead to wait for. Object stores keep whole seconds, so there the second of the instant must be over.
    """
    if timeline.format.has_completion_times or not base or not (opens or timeline.time.unit):
        return
    if timeline.time.ahead(base):
        if opens:
            timeline.time.check_reached(base, "a slice")
        return
    over = time_from_instant(base)
    if timeline.time.unit:
        over = over.replace(microsecond=0) + timedelta(seconds=1)
    ahead_s = (over - timeline.time.by_store()).total_seconds()
    if ahead_s > 0:
        timeline.clock.sleep(ahead_s)


def above_time(minted: str, last: datetime | None, state: TableState) -> str:
    """Return the minted instant, or the next one above both `last` and the table's if the time `last` is not before it."""
    if last is None or instant_from_time(last) < minted:
        return minted
    return next_instant(last + timedelta(milliseconds=1), state.last_instant)
