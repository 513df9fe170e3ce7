"""Apache Hudi 1.x places log files by the modification times of timeline files (format reference 11.3): when a slice may complete."""

from __future__ import annotations

from datetime import timedelta

from tideline_table.config import INSTANT_SKEW_S
from tideline_table.timeline.instant import time_from_instant
from tideline_table.transaction.active_timeline import ActiveTimeline

_KEEP_FRACTIONS = ("file:", "memory:")


def pass_second(timeline: ActiveTimeline, base: str) -> None:
    """Wait until the second of `base`, the instant of a slice that is about to complete or that is appended to, is over; empty: of none.

    Object stores keep whole seconds: completed in the second of its instant, a slice would look older than it is, and what is appended to it would
    be placed into the one before. An instant may lie ahead of this clock by as much as mint allows.
    """
    if not base or timeline.storage.root.startswith(_KEEP_FRACTIONS):
        return
    over = time_from_instant(base).replace(microsecond=0) + timedelta(seconds=1)
    ahead_s = (over - timeline.clock.now()).total_seconds()
    if 0 < ahead_s <= timeline.options[INSTANT_SKEW_S] + 1:
        timeline.clock.sleep(ahead_s)
