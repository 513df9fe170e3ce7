"""Completion times, where the names of timeline files have them (docs/design/table-versions.md)."""

from __future__ import annotations

from datetime import datetime, timedelta

from tideline_table.clock import Clock
from tideline_table.hudi.instant import next_instant, time_from_instant
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft

_SKEW = timedelta(milliseconds=200)
"""How far apart clocks may be: what Apache Hudi's writers wait, too (`hoodie.time.generator.max_expected_clock_skew_ms`)."""


def completion_after(state: TableState, draft: Draft, now: datetime) -> str:
    """Return the completion time of a step: the present, above every time in `state` and the instant of the step.

    One logical clock gives instants and completion times.
    """
    # An index is created by one entry, so the log does not have its instant yet.
    return next_instant(now, max(state.last_instant, draft.instant))


def wait_past(clock: Clock, last: str) -> None:
    """Wait until the clocks of all writers are past the time `last`, which the caller made under the lock that all take.

    Apache Hudi's writers take instants and completion times by their clocks alone. A log file whose write completed, by its name,
    before the base file that it follows would be of the slice before, and no reader would merge it.
    """
    ahead_s = (time_from_instant(last) + _SKEW - clock.now()).total_seconds()
    if ahead_s > 0:
        clock.sleep(ahead_s)
