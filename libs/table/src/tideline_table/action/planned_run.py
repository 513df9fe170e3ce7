"""Steps that runs of clustering, compaction and log compaction share.

Choose a plan, begin an attempt, delete the files of superseded attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from tideline_table.action.decision import TableService, action_name
from tideline_table.config import CLUSTERING_EXPIRATION_MIN, Options
from tideline_table.coordination import roll_back
from tideline_table.coordination.conflict import check_still_own
from tideline_table.coordination.heartbeat import is_dead, is_given_up
from tideline_table.errors import (
    CommitUnknown,
    InstantNotFound,
    ObjectNotFound,
    TidelineError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.instant import State
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Bare
from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.log_format.key_index import forget_index
from tideline_table.table.facade import Table
from tideline_table.writer.marker import marked_files


def pending_plan(
    table: Table, instant: str, service: TableService, pending: Iterable[ActionRecord], options: Options
) -> ActionRecord | None:
    """Return the plan to run: that of `instant`, or the oldest of `pending` that Apache Hudi does not run; None if none.

    Raises `InstantNotFound` if `instant` is not a plan of `service`, `UnsupportedTable` if that plan is completed.
    """
    if not instant:
        return next((a for a in pending if not is_run_by_hudi(table, a, options)), None)
    record = table.state.actions.get(instant)
    if record is None or action_name(record.action, record.operation) != service:
        raise InstantNotFound(f"instant {instant}", expected=f"a {service} plan of this table")
    if record.state is State.COMPLETED:
        raise UnsupportedTable(
            f"{service} {instant} is completed", expected="a pending plan", remedy="list pending plans: tideline job list PATH"
        )
    return record


def begin_attempt(table: Table, instant: str, service: TableService, operation: str, options: Options) -> Entry:
    """Append the inflight entry of a plan. The sequence of the entry names the attempt; a later attempt supersedes it.

    Raises `TransactionRolledBack` if the plan is no longer pending, `WriteConflict` while a live process or Apache Hudi runs it.
    """

    def pending(state: TableState) -> ActionRecord:
        record = state.actions.get(instant)
        if record is None or not record.is_pending or record.fenced_by:
            ended = record.state if record else "archived"
            raise TransactionRolledBack(f"{service} {instant} is {ended}", expected="a pending plan", remedy="plan again")
        return record

    def runner(state: TableState) -> tuple[bool, bool]:
        """Return whether Apache Hudi runs the plan, and whether a live process of Tideline does."""
        record = pending(state)
        if is_run_by_hudi(table, record, options):
            return True, False
        return False, record.state is State.INFLIGHT and not is_dead(table.storage, record, table.clock, options)

    def decide(state: TableState, runner: tuple[bool, bool]) -> Draft:
        record = pending(state)
        by_hudi, by_live_process = runner
        if by_hudi:
            raise WriteConflict(
                f"{record.action} {instant} is being run by Apache Hudi",
                with_instant=instant,
                remedy="wait for it; if it died, it is given up after "
                f"{options[CLUSTERING_EXPIRATION_MIN]} minutes without a sign of life ({CLUSTERING_EXPIRATION_MIN.key})",
            )
        if by_live_process:
            raise WriteConflict(
                f"{service} {instant} is being run by {record.writer_id}", with_instant=instant, remedy="wait for it"
            )
        return Draft(instant, record.action, record.state, State.INFLIGHT, operation, Bare())

    return table.timeline.append(decide, runner)


def is_run_by_hudi(table: Table, record: ActionRecord, options: Options) -> bool:
    """Return whether Tideline must leave a plan to Apache Hudi, which began it: two runs would leave files of the same instant.

    A compaction that Apache Hudi gave up may be run again, because files of both attempts belong to one slice. A clustering may
    not, because each attempt creates its own file groups; `roll_back_dead` rolls it back.
    """
    if not record.is_by_hudi or record.state is not State.INFLIGHT:
        return False
    return record.is_clustering or not is_given_up(table.storage, record, table.clock, options, table.timeline.format)


@contextmanager
def rolled_back_if_failed(
    table: Table, instant: str, attempt: int, service: TableService, *written: Sequence[WriteStat]
) -> Iterator[None]:
    """Roll the plan back if the context raises; delete the files of the attempt, `written`, if another process has ended it.

    Not if only the log knows whether the attempt committed (`CommitUnknown`). For plans that no file of a writer depends on.
    """
    try:
        yield
    except CommitUnknown:
        raise
    except TidelineError as error:
        is_ended = isinstance(error, TransactionRolledBack)
        if is_ended or roll_back(table.timeline, instant, force=True, attempt=attempt) is None:
            delete_lost_attempt(table, instant, attempt, [stat for stats in written for stat in stats])
            if isinstance(error, ObjectNotFound):
                raise lost_attempt(service, instant) from error
        raise


def check_own_attempt(state: TableState, instant: str, attempt: int, service: TableService) -> None:
    """Raise `TransactionRolledBack` if the plan was ended, or if another attempt than `attempt` was the last to begin."""
    check_still_own(state, instant)
    if state.actions[instant].sequence != attempt:
        raise TransactionRolledBack(
            f"{service} {instant} was taken over by {state.actions[instant].writer_id}",
            expected=f"attempt {attempt}",
            remedy="its heartbeat had expired; the other process continues it",
        )


def delete_lost_attempt(table: Table, instant: str, attempt: int, stats: Sequence[WriteStat]) -> None:
    """Delete the files of a superseded attempt, which have names of their own. The later attempt cannot see files written late.

    Keep files that the table refers to: then this attempt did complete, so long ago that its instant was archived.
    """
    marked = {path for path in marked_files(table.storage, instant) if attempt_of(path) == attempt}
    committed = {path for file_slice in table.refresh().every_slice() for path in file_slice.paths}
    for path in sorted({*marked, *(s.path for s in stats)} - committed):
        forget_index(table.storage, path)
        table.storage.delete(path)


def delete_earlier_attempts(table: Table, instant: str, attempt: int) -> None:
    """Delete the files of attempts before `attempt`, which can never complete: they carry the instant and would count as committed.

    The files of a later attempt stay, because it may be about to commit them.
    """
    for path in list(marked_files(table.storage, instant)):
        if -1 < attempt_of(path) < attempt:
            forget_index(table.storage, path)
            table.storage.delete(path)


def lost_attempt(service: TableService, instant: str) -> TransactionRolledBack:
    """Return the error of an attempt whose files another process deleted: it cancelled the plan, or took it over."""
    return TransactionRolledBack(
        f"{service} {instant} was cancelled or taken over while it ran", expected="a pending plan", remedy="plan again"
    )


def attempt_of(path: str) -> int:
    """Return the attempt that wrote the data file at `path`, from its write token; -1 for other files."""
    file_name = path.rsplit("/", 1)[-1]
    name = parse_base_file_name(file_name) or parse_log_file_name(file_name)
    return int(name.write_token.rsplit("-", 1)[-1]) if name is not None and name.write_token else -1
