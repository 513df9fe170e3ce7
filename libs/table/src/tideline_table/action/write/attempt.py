"""Attempts of a write: each in a transaction that is rolled back on any error, and repeated after a conflict."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import tenacity

from tideline_table.action.write.contention import Contention
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import Options
from tideline_table.coordination.committed import Committed
from tideline_table.errors import CommitUnknown, ObjectNotFound, RestoredMeanwhile, TransactionRolledBack, WriteConflict
from tideline_table.log.progress import ProgressStep
from tideline_table.table.facade import Table
from tideline_table.writer import Operation

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
