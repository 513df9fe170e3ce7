"""Table services as Spark applications: `python -m tideline_spark.application clustering|compaction --table PATH --instant INSTANT`.

The plan on the timeline is the command. Its tasks travel as paths and options; rows never enter the JVM. A second run of a plan that is
completed succeeds without doing anything. Logs are JSON lines on stderr.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tideline_locks import open_peer_lock
from tideline_locks.table_lock import LOCKS_VARIABLE, attach_lock
from tideline_spark.errors import spark_failure
from tideline_spark.jobs import run_each
from tideline_spark.session import local_session, stop_session
from tideline_table.errors import InvalidOption, Recovery, TidelineError, TransactionRolledBack, WriteConflict
from tideline_table.service.clustering import cluster_group
from tideline_table.service.compaction import compact_slice
from tideline_table.table import Table, run_clustering, run_compaction
from tideline_table.timeline.instant import Action, State

CLUSTERING = "clustering"
COMPACTION = "compaction"
Task = TypeVar("Task")
Result = TypeVar("Result")

SUCCEEDED = 0
FAILED = 1
YIELDED = 3
"""Writers changed what the plan reads: rolled back, to be planned again."""
ROLLED_BACK = 4
"""Somebody else ended the instant; nothing is left to do for it."""
TERMINATED = 128 + signal.SIGTERM
"""Told to end; rolled back."""
_CANCEL_INTERVAL_S = 0.5
_LOGGER = logging.getLogger("tideline_spark.application")


class Terminated(TidelineError):
    """This process was told to end while it ran a plan."""

    recovery = Recovery.RETRY


class _Interrupt(BaseException):
    """SIGTERM arrived. No `Exception`, so that nobody on the way takes it for an error of their own."""


@dataclass(slots=True)
class Termination:
    """SIGTERM as an error, but only inside its context: a commit that has begun is finished."""

    requested: bool = False
    _interruptible: bool = field(default=False, repr=False)

    def listen(self) -> None:
        """Take SIGTERM over."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def check(self) -> None:
        """Raise `Terminated` when it was requested."""
        if self.requested:
            raise Terminated("told to end by SIGTERM", expected="the plan to be run to its end", remedy="run it again")

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
    """Do `work` for each task on an executor; results in order of the tasks.

    Raises the first task's `TidelineError`, `SparkFailed`, or `Terminated` (the tasks are cancelled).
    """
    context = spark.sparkContext

    # In a thread of its own: a signal in the middle of a call would leave its answer behind for the next call of the same thread.
    with ThreadPoolExecutor(1, thread_name_prefix="spark-job") as pool:
        running = pool.submit(run_each, context, tasks, work)
        try:
            with termination:
                return running.result()
        except Terminated:
            while not running.done():
                context.cancelAllJobs()  # again: the job may not have begun when it was cancelled first
                wait([running], _CANCEL_INTERVAL_S)
            raise
        except (PySparkException, Py4JError) as error:
            termination.check()  # Whoever ends a group of processes ends the JVM too.
            raise spark_failure(error) from error


@dataclass(frozen=True, slots=True)
class _Arguments:
    service: str
    table: str
    instant: str
    options: Mapping[str, str]
    local_cores: int
    result: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one plan; the exit codes are constants of this module."""
    _log_json_lines()
    termination = Termination()
    termination.listen()
    service = "application"
    try:
        parsed = _parse(arguments)
        service = parsed.service
        outcome = _run(parsed, termination)
    except TidelineError as error:
        code = exit_code(error)
        _LOGGER.error("%s ended without a commit", service, extra={"fields": {**_error_fields(error), "exit_code": code}})  # noqa: TRY400
        return code
    if parsed.result is not None:
        parsed.result.write_text(json.dumps(outcome))
    _LOGGER.info("%s ended", service, extra={"fields": outcome})
    return SUCCEEDED


def exit_code(error: TidelineError) -> int:
    """What the process ends with for an error."""
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, WriteConflict):
        return YIELDED
    return ROLLED_BACK if isinstance(error, TransactionRolledBack) else FAILED


def _run(arguments: _Arguments, termination: Termination) -> dict[str, Any]:
    service = arguments.service
    writer_id = f"{service}-{arguments.instant}-{os.getpid()}"
    table = Table.open(arguments.table, options=arguments.options, writer_id=writer_id, peer_lock=open_peer_lock)
    record = table.state.actions.get(arguments.instant)
    is_ours = record is not None and (record.is_clustering if service == CLUSTERING else record.action is Action.COMPACTION)
    if record is not None and is_ours and record.state is State.COMPLETED:
        return {"instant": arguments.instant, "state": "completed before", "sequence": record.sequence}
    if record is not None and record.state is State.ROLLED_BACK:
        raise TransactionRolledBack(
            f"{service} {arguments.instant} was rolled back", expected="a pending plan", remedy="plan again"
        )
    attach_lock(table, os.environ.get(LOCKS_VARIABLE, ""))
    termination.check()
    # Before the plan is begun: starting Spark takes longer than many plans.
    spark = _session(service, arguments.local_cores)
    try:
        termination.check()
        if service == CLUSTERING:
            committed = run_clustering(
                table, arguments.instant, run=lambda tasks: run_tasks(spark, tasks, termination, cluster_group)
            )
        else:
            committed = run_compaction(
                table, arguments.instant, run=lambda tasks: run_tasks(spark, tasks, termination, compact_slice)
            )
    finally:
        stop_session(spark)
    assert committed is not None
    return {
        "instant": committed.instant,
        "state": "completed",
        "sequence": committed.sequence,
        "files_written": len(committed.stats),
        "rows": sum(s.num_writes for s in committed.stats),
        "bytes": sum(s.file_size_bytes for s in committed.stats),
    }


def _session(service: str, local_cores: int) -> SparkSession:
    if "PYSPARK_GATEWAY_PORT" in os.environ and not local_cores:
        return SparkSession.builder.appName(f"tideline {service}").getOrCreate()  # started by spark-submit
    return local_session(f"tideline {service}", local_cores or "*", short_lived=True)


def _parse(arguments: Sequence[str] | None) -> _Arguments:
    parser = argparse.ArgumentParser(prog="python -m tideline_spark.application", description=__doc__)
    services = parser.add_subparsers(dest="service", required=True)
    for name in (CLUSTERING, COMPACTION):
        service = services.add_parser(name, help=f"run a {name} plan")
        service.add_argument("--table", required=True, help="base path")
        service.add_argument("--instant", required=True, help="of the plan")
        service.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="options of the engine")
        service.add_argument(
            "--local-cores", type=int, default=0, help="run in this process; 0: all cores, or the cluster of spark-submit"
        )
        service.add_argument("--result", type=Path, help="file for the result as JSON")
    parsed = parser.parse_args(arguments)
    options = {}
    for text in parsed.options:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidOption(f"option {text!r}", expected="KEY=VALUE")
        options[key] = value
    return _Arguments(parsed.service, parsed.table, parsed.instant, options, parsed.local_cores, parsed.result)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _log_json_lines() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
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
