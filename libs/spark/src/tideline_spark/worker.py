"""A resident worker: `python -m tideline_spark.worker --memory-bytes N` runs plans in this process, one at a time, without Spark.

It reads requests from stdin, a line of JSON each (`Request`), and writes a line to stdout when it is ready, and the exit code
of each application in decimal digits. While an application runs, all that this process writes to stderr is appended to the log
of that application. The worker ends when stdin ends, and after SIGTERM, which ends the running plan as it ends a Spark
application.

Code, results and log lines are those of the applications on Spark (`plan_run`).
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_spark.invocation import ExitCode
from tideline_spark.plan_run import Result, Task, Termination, log_json_lines, run_application
from tideline_table.action import ClusteredGroup, ClusteringTask, cluster_group
from tideline_table.errors import Recovery, TidelineError

MODULE = "tideline_spark.worker"
READY = "ready"
"""The first line that a worker writes."""
OUT_OF_MEMORY = 137
"""Exit code of a worker whose allocation failed: as of a container that the kernel killed for its memory."""
_LOGGER = logging.getLogger(MODULE)
_STDERR = 2


class TaskFailed(TidelineError):
    """A task failed for a reason outside the table: an error in the code of the engine or of an extension."""

    recovery = Recovery.RETRY


@dataclass(frozen=True, slots=True)
class Request:
    """An application for a worker: its arguments, its log file, and the URL of the locks."""

    arguments: tuple[str, ...]
    log: Path
    locks: str = ""

    def line(self) -> bytes:
        """Return the line that `parse_request` reads."""
        return json.dumps({"arguments": self.arguments, "log": str(self.log), "locks": self.locks}).encode() + b"\n"


def parse_request(line: str) -> Request:
    """Return the request in a line that `Request.line` made."""
    found = json.loads(line)
    return Request(tuple(map(str, found["arguments"])), Path(found["log"]), str(found["locks"]))


class TasksHere:
    """Implements `TaskRunner` in this process, one task after the other."""

    def __init__(self, title: str = "", cores: int = 1) -> None:
        """Take the arguments that every runner takes, and need none of them."""

    def start(self) -> None:
        """See `TaskRunner.start`."""

    def run(self, tasks: Sequence[Task], termination: Termination, work: Callable[[Task], Result]) -> list[Result]:
        """See `TaskRunner.run`.

        `MemoryError` is raised as it is: the plan stays as if the process had been killed for its memory.
        """
        with termination:
            try:
                return [work(task) for task in tasks]
            except (TidelineError, MemoryError):
                raise
            except Exception as error:
                _LOGGER.exception("a task failed")
                raise TaskFailed(
                    f"a task failed ({type(error).__name__}: {error})",
                    expected="finished tasks; nothing became visible",
                    remedy="see the traceback in the log",
                ) from error

    def cluster(self, tasks: Sequence[ClusteringTask], termination: Termination) -> list[ClusteredGroup]:
        """See `TaskRunner.cluster`. A group beyond the memory limit is sorted in files."""
        return self.run(tasks, termination, cluster_group)

    def is_lost(self) -> bool:
        """See `TaskRunner.is_lost`."""
        return False

    def stop(self) -> None:
        """See `TaskRunner.stop`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the applications that stdin names until it ends; return the exit code of the process."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", allow_abbrev=False)
    parser.add_argument("--memory-bytes", type=int, default=0, help="most data that this process may allocate; 0: no limit")
    limit = parser.parse_args(arguments).memory_bytes
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # Only replies may reach the launcher: what libraries print is written to the log.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(_STDERR, 1)
    faulthandler.enable()
    log_json_lines()
    termination = Termination()
    termination.listen()
    return _serve(sys.stdin, replies, termination)


def _serve(requests: TextIO, replies: TextIO, termination: Termination) -> int:
    print(READY, file=replies)
    for line in iter(requests.readline, ""):
        request = parse_request(line)
        with _logged_to(request.log):
            try:
                code = _run(request, termination)
            except MemoryError:
                # What has failed to allocate may be in any state, so the process ends.
                _LOGGER.exception("the worker ran out of memory")
                return OUT_OF_MEMORY
        print(int(code), file=replies)
        if termination.requested:
            return ExitCode.TERMINATED
        gc.collect()
        pa.default_memory_pool().release_unused()
    return ExitCode.SUCCEEDED


def _run(request: Request, termination: Termination) -> ExitCode:
    os.environ[LOCKS_VARIABLE] = request.locks
    try:
        return run_application(request.arguments, termination, TasksHere)
    except MemoryError:
        raise
    except (Exception, SystemExit):
        # The interpreter would end an application with this traceback and this exit code; a worker goes on.
        _LOGGER.exception("the application ended by an error")
        return ExitCode.FAILED


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Append stderr, also that of libraries and of a crash, to this file within the context."""
    own = os.dup(_STDERR)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        sys.stderr.flush()
        os.dup2(file, _STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(own, _STDERR)
        os.close(own)
        os.close(file)


if __name__ == "__main__":
    sys.exit(main())
