"""Runs the plan, or the plans, that a table-service application was started for.

It imports no Spark: `TaskRunner` says where tasks run.

Applications on Spark and resident workers run this code, so their results, outcomes and log lines are equal.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, TypeVar

import structlog

from tideline_locks import open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_spark.invocation import MODULE, SEVERAL, ExitCode, Invocation, SharedInvocation, parse
from tideline_spark.outcomes import PLAN_BEGINS, PLAN_ENDED, PLANS_BEGIN, OutcomeFile, PlanOutcome
from tideline_table.action import REWRITES, ClusteredGroup, ClusteringTask, service_of
from tideline_table.errors import Recovery, TidelineError, TransactionRolledBack, WriteConflict
from tideline_table.hudi import State
from tideline_table.storage import writing
from tideline_table.table import Table

Task = TypeVar("Task")
Result = TypeVar("Result")

_LOGGER = logging.getLogger(MODULE)


class Terminated(TidelineError):
    """SIGTERM arrived while this process ran a plan."""

    recovery = Recovery.RETRY


class _Interrupt(BaseException):
    """SIGTERM arrived. Not an `Exception`, so that no `except Exception` in between handles it."""


@dataclass(slots=True)
class Termination:
    """Turns SIGTERM into an error, but only inside its context, so that a commit that has begun is finished."""

    requested: bool = False
    _interruptible: bool = field(default=False, repr=False)

    def listen(self) -> None:
        """Install the handler of SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def check(self) -> None:
        """Raise `Terminated` if SIGTERM has arrived."""
        if self.requested:
            raise Terminated("ended by SIGTERM", expected="a completed plan", remedy="run it again")

    def __enter__(self) -> Termination:
        self._interruptible = True
        if self.requested:
            self._interruptible = False
            self.check()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._interruptible = False
        if kind is _Interrupt:
            self.check()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if self._interruptible:
            self._interruptible = False
            raise _Interrupt


class TaskRunner(Protocol):
    """Where the tasks of plans run: on Spark, or in this process."""

    def start(self) -> None:
        """Make ready to run tasks. Called before a plan begins, because a start may take longer than the plan."""
        ...

    def run(self, tasks: Sequence[Task], termination: Termination, work: Callable[[Task], Result]) -> list[Result]:
        """Run `work` for each task; return results in order of the tasks.

        Raises the first task's `TidelineError`, or `Terminated` (the tasks are cancelled). Other errors of tasks become a
        `TidelineError` that a retry may cure, so that the plan is rolled back.
        """
        ...

    def cluster(self, tasks: Sequence[ClusteringTask], termination: Termination) -> list[ClusteredGroup]:
        """Run clustering groups, large ones over several executors where there are some; return results in order of the groups.

        Errors as `run`.
        """
        ...

    def is_lost(self) -> bool:
        """Return whether no further plan can run here."""
        ...

    def stop(self) -> None:
        """Release what `start` took."""
        ...


def run_application(
    arguments: Sequence[str] | None, termination: Termination, runner_of: Callable[[str, int], TaskRunner]
) -> ExitCode:
    """Run the plan, or the plans, that the arguments name; return how that ended.

    `runner_of` makes the runner of the tasks for a title and a number of cores (0: all).
    """
    service = "application"
    try:
        parsed = parse(arguments)
        if isinstance(parsed, SharedInvocation):
            service = SEVERAL
            return _run_several(parsed, termination, runner_of("plans", parsed.local_cores))
        service = parsed.service.value
        runner = runner_of(service, parsed.local_cores)
        try:
            outcome = _run(parsed, termination, runner)
        finally:
            runner.stop()
        if parsed.result is not None:
            with writing(repr(str(parsed.result))):
                parsed.result.write_text(json.dumps(outcome))
    except TidelineError as error:
        return _failed(service, error)
    _LOGGER.info("%s ended", service, extra=outcome)
    return ExitCode.SUCCEEDED


def _run_several(shared: SharedInvocation, termination: Termination, runner: TaskRunner) -> ExitCode:
    """Run the plans one after the other. An error of one plan does not concern the next one.

    Raises `Terminated`. Stops early if the JVM has ended: plans that have not begun then have no outcome.
    """
    outcomes = OutcomeFile(shared.outcomes)
    codes: list[ExitCode] = []
    _LOGGER.info(PLANS_BEGIN, extra={"plans": len(shared.plans)})
    try:
        for number, plan in enumerate(shared.plans):
            termination.check()
            outcomes.begin(number)
            identity = {"table": plan.table, "instant": plan.instant}
            _LOGGER.info(PLAN_BEGINS, extra=identity)
            code, recovery = _run_shared(plan, termination, runner)
            codes.append(code)
            _LOGGER.info(PLAN_ENDED, extra=identity)
            outcomes.end(number, PlanOutcome(code, recovery))
            if code is ExitCode.TERMINATED:
                termination.check()
            if runner.is_lost():
                _LOGGER.error("Spark's JVM has ended", extra={"plans_not_run": len(shared.plans) - number - 1})
                return ExitCode.FAILED
    finally:
        runner.stop()
    return ExitCode.FAILED if ExitCode.FAILED in codes else ExitCode.SUCCEEDED


def _run_shared(plan: Invocation, termination: Termination, runner: TaskRunner) -> tuple[ExitCode, Recovery | None]:
    service = plan.service.value
    try:
        outcome = _run(plan, termination, runner)
    except TidelineError as error:
        return _failed(service, error), error.recovery
    except Exception:
        # Not only the engine's errors: whatever is wrong with one plan must not fail the plans of other tables.
        _LOGGER.exception("%s ended without a commit", service)
        return ExitCode.FAILED, None
    _LOGGER.info("%s ended", service, extra=outcome)
    return ExitCode.SUCCEEDED, None


def _failed(service: str, error: TidelineError) -> ExitCode:
    code = exit_code(error)
    _LOGGER.error("%s ended without a commit", service, extra={**_error_fields(error), "exit_code": code})
    return code


def exit_code(error: TidelineError) -> ExitCode:
    """Return the exit code of the process for an error."""
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED
    if isinstance(error, WriteConflict):
        return ExitCode.YIELDED
    return ExitCode.SUPERSEDED if isinstance(error, TransactionRolledBack) else ExitCode.FAILED


def _run(arguments: Invocation, termination: Termination, runner: TaskRunner) -> dict[str, Any]:
    service = arguments.service
    writer_id = f"{service}-{arguments.instant}-{os.getpid()}"
    table = Table.open(arguments.table, options=arguments.options, writer_id=writer_id, hudi_lock=open_hudi_lock)
    record = table.state.actions.get(arguments.instant)
    is_ours = record is not None and service_of(record) is service
    if record is not None and is_ours and record.state is State.COMPLETED:
        return {"instant": arguments.instant, "state": "completed before", "sequence": record.sequence}
    if record is not None and record.state is State.ROLLED_BACK:
        raise TransactionRolledBack(
            f"{service} {arguments.instant} was rolled back", expected="a pending plan", remedy="plan again"
        )
    attach_lock(table)
    termination.check()
    runner.start()
    termination.check()
    rewrite = REWRITES[service]

    def run(tasks: Sequence[Any]) -> Sequence[Any]:
        return runner.cluster(tasks, termination) if rewrite.splits_tasks else runner.run(tasks, termination, rewrite.work)

    done = rewrite.run(table, arguments.instant, run=run)
    assert done is not None
    assert done.committed is not None
    return {
        "instant": done.committed.instant,
        "state": "completed",
        "sequence": done.committed.sequence,
        "files_written": done.files,
        "rows": done.rows,
        "bytes": sum(s.file_size_bytes for s in done.committed.stats),
    }


def log_json_lines() -> None:
    """Send the logs of this process to stderr as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _error_fields(error: TidelineError) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "recovery": error.recovery.value,
        "found": error.found,
        "expected": error.expected,
        "remedy": error.remedy,
    }
