"""Applications as local processes, which end with the launcher."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tideline_launcher.application import Application, ApplicationSpec, End, EndKind, PlanKey
from tideline_launcher.command import arguments_of, shared_name_of
from tideline_launcher.failure import exit_text, kind_of_exit, recovery_in
from tideline_launcher.local_records import left_behind, unhandled, with_ends, write_record
from tideline_launcher.log_files import LOG, OUTCOMES, RECORD, TAIL_BYTES, local_file, log_end
from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_runtime import child_process
from tideline_runtime.state_folder import open_log_file
from tideline_spark.invocation import MODULE
from tideline_table.clock import Clock
from tideline_table.storage import writing

_POLL_S = 0.5
_STOP_GRACE_S = 10.0


@dataclass(slots=True)
class _Launched:
    """An application. `process` is None for one that an earlier launcher left behind."""

    process: subprocess.Popen[bytes] | None
    applications: tuple[Application, ...]
    timeout_s: float = 0.0
    started_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.applications[0].end is not None


class LocalProcesses:
    """Implements `Applications` with child processes. Each leads a process group, so that Spark's JVM and workers end with it.

    Logs and records are in the launcher's state folder. On Linux the kernel kills the processes when the launcher ends for any
    reason. So a new launcher adopts no process; it reads the records that a killed launcher left, and lists their attempts as
    lost.
    """

    name = "local"
    poll_interval_s = _POLL_S

    def __init__(self, state_folder: Path, cores: int, clock: Clock) -> None:
        self._state = state_folder
        self._cores = cores
        self._clock = clock
        self._launched: dict[str, _Launched] = {}

    def start(self, wake: Callable[[], None]) -> None:  # noqa: ARG002 - ends are found by polling
        """See `Applications.start`. Reads the records of applications that ended with a killed launcher."""
        for applications in left_behind(self._state):
            driver = applications[0].driver
            if driver not in self._launched:
                end = End(EndKind.LOST, "ended with its launcher", self._clock.now())
                self._launched[driver] = _Launched(None, with_ends(self._state, applications, end))

    def launch(self, spec: ApplicationSpec) -> None:
        if spec.name in self._launched:
            return
        log_file, outcomes = (local_file(self._state, spec.name, kind) for kind in (LOG, OUTCOMES))
        applications = tuple(
            Application(p.name, p.key, p.attempt, p.service, p.base_path, 0, 0, self._clock.now(), shared=shared_name_of(spec))
            for p in spec.plans
        )
        with writing(repr(str(log_file))):
            sink = open_log_file(log_file)
            outcomes.unlink(missing_ok=True)
        command = [sys.executable, "-m", MODULE, *arguments_of(spec, self._cores, outcomes)]
        environment = {**os.environ, LOCKS_VARIABLE: spec.locks}
        with sink as log:
            write_record(self._state, applications)
            process = subprocess.Popen(  # noqa: S603 - a module of this project, with arguments made above
                _as_child(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._launched[spec.name] = _Launched(process, applications, spec.timeout_s, self._clock.monotonic_s())

    def known(self) -> Sequence[Application]:
        for launched in self._launched.values():
            self._observe(launched)
        return [application for launched in self._launched.values() for application in launched.applications]

    def attempts(self, keys: Collection[PlanKey]) -> Sequence[Application]:
        return [application for application in self.known() if application.key in keys]

    def log_tail(self, driver: str, max_bytes: int) -> bytes:
        return log_end(self._state, driver, max_bytes)

    def collect(self, driver: str) -> None:
        """See `Applications.collect`. Deletes all files of the application except its log."""
        launched = self._launched.get(driver)
        if launched is not None and launched.has_ended:
            self._forget(driver)
            del self._launched[driver]

    def tidy(self) -> None:
        """See `Applications.tidy`. Forgets applications whose end no launcher handles, because their table is gone."""
        for driver in unhandled((launched.applications[0] for launched in self._launched.values()), self._clock.now()):
            self.collect(driver)

    def close(self, grace_s: float) -> None:
        """See `Applications.close`.

        Applications that are stopped here leave no record, so that the stop counts as no lost attempt.
        """
        running = {d: launched.process for d, launched in self._launched.items() if launched.process and not launched.has_ended}
        if running:
            # In parallel: stopping them one after the other could exceed the stop grace of the service.
            with ThreadPoolExecutor(len(running), thread_name_prefix="stop") as pool:
                list(pool.map(lambda process: _stop(process, grace_s), running.values()))
        for driver in running:
            self._forget(driver)

    def _observe(self, launched: _Launched) -> None:
        process = launched.process
        if process is None or launched.has_ended:
            return
        driver = launched.applications[0].driver
        code = process.poll()
        ran_s = self._clock.monotonic_s() - launched.started_s
        if code is not None:
            _signal(process, signal.SIGKILL)  # workers that outlived the application
            recovery = recovery_in(self.log_tail(driver, TAIL_BYTES).decode(errors="replace"))
            end = End(kind_of_exit(code), exit_text(code), self._clock.now(), recovery)
        elif ran_s > launched.timeout_s:
            _stop(process, _STOP_GRACE_S)
            end = End(EndKind.TIMED_OUT, f"stopped after {ran_s:.0f} s", self._clock.now())
        else:
            return
        launched.applications = with_ends(self._state, launched.applications, end)

    def _forget(self, driver: str) -> None:
        for kind in (RECORD, OUTCOMES):
            local_file(self._state, driver, kind).unlink(missing_ok=True)


def _as_child(command: list[str]) -> list[str]:
    """Return a command that runs `command` and, on Linux, is killed when this process ends for any reason."""
    return [sys.executable, "-I", "-S", child_process.__file__, str(os.getpid()), *command]


def _stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask the process group to end, kill it after `grace_s` seconds, and return when it has ended."""
    _signal(process, signal.SIGTERM)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass  # the kill below ends it
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
