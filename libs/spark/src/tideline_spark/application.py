"""Table services as Spark applications: `python -m tideline_spark.application clustering|compaction --table PATH --instant INSTANT`.

`several --plan JSON --plan JSON` runs several plans of any tables one after the other, so that Spark starts once. The plan on the timeline defines the work. Tasks carry paths and options; rows never enter the JVM. Running a completed plan again
succeeds without doing anything. Logs are JSON lines on stderr.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tideline_locks import open_peer_lock
from tideline_locks.table_lock import LOCKS_VARIABLE, attach_lock
from tideline_spark.errors import spark_failure
from tideline_spark.invocation import SEVERAL, ExitCode, Invocation, SharedInvocation, parse
from tideline_spark.jobs import run_each
from tideline_spark.outcomes import PLAN_BEGINS, PLAN_ENDED, PLANS_BEGIN, OutcomeFile, PlanOutcome
from tideline_spark.session import is_running, local_session, stop_session
from tideline_table.action import TableService, cluster_group, compact_slice, run_clustering, run_compaction
from tideline_table.errors import Recovery, TidelineError, TransactionRolledBack, WriteConflict
from tideline_table.hudi import Action, State
from tideline_table.storage import writing
from tideline_table.table import Table

Task = TypeVar("Task")
Result = TypeVar("Result")

_CANCEL_INTERVAL_S = 0.5
_LOGGER = logging.getLogger("tideline_spark.application")


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


def run_tasks(spark: SparkSession, tasks: Sequence[Task], termination: Termination, work: Callable[[Task], Result]) -> list[Result]:
    """Run `work` for each task on an executor; return results in order of the tasks.

    Raises the first task's `TidelineError`, `SparkFailed`, or `Terminated` (the tasks are cancelled).
    """
    context = spark.sparkContext

    # In a separate thread: a signal that interrupts a call would leave its response for the next call of the same thread.
    with ThreadPoolExecutor(1, thread_name_prefix="spark-job") as pool:
        running = pool.submit(run_each, context, tasks, work)
        try:
            with termination:
                return running.result()
        except Terminated:
            while not running.done():
                context.cancelAllJobs()  # repeated: the job may not have begun at the first cancellation
                wait([running], _CANCEL_INTERVAL_S)
            raise
        except (PySparkException, Py4JError) as error:
            termination.check()  # A signal to the whole process group ends the JVM too.
            raise spark_failure(error) from error


@dataclass(slots=True)
class SparkOnDemand:
    """The Spark session of this process, started when a plan first needs it."""

    title: str
    local_cores: int
    _session: SparkSession | None = field(default=None, repr=False)

    def get(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            self._session = self._started()
        return self._session

    def is_lost(self) -> bool:
        """Return whether the session was started and its JVM has ended since."""
        return self._session is not None and not is_running()

    def stop(self) -> None:
        """Stop the session if it was started."""
        if self._session is not None:
            stop_session(self._session)

    def _started(self) -> SparkSession:
        if "PYSPARK_GATEWAY_PORT" in os.environ and not self.local_cores:
            return SparkSession.builder.appName(f"tideline {self.title}").getOrCreate()  # started by spark-submit
        return local_session(f"tideline {self.title}", self.local_cores or "*", short_lived=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one plan, or several; return an `ExitCode`."""
    _log_json_lines()
    termination = Termination()
    termination.listen()
    service = "application"
    try:
        parsed = parse(arguments)
        if isinstance(parsed, SharedInvocation):
            service = SEVERAL
            return _run_several(parsed, termination)
        service = parsed.service.value
        spark = SparkOnDemand(service, parsed.local_cores)
        try:
            outcome = _run(parsed, termination, spark)
        finally:
            spark.stop()
        if parsed.result is not None:
            with writing(repr(str(parsed.result))):
                parsed.result.write_text(json.dumps(outcome))
    except TidelineError as error:
        return _failed(service, error)
    _LOGGER.info("%s ended", service, extra=outcome)
    return ExitCode.SUCCEEDED


def _run_several(shared: SharedInvocation, termination: Termination) -> ExitCode:
    """Run the plans one after the other. An error of one plan does not concern the next one.

    Raises `Terminated`. Stops early if the JVM has ended: plans that have not begun then have no outcome.
    """
    outcomes = OutcomeFile(shared.outcomes)
    spark = SparkOnDemand("plans", shared.local_cores)
    codes: list[ExitCode] = []
    _LOGGER.info(PLANS_BEGIN, extra={"plans": len(shared.plans)})
    try:
        for number, plan in enumerate(shared.plans):
            termination.check()
            outcomes.begin(number)
            identity = {"table": plan.table, "instant": plan.instant}
            _LOGGER.info(PLAN_BEGINS, extra=identity)
            code, recovery = _run_shared(plan, termination, spark)
            codes.append(code)
            _LOGGER.info(PLAN_ENDED, extra=identity)
            outcomes.end(number, PlanOutcome(code, recovery))
            if code is ExitCode.TERMINATED:
                termination.check()
            if spark.is_lost():
                _LOGGER.error("Spark's JVM has ended", extra={"plans_not_run": len(shared.plans) - number - 1})
                return ExitCode.FAILED
    finally:
        spark.stop()
    return ExitCode.FAILED if ExitCode.FAILED in codes else ExitCode.SUCCEEDED


def _run_shared(plan: Invocation, termination: Termination, spark: SparkOnDemand) -> tuple[ExitCode, Recovery | None]:
    service = plan.service.value
    try:
        outcome = _run(plan, termination, spark)
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


def _run(arguments: Invocation, termination: Termination, spark: SparkOnDemand) -> dict[str, Any]:
    service = arguments.service
    writer_id = f"{service}-{arguments.instant}-{os.getpid()}"
    table = Table.open(arguments.table, options=arguments.options, writer_id=writer_id, peer_lock=open_peer_lock)
    record = table.state.actions.get(arguments.instant)
    is_ours = record is not None and (
        record.is_clustering if service is TableService.CLUSTERING else record.action is Action.COMPACTION
    )
    if record is not None and is_ours and record.state is State.COMPLETED:
        return {"instant": arguments.instant, "state": "completed before", "sequence": record.sequence}
    if record is not None and record.state is State.ROLLED_BACK:
        raise TransactionRolledBack(
            f"{service} {arguments.instant} was rolled back", expected="a pending plan", remedy="plan again"
        )
    attach_lock(table, os.environ.get(LOCKS_VARIABLE, ""))
    termination.check()
    # Start Spark before the plan begins, because its start takes longer than many plans.
    session = spark.get()
    termination.check()
    if service is TableService.CLUSTERING:
        committed = run_clustering(
            table, arguments.instant, run=lambda tasks: run_tasks(session, tasks, termination, cluster_group)
        )
    else:
        committed = run_compaction(
            table, arguments.instant, run=lambda tasks: run_tasks(session, tasks, termination, compact_slice)
        )
    assert committed is not None
    return {
        "instant": committed.instant,
        "state": "completed",
        "sequence": committed.sequence,
        "files_written": len(committed.stats),
        "rows": sum(s.num_writes for s in committed.stats),
        "bytes": sum(s.file_size_bytes for s in committed.stats),
    }


def _log_json_lines() -> None:
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


if __name__ == "__main__":
    sys.exit(main())
