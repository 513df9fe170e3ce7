"""Attempts of a write: each in a transaction that is rolled back on any error, and repeated after a conflict.

`Contention` is what one write keeps of lost attempts: the file groups that it needs, its losses, and how it waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import tenacity

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import (
    BACKLOG_LOG_FILES,
    BACKLOG_RESPONSE,
    BACKLOG_WAIT_S,
    INSERT_TO_LOG,
    PRIORITY_AFTER,
    PRIORITY_WAIT_S,
    WRITE_RETRIES,
    Options,
)
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.priority import await_clustering, waits_for_clusterings
from tideline_table.coordination.reservations import Reservation, Turn, await_turn, withdraw
from tideline_table.errors import (
    BacklogTooLarge,
    ClusteringFirst,
    CommitUnknown,
    ObjectNotFound,
    RestoredMeanwhile,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState
from tideline_table.table.facade import Table
from tideline_table.writer import Operation


class Contention:
    """The file groups that a write needed so far and the number of its losses, over all its attempts. Not thread-safe."""

    def __init__(self, table: Table, options: Options) -> None:
        self.table = table
        self.options = options
        self._losses = 0
        self._lost_in_vain = 0
        self._groups: frozenset[str] = frozenset()
        self._appends: frozenset[str] = frozenset()
        self._posted: set[str] = set()
        self._gave_way_to: set[str] = set()
        self._waited_s = 0.0

    @property
    def has_priority(self) -> bool:
        """Whether the write lost to Tideline writers so often that they wait for it.

        Apache Hudi's writers ignore priority. After as many losses to them, the write has no priority any more: waiting writers
        would not help it.
        """
        return self._lost_in_vain < self.options[PRIORITY_AFTER] <= self._losses

    @property
    def attempts(self) -> int:
        """The number of attempts that the write has by now: the first loss to each clustering with priority does not count."""
        return self.options[WRITE_RETRIES] + 1 + len(self._gave_way_to)

    def lost(self, conflict: WriteConflict) -> None:
        """Record that an attempt ended with `conflict`."""
        if self._waits_for(conflict):
            self._gave_way_to.add(conflict.with_instant)
        elif not self._is_with_hudi(conflict):
            self._losses += 1
        elif self.has_priority:
            self._lost_in_vain += 1

    def give_way(self, conflict: WriteConflict) -> None:
        """Wait for the clustering if `conflict` is with one that has priority. Raises `ClusteringFirst` if the wait is too long."""
        if not self._waits_for(conflict):
            return
        clustering, clock, longest_s = conflict.with_instant, self.table.clock, self.options[PRIORITY_WAIT_S]
        _LOGGER.info("a write waits for clustering %s", clustering)
        began_s = clock.monotonic_s()
        is_over = await_clustering(self.table.timeline, clustering, self.options, max(0.0, longest_s - self._waited_s))
        self._waited_s += clock.monotonic_s() - began_s
        if not is_over:
            raise ClusteringFirst(
                f"{conflict.found} and was waited for {self._waited_s:.0f} s",
                with_instant=clustering,
                expected=f"its end within {longest_s:g} s ({PRIORITY_WAIT_S.key})",
                remedy=conflict.remedy,
            )

    def _waits_for(self, conflict: WriteConflict) -> bool:
        return isinstance(conflict, ClusteringFirst) and waits_for_clusterings(self.options)

    def _is_with_hudi(self, conflict: WriteConflict) -> bool:
        other = self.table.state.actions.get(conflict.with_instant)
        return other is not None and other.is_by_hudi

    def needs(self, rewrites: Iterable[str], appends: Iterable[str]) -> None:
        """Record that the write rewrites the file groups `rewrites` and appends log files to `appends`."""
        self._groups |= frozenset(rewrites)
        self._appends |= frozenset(appends)

    def take_turn(self, instant: str) -> Turn:
        """Reserve the file groups that the write is known to need, and wait until no other write goes first."""
        reservation = Reservation(instant, self._groups, self.has_priority, self._appends - self._groups)
        if not reservation.written:
            return Turn.AT_ONCE
        self._posted.add(instant)
        return await_turn(self.table.reservations, self.table.timeline, reservation, self.options)

    def end_turn(self) -> None:
        """Withdraw the reservations of the attempt, so that waiting writers may go on."""
        for instant in self._posted:
            withdraw(self.table.reservations, instant)
        self._posted.clear()


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


_LOGGER = logging.getLogger(__name__)
OnConflict = Callable[[WriteConflict, int], None]


def write_with_retries(contention: Contention, run: Callable[[], Committed], on_conflict: OnConflict | None) -> Committed:
    """Call `run` (one attempt on fresh state) until it does not lose to another writer, at most as often as the options allow."""

    def attempt() -> Committed:
        try:
            return run()
        except WriteConflict as conflict:
            contention.lost(conflict)
            raise
        finally:
            contention.end_turn()

    retrying = tenacity.Retrying(
        stop=lambda call: call.attempt_number >= contention.attempts,
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=3.0),
        retry=tenacity.retry_if_exception_type((WriteConflict, TransactionRolledBack))
        & tenacity.retry_if_not_exception_type(RestoredMeanwhile),
        sleep=contention.table.clock.sleep,
        before_sleep=lambda call: _settle(call, contention, on_conflict),
        reraise=True,
    )
    committed = retrying(attempt)
    return replace(committed, attempts=int(retrying.statistics["attempt_number"]))


def in_transaction(
    table: Table,
    operation: Operation,
    options: Options,
    stage: Callable[[WriteTransaction], Committed],
    progress: ProgressStep | None = None,
) -> Committed:
    """Begin a transaction and let `stage` write and commit it; roll it back on any error.

    The exception is `CommitUnknown`: the log decides the outcome, and recovery follows the log.
    """
    action = table.write_action(replaces=operation.overwrites)
    one_group = table.definition.one_group_per_bucket
    # Step 2 of a commit: the log has an entry of this write before the first file exists, so that the cleaner can roll back a dead
    # writer.
    transaction = WriteTransaction.begin(
        table.timeline, table.lock, operation.hudi_name, action, options, progress, one_group_per_bucket=one_group
    )
    try:
        return stage(transaction)
    except ObjectNotFound as error:
        # A file that was visible at the begin is gone: another action replaced it, and a clean deleted it.
        transaction.roll_back()
        raise WriteConflict(
            f"file {error.path} is gone",
            expected="the files that the write found when it began: a clean may have deleted this one",
            with_instant="",
        ) from error
    except CommitUnknown:
        transaction.abandon()
        raise
    except BaseException:
        transaction.roll_back()
        raise


def _settle(call: tenacity.RetryCallState, contention: Contention, on_conflict: OnConflict | None) -> None:
    error = call.outcome.exception() if call.outcome else None
    _LOGGER.info("write attempt %d lost: %s", call.attempt_number, error)
    if not isinstance(error, WriteConflict):
        return
    if on_conflict is not None:
        on_conflict(error, call.attempt_number)
    contention.give_way(error)
