"""Compaction strategies: which file groups a plan takes, and in which order (Apache Hudi's `CompactionStrategy` classes).

A strategy that always begins with the largest groups, or with the newest days, lets other groups wait for as long as writers are
busy. So groups whose oldest log file has waited for `tideline.compaction.max.wait.commits` delta commits come first, whatever the
thresholds and the bound on input and output say.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from tideline_table.config import (
    COMPACTION_DAY_PARTITIONS,
    COMPACTION_LOG_BYTES_THRESHOLD,
    COMPACTION_LOG_FILES_THRESHOLD,
    COMPACTION_MAX_WAIT_COMMITS,
    COMPACTION_STRATEGIES,
    COMPACTION_STRATEGY,
    COMPACTION_TARGET_IO_MB,
    Options,
)
from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action, State
from tideline_table.log.state import TableState

_MB = 1024 * 1024
_DAY = re.compile(r"(?<!\d)(\d{4})[-/]?(\d{2})[-/]?(\d{2})(?!\d)|(?<!\d)(\d{4})/\w+=(\d{1,2})/\w+=(\d{1,2})(?!\d)", re.ASCII)


class Strategy(enum.StrEnum):
    """The strategies, by the short names of the option; `strategy_of` knows Apache Hudi's class names, too."""

    LOG_SIZE = "log_size"
    LOG_COUNT = "log_count"
    BOUNDED_IO = "bounded_io"
    DAY_BASED = "day_based"
    RECENT_DAYS = "recent_days"
    OLDER_DAYS = "older_days"
    UNBOUNDED = "unbounded"
    AGE = "age"


def strategy_of(options: Options) -> Strategy:
    """Return the strategy that the options name."""
    return Strategy(COMPACTION_STRATEGIES[options[COMPACTION_STRATEGY]])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file slice with log files that no pending plan names."""

    file_slice: FileSlice
    waited: int
    """Delta commits completed since the write of its oldest log file, including that write."""
    oldest: str
    """Instant of its oldest log file."""

    @property
    def log_bytes(self) -> int:
        """The size of the log files that a reader opens."""
        return sum(log.size_bytes for log in self.file_slice.applied.log_files)

    @property
    def log_count(self) -> int:
        """The number of log files that a reader opens."""
        return len(self.file_slice.applied.log_files)

    @property
    def io_mb(self) -> float:
        """What compacting it reads and writes, in MiB: the base file is written again, as large as it is."""
        return (self.file_slice.applied.total_bytes + self.file_slice.size_bytes) / _MB

    @property
    def group(self) -> FileGroupId:
        """Its file group."""
        return self.file_slice.group


def candidates(state: TableState, slices: Iterable[FileSlice]) -> list[Candidate]:
    """Return the slices with log files, with what a strategy asks about them."""
    appended = sorted(a.instant for a in state.actions.values() if a.action is Action.DELTA_COMMIT and a.state is State.COMPLETED)
    found = []
    for file_slice in slices:
        if file_slice.log_files:
            # Log files of Apache Hudi may not name their write; it is not older than the slice.
            oldest = min(log.instant or file_slice.base_instant for log in file_slice.log_files)
            found.append(Candidate(file_slice, len(appended) - bisect_right(appended, oldest) + 1, oldest))
    return found


def chosen(found: Sequence[Candidate], options: Options, today: date) -> list[Candidate]:
    """Return the candidates that a plan takes, in the order of the plan: overdue groups first, the longest wait first.

    Raises `InvalidOption` if a strategy by days meets a partition path without a date.
    """
    strategy, limit = strategy_of(options), options[COMPACTION_MAX_WAIT_COMMITS]
    if strategy in (Strategy.RECENT_DAYS, Strategy.OLDER_DAYS):
        # Two jobs share the table by these two: what one leaves out is the work of the other.
        found = _in_window(found, options, today, is_recent=strategy is Strategy.RECENT_DAYS)
    overdue = sorted((c for c in found if limit and c.waited >= limit), key=lambda c: (c.oldest, c.group))
    taken = {c.group for c in overdue}
    left = [c for c in found if c.group not in taken]
    return overdue + _ORDERS[strategy](left, options, sum(c.io_mb for c in overdue))


def _by_log_bytes(found: Sequence[Candidate], options: Options, spent_mb: float) -> list[Candidate]:
    large = [c for c in found if c.log_bytes >= options[COMPACTION_LOG_BYTES_THRESHOLD]]
    return _bounded(sorted(large, key=lambda c: (-c.log_bytes, c.group)), options, spent_mb)


def _by_log_count(found: Sequence[Candidate], options: Options, spent_mb: float) -> list[Candidate]:
    many = [c for c in found if c.log_count >= options[COMPACTION_LOG_FILES_THRESHOLD]]
    return _bounded(sorted(many, key=lambda c: (-c.log_count, c.group)), options, spent_mb)


def _by_partition(found: Sequence[Candidate], options: Options, spent_mb: float) -> list[Candidate]:
    return _bounded(sorted(found, key=lambda c: c.group), options, spent_mb)


def _by_age(found: Sequence[Candidate], options: Options, spent_mb: float) -> list[Candidate]:
    return _bounded(sorted(found, key=lambda c: (c.oldest, c.group)), options, spent_mb)


def _newest_days(found: Sequence[Candidate], options: Options, _spent_mb: float) -> list[Candidate]:
    days = {c.group.partition_path: _day_of(c.group.partition_path) for c in found}
    newest = sorted(days, key=lambda path: (days[path], path), reverse=True)[: options[COMPACTION_DAY_PARTITIONS]]
    return [c for path in newest for c in sorted(found, key=lambda c: (-c.log_bytes, c.group)) if c.group.partition_path == path]


def _everything(found: Sequence[Candidate], _options: Options, _spent_mb: float) -> list[Candidate]:
    return sorted(found, key=lambda c: c.group)


_ORDERS: dict[Strategy, Callable[[Sequence[Candidate], Options, float], list[Candidate]]] = {
    Strategy.LOG_SIZE: _by_log_bytes,
    Strategy.LOG_COUNT: _by_log_count,
    Strategy.BOUNDED_IO: _by_partition,
    Strategy.DAY_BASED: _newest_days,
    Strategy.RECENT_DAYS: _everything,
    Strategy.OLDER_DAYS: _everything,
    Strategy.UNBOUNDED: _everything,
    Strategy.AGE: _by_age,
}


def _bounded(found: Sequence[Candidate], options: Options, spent_mb: float) -> list[Candidate]:
    """Return the first candidates until their input and output reach the bound; the one that reaches it is the last, as in Hudi."""
    left_mb, taken = options[COMPACTION_TARGET_IO_MB] - spent_mb, []
    for candidate in found:
        if left_mb <= 0:
            break
        taken.append(candidate)
        left_mb -= candidate.io_mb
    return taken


def _in_window(found: Sequence[Candidate], options: Options, today: date, *, is_recent: bool) -> list[Candidate]:
    first = today - timedelta(days=options[COMPACTION_DAY_PARTITIONS])
    return [c for c in found if (_day_of(c.group.partition_path) >= first) is is_recent]


def _day_of(partition_path: str) -> date:
    match = _DAY.search(partition_path)
    if match is not None:
        year, month, day = (part for part in match.groups() if part is not None)
        try:
            return datetime(int(year), int(month), int(day)).date()  # noqa: DTZ001 - a day without a zone
        except ValueError:
            pass
    raise InvalidOption(
        f"partition path {partition_path!r} has no date, and {COMPACTION_STRATEGY.key} chooses partitions by day",
        expected="partition paths such as 2026/01/31, 2026-01-31 or day=2026-01-31",
        remedy="choose another strategy, for example log_size",
    )
