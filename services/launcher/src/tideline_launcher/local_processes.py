"""Applications as local processes, which end with the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tideline_launcher.application import Application, ApplicationSpec, End, EndKind, PlanKey
from tideline_launcher.failure import exit_text, kind_of_exit, recovery_in
from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_runtime import tether
from tideline_runtime.state_folder import open_log_file
from tideline_spark.invocation import MODULE, Invocation
from tideline_table.clock import Clock
from tideline_table.storage import writing

_POLL_S = 0.5
_STOP_GRACE_S = 10.0
_TAIL_BYTES = 64 * 1024


@dataclass(slots=True)
class _Launched:
    spec: ApplicationSpec
    process: subprocess.Popen[bytes]
    application: Application
    started_s: float


class LocalProcesses:
    """Implements `Applications` with child processes, each in a process group of its own, so that Spark's JVM and workers end with it.

    Logs are in the launcher's state folder. On Linux the processes are killed when the launcher ends for any reason, so a new
    launcher has none to adopt.
    """

    name = "local"
    poll_interval_s = _POLL_S

    def __init__(self, state_folder: Path, cores: int, clock: Clock) -> None:
        self._logs = state_folder / "applications"
        self._cores = cores
        self._clock = clock
        self._launched: dict[str, _Launched] = {}

    def start(self, wake: Callable[[], None]) -> None:
        """See `Applications.start`. Ends are found by polling."""

    def launch(self, spec: ApplicationSpec) -> None:
        """See `Applications.launch`."""
        if spec.name in self._launched:
            return
        log_file = local_log_file(self._logs.parent, spec.name)
        with writing(repr(str(log_file))):
            sink = open_log_file(log_file)
        invocation = Invocation(spec.service, spec.base_path, spec.key.instant, spec.options, self._cores)
        command = [sys.executable, "-m", MODULE, *invocation.arguments()]
        environment = {**os.environ, LOCKS_VARIABLE: spec.locks}
        with sink as log:
            process = subprocess.Popen(  # noqa: S603 - a module of this project, with arguments made above
                _tethered(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        application = Application(spec.name, spec.key, spec.attempt, spec.service, spec.base_path, 0, 0, self._clock.now())
        self._launched[spec.name] = _Launched(spec, process, application, self._clock.monotonic_s())

    def known(self) -> Sequence[Application]:
        """See `Applications.known`."""
        for launched in self._launched.values():
            self._observe(launched)
        return [launched.application for launched in self._launched.values()]

    def attempts(self, key: PlanKey) -> Sequence[Application]:
        """See `Applications.attempts`."""
        return [application for application in self.known() if application.key == key]

    def log_tail(self, name: str, max_bytes: int) -> bytes:
        """See `Applications.log_tail`."""
        try:
            with local_log_file(self._logs.parent, name).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - max_bytes))
                return file.read(max_bytes)
        except FileNotFoundError:
            return b""

    def collect(self, name: str) -> None:
        """See `Applications.collect`. Nothing but the log stays."""
        launched = self._launched.get(name)
        if launched is not None and launched.application.end is not None:
            del self._launched[name]

    def tidy(self) -> None:
        """See `Applications.tidy`."""

    def close(self, grace_s: float) -> None:
        """See `Applications.close`."""
        running = [launched.process for launched in self._launched.values() if launched.application.end is None]
        if running:
            # In parallel: stopping them one after the other could exceed the stop grace of the service.
            with ThreadPoolExecutor(len(running), thread_name_prefix="stop") as pool:
                list(pool.map(lambda process: _stop(process, grace_s), running))

    def _observe(self, launched: _Launched) -> None:
        if launched.application.end is not None:
            return
        code = launched.process.poll()
        ran_s = self._clock.monotonic_s() - launched.started_s
        if code is not None:
            _signal(launched.process, signal.SIGKILL)  # workers that outlived the application
            recovery = recovery_in(self.log_tail(launched.spec.name, _TAIL_BYTES).decode(errors="replace"))
            end = End(kind_of_exit(code), exit_text(code), self._clock.now(), recovery)
        elif ran_s > launched.spec.timeout_s:
            _stop(launched.process, _STOP_GRACE_S)
            end = End(EndKind.TIMED_OUT, f"stopped after {ran_s:.0f} s", self._clock.now())
        else:
            return
        launched.application = replace(launched.application, end=end)


def local_log_file(state_folder: Path, name: str) -> Path:
    """Return the path of the log of a local application."""
    return state_folder / "applications" / f"{name}.log"


def _tethered(command: list[str]) -> list[str]:
    """Return `command` wrapped so that it is killed when this process ends, for whatever reason."""
    return [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command]


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
