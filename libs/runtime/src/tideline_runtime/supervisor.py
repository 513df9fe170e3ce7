"""Run services as child processes: start them, restart crashed ones, and stop all of them in reverse order."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tideline_runtime import child_process
from tideline_runtime.lifecycle import EXIT_FAILED, EXIT_SETTINGS, EXIT_STOPPED
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_runtime.signals import on_termination
from tideline_runtime.state_folder import open_log_file
from tideline_table.clock import Clock, SystemClock
from tideline_table.storage import writing

_log = get_logger(__name__)

MAX_LOG_BYTES = 16 << 20
"""A larger log file is renamed to `<name>.log.1` when its child starts the next time."""


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep running. `environment` is added to the supervisor's environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Decides when a child that ended by itself is restarted.

    Exit code 0 means done and 2 wrong settings: such a child is not restarted, and wrong settings end the supervisor. Any other end
    is a crash: the child is restarted after a pause that doubles from `backoff_initial_s` to `backoff_max_s`, and more than
    `max_crashes` in a row end the supervisor. A run of at least `stable_after_s` resets the count.
    """

    backoff_initial_s: float = 0.5
    backoff_max_s: float = 30.0
    max_crashes: int = 5
    stable_after_s: float = 60.0


@dataclass(slots=True)
class _Kept:
    child: Child
    running: subprocess.Popen[bytes] | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    started_at_s: float = 0.0
    starts: int = 0
    crashes_in_row: int = 0
    restart_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """The event that process `pid` of the child `name` ended. In the queue, None is a request to stop."""

    name: str
    pid: int


class Supervisor:
    """Keeps `children` running from `run` until a termination signal, `stop`, or a child that cannot be kept running.

    Children have no terminal: each leads a separate session, has no input, and writes both outputs to
    `<state_folder>/logs/<name>.log`. On Linux the kernel kills a child if the supervisor dies without stopping it.
    """

    def __init__(
        self,
        children: Sequence[Child],
        state_folder: Path,
        *,
        restart: RestartPolicy | None = None,
        grace_s: float = 30.0,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        names = [child.name for child in children]
        assert len(set(names)) == len(names), "children have different names"
        self._kept = {child.name: _Kept(child) for child in children}
        self._logs = state_folder / "logs"
        self._policy = restart or RestartPolicy()
        self._backoff = Backoff(self._policy.backoff_initial_s, self._policy.backoff_max_s)
        self._grace_s = grace_s
        self._clock = clock or SystemClock()
        self._draw = draw
        self._events: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()

    def run(self) -> int:
        """Start the children in order, keep them running, stop them in reverse order; return the exit code for the process.

        0: a request to stop, or every child is done; 1: a child crashed too often; 2: a child refused its settings. Must be
        called from the main thread, where signals arrive: the kernel kills the children when the thread that started them ends.
        """
        with on_termination(self._terminated):
            try:
                for kept in self._kept.values():
                    self._start(kept)
                return self._keep()
            finally:
                self._stop_all()

    def stop(self) -> None:
        """Ask `run` to stop the children and return 0. May be called from any thread."""
        self._events.put(None)

    def _terminated(self, number: signal.Signals) -> None:
        _log.info("stopping", signal=number.name)
        self.stop()

    def _keep(self) -> int:
        while any(kept.running or kept.restart_at_s is not None for kept in self._kept.values()):
            try:
                event = self._events.get(timeout=self._next_restart_in_s())
            except queue.Empty:
                self._restart_due()
                continue
            if event is None:
                return EXIT_STOPPED
            kept = self._kept[event.name]
            if kept.running is None or kept.running.pid != event.pid:
                continue
            code = self._judged(kept, _reaped(kept.running))
            if code is not None:
                return code
            self._restart_due()
        return EXIT_STOPPED

    def _judged(self, kept: _Kept, exit_code: int) -> int | None:
        """Handle the end of a child: schedule a restart after a crash, or return an exit code that ends the supervisor."""
        kept.running = None
        log = _log.bind(child=kept.child.name, exit_code=exit_code)
        if exit_code == EXIT_STOPPED:
            log.info("child finished")
            return None
        if exit_code == EXIT_SETTINGS:
            log.error("child refused its settings", log_file=str(self._log_file(kept.child)))
            return EXIT_SETTINGS
        now_s = self._clock.monotonic_s()
        if now_s - kept.started_at_s >= self._policy.stable_after_s:
            kept.crashes_in_row = 0
        kept.crashes_in_row += 1
        if kept.crashes_in_row > self._policy.max_crashes:
            log.error("child crashed too often, giving up", crashes=kept.crashes_in_row, log_file=str(self._log_file(kept.child)))
            return EXIT_FAILED
        pause_s = self._backoff.pause_s(kept.crashes_in_row, self._draw())
        kept.restart_at_s = now_s + pause_s
        log.warning("child crashed, restarting it", crashes=kept.crashes_in_row, pause_s=round(pause_s, 3))
        return None

    def _next_restart_in_s(self) -> float | None:
        due_s = [kept.restart_at_s for kept in self._kept.values() if kept.restart_at_s is not None]
        return max(0.0, min(due_s) - self._clock.monotonic_s()) if due_s else None

    def _restart_due(self) -> None:
        now_s = self._clock.monotonic_s()
        for kept in self._kept.values():
            if kept.restart_at_s is not None and kept.restart_at_s <= now_s:
                self._start(kept)

    def _start(self, kept: _Kept) -> None:
        child = kept.child
        path = self._log_file(child)
        with writing(repr(str(path))):
            if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
                os.replace(path, path.with_name(f"{path.name}.1"))
            log_file = open_log_file(path)
        # -I keeps this package's folder off the module path, where its `logging` and `http` would shadow Python's.
        tied = (sys.executable, "-I", "-S", child_process.__file__, str(os.getpid()), *child.command)
        with log_file:
            kept.running = subprocess.Popen(  # noqa: S603 - the commands are those of our own services
                tied,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **child.environment},
                start_new_session=True,
            )
        kept.started_at_s = self._clock.monotonic_s()
        kept.restart_at_s = None
        kept.starts += 1
        kept.ended = threading.Event()
        waiting = (child.name, kept.running.pid, kept.ended)
        threading.Thread(target=self._await_end, args=waiting, name=f"wait-{child.name}", daemon=True).start()
        _log.info("child started", child=child.name, child_pid=kept.running.pid, starts=kept.starts)

    def _await_end(self, name: str, pid: int, ended: threading.Event) -> None:
        # The child is not reaped here: until then its pid is not reused, so that a signal cannot hit another process.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended.set()
        self._events.put(_Ended(name, pid))

    def _stop_all(self) -> None:
        for kept in reversed(self._kept.values()):
            kept.restart_at_s = None
            if kept.running is None:
                continue
            os.kill(kept.running.pid, signal.SIGTERM)
            if not kept.ended.wait(self._grace_s):
                _log.warning("child did not stop, killing it", child=kept.child.name, grace_s=self._grace_s)
                os.kill(kept.running.pid, signal.SIGKILL)
                kept.ended.wait()
            exit_code = _reaped(kept.running)
            kept.running = None
            _log.info("child stopped", child=kept.child.name, exit_code=exit_code)

    def _log_file(self, child: Child) -> Path:
        return self._logs / f"{child.name}.log"


def _reaped(ended: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a child that ended, and kill the processes that it left behind in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(ended.pid, signal.SIGKILL)
    return ended.wait()
