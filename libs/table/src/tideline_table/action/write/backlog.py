"""Back-pressure: what a write does while compaction has not kept up with the writers of its partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tideline_table.config import BACKLOG_LOG_FILES, BACKLOG_RESPONSE, BACKLOG_WAIT_S, INSERT_TO_LOG, Options
from tideline_table.errors import BacklogTooLarge
from tideline_table.log.state import TableState
from tideline_table.table.facade import Table
from tideline_table.writer import Operation

_LOGGER = logging.getLogger(__name__)
_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """The pressure on a write: the log files of the fullest slice in its partitions, and how long it waits for a compaction."""

    log_files: int
    response: str = "none"
    wait_s: float = 0.0


def pressure_on(state: TableState, options: Options, partitions: Iterable[str] | None = None) -> Pressure:
    """Return the pressure on a write to `partitions` (None: all). Pure.

    A write that waits, waits for a tenth of `tideline.write.backlog.wait` at least, and for all of it at twice the limit.
    """
    most, limit = (
        max((len(s.applied.log_files) for s in state.latest_slices(partitions=partitions)), default=0),
        options[BACKLOG_LOG_FILES],
    )
    if most < limit or options[BACKLOG_RESPONSE] == "none":
        return Pressure(most)
    share = min(1.0, max(0.1, (most - limit) / limit))
    response = options[BACKLOG_RESPONSE]
    return Pressure(most, response, share * options[BACKLOG_WAIT_S] if response == "slow" else 0.0)


def hold_back(table: Table, operation: Operation, options: Options, partitions: Iterable[str] | None = None) -> None:
    """Warn, wait, or raise `BacklogTooLarge` before a write begins, as `tideline.write.backlog.response` says.

    Concerns only writes that may append to log files of a merge-on-read table: others add nothing to the backlog.
    """
    appends = operation.looks_up_keys or (options[INSERT_TO_LOG] and not operation.overwrites)
    if not table.definition.has_logs or not appends or options[BACKLOG_RESPONSE] == "none":
        return
    named = None if partitions is None else frozenset(partitions)
    # A warning is not worth a request.
    met = pressure_on(table.state if options[BACKLOG_RESPONSE] == "warn" else table.refresh(), options, named)
    if met.response == "none":
        return
    found = f"table {table.definition.name!r} has a file slice with {met.log_files} log files"
    remedy = "compact it: tideline run compaction PATH, or start a planner and a launcher"
    if met.response == "refuse":
        expected = f"fewer than {options[BACKLOG_LOG_FILES]} ({BACKLOG_LOG_FILES.key})"
        raise BacklogTooLarge(found, expected=expected, remedy=f"retry when compaction has caught up; {remedy}")
    _LOGGER.warning("writers outrun compaction: %s; %s", found, remedy)
    waited_s = 0.0
    while waited_s < met.wait_s:
        step_s = min(_STEP_S, met.wait_s - waited_s)
        table.clock.sleep(step_s)
        waited_s += step_s
        if pressure_on(table.refresh(), options, named).response == "none":
            return
