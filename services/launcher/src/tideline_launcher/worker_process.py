"""One resident worker as a process: its start, the application that it runs, its memory, its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tideline_launcher.application import EndKind
from tideline_launcher.failure import exit_text, kind_of_exit
from tideline_runtime import child_process
from tideline_runtime.state_folder import open_log_file
from tideline_spark.invocation import ExitCode
from tideline_spark.worker import MODULE, OUT_OF_MEMORY, READY, Request
from tideline_table.clock import Clock

START_LIMIT_S = 120.0
"""A worker that is not ready after this time is killed."""
_POLL_S = 0.1
"""Interval at which the memory and the time of an application are compared with their limits."""
_STOP_GRACE_S = 10.0
_DATA_SLACK_BYTES = 1024 * 1024 * 1024
"""Memory that a worker may reserve beyond its limit, without using it: stacks of threads and free parts of heaps."""
_ALLOCATOR = {"MIMALLOC_ARENA_RESERVE": "65536"}
"""KiB that Arrow's allocator reserves at once. Its default of 1 GiB would count as memory of the worker before it holds a row."""
_REPLY_BYTES = 4096


class WorkerNotStarted(Exception):
    """A worker ended before it was ready, or was not ready in time. The message says which."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How an application in a worker ended: `kind` and `reason` as of an `End`."""

    kind: EndKind
    reason: str
    is_dead: bool = False
    """Whether the worker died with it."""


def start_worker(log: Path, memory_bytes: int, clock: Clock, is_stopping: Callable[[], bool]) -> WorkerProcess:
    """Start a worker and wait until it is ready. The worker writes its output outside of applications into the file `log`.

    The worker is killed when the calling thread ends. Raises `WorkerNotStarted` and `OSError`.
    """
    command = [sys.executable, "-m", MODULE, f"--memory-bytes={memory_bytes + _DATA_SLACK_BYTES}"]
    as_child = [sys.executable, "-I", "-S", child_process.__file__, str(os.getpid()), *command]
    log.unlink(missing_ok=True)
    with open_log_file(log) as errors:
        process = subprocess.Popen(  # noqa: S603 - a module of this project, with arguments made above
            as_child,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            env={**os.environ, **_ALLOCATOR},
            start_new_session=True,
        )
    worker = WorkerProcess(process, memory_bytes, clock)
    worker.wait_until_ready(is_stopping)
    return worker


class WorkerProcess:
    """A worker that runs one application at a time, in a process group of its own. Used by one thread, except `pid`."""

    def __init__(self, process: subprocess.Popen[bytes], memory_bytes: int, clock: Clock) -> None:
        self._process = process
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._replies = b""
        self.plans = 0
        """Number of plans that the worker has run."""

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    def wait_until_ready(self, is_stopping: Callable[[], bool]) -> None:
        """Wait for the first line of the worker. Raises `WorkerNotStarted` after it has ended the worker."""
        until_s = self._clock.monotonic_s() + START_LIMIT_S
        while True:
            reply = self._reply()
            if reply == READY:
                return
            if reply is not None:
                code = self.kill() if reply else self._process.wait()
                raise WorkerNotStarted(f"the worker ended before it was ready ({exit_text(code)})")
            if is_stopping() or self._clock.monotonic_s() > until_s:
                self.kill()
                raise WorkerNotStarted(f"the worker was not ready after {START_LIMIT_S:.0f} s")

    def run(self, request: Request, timeout_s: float, is_stopping: Callable[[], bool]) -> Ran | None:
        """Run an application and return how it ended.

        None if `is_stopping` returned true before: then the caller must stop the worker.

        After `timeout_s` seconds the worker is stopped, and the application has timed out.
        """
        began_s = self._clock.monotonic_s()
        try:
            self.send(request)
        except OSError:
            return self._died()
        while True:
            reply = self._reply()
            if reply is not None:
                if not reply.isdecimal():
                    return self._died()
                code = int(reply)
                if code == ExitCode.TERMINATED:
                    self.kill()  # after this reply, the worker ends anyway
                return Ran(kind_of_exit(code), exit_text(code), code == ExitCode.TERMINATED)
            ran_s = self._clock.monotonic_s() - began_s
            if is_stopping():
                return None
            if ran_s > timeout_s:
                self.stop(_STOP_GRACE_S)
                return Ran(EndKind.TIMED_OUT, f"stopped after {ran_s:.0f} s", is_dead=True)
            taken = memory_of(self.pid)
            if taken > self._memory_bytes:
                self.kill()
                text = f"the worker had {taken} bytes of memory, and {self._memory_bytes} are allowed (workers.memory_bytes)"
                return Ran(EndKind.OUT_OF_MEMORY, text, is_dead=True)

    def send(self, request: Request) -> None:
        """Hand an application to the worker. Raises `OSError` if the worker has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(request.line())

    def stop(self, grace_s: float) -> None:
        """Ask the worker to end, which rolls back its plan, kill it after `grace_s` seconds, and return when it has ended."""
        self._signal(signal.SIGTERM)
        self._end_within(grace_s)

    def retire(self) -> None:
        """Ask a worker without a plan to end, and return when it has ended."""
        self._end_within(_STOP_GRACE_S)

    def _end_within(self, grace_s: float) -> None:
        self._close(self._process.stdin)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        finally:
            self.kill()

    def kill(self) -> int:
        """Kill the worker and all that it started; return its exit code when it has ended. Safe to repeat."""
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            self._close(pipe)
        return code

    def _died(self) -> Ran:
        code = self._process.wait()
        self.kill()
        if code == OUT_OF_MEMORY:
            text = f"an allocation of the worker failed (exit code {code}; workers.memory_bytes is {self._memory_bytes})"
            return Ran(EndKind.OUT_OF_MEMORY, text, is_dead=True)
        kind = EndKind.FAILED if code == 0 else kind_of_exit(code)
        return Ran(kind, exit_text(code) or "the worker ended while the plan ran", is_dead=True)

    def _reply(self) -> str | None:
        """Return the next line of the worker, empty at the end of its output, None if none arrives in time."""
        line, newline, rest = self._replies.partition(b"\n")
        if newline:
            self._replies = rest
            return line.decode("ascii", "replace")
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], _POLL_S)
        if not ready:
            return None
        found = os.read(pipe.fileno(), _REPLY_BYTES)
        if not found:
            return ""
        self._replies += found
        return self._reply()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    @staticmethod
    def _close(pipe: object) -> None:
        close = getattr(pipe, "close", None)
        if close is not None:
            close()


def memory_of(pid: int) -> int:
    """Return the bytes of resident memory of a process, without pages of files.

    0 on systems other than Linux, which do not show it.
    """
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
