"""Where applications run: the port, and local processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_service import tether


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """One application: only paths, options and the place of locks travel."""

    name: str
    service: str
    base_path: str
    instant: str
    options: Mapping[str, str]
    locks: str = ""
    """URL of table locks and intents. It may hold a password, so it goes by the environment, where no other user sees it."""


class Application(Protocol):
    """A launched application."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def stop(self, grace_s: float) -> None:
        """Ask it to end, then make it end; returns when it is dead."""
        ...


class Runner(Protocol):
    """Starts applications."""

    @property
    def name(self) -> str:
        """As job events name it."""
        ...

    def launch(self, spec: ApplicationSpec) -> Application:
        """Start one."""
        ...


class LocalProcess:
    """An application as a child process, leader of its own group: Spark's JVM and workers end with it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def exit_code(self) -> int | None:
        """See `Application.exit_code`."""
        code = self._process.poll()
        if code is not None:
            self._signal(signal.SIGKILL)
        return code

    def stop(self, grace_s: float) -> None:
        """See `Application.stop`."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass  # then by force, below
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def _tethered(command: list[str]) -> list[str]:
    """`command` so that it dies with this process, however that ends."""
    return [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command]


class LocalRunner:
    """Spark applications as local processes, logs beside the launcher's state."""

    name = "local"

    def __init__(self, state_folder: Path, cores: int) -> None:
        self._logs = state_folder / "applications"
        self._cores = cores

    def launch(self, spec: ApplicationSpec) -> Application:
        """See `Runner.launch`."""
        self._logs.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "tideline_spark.application",
            spec.service,
            "--table",
            spec.base_path,
            "--instant",
            spec.instant,
        ]
        command += ["--local-cores", str(self._cores)]
        for key, value in spec.options.items():
            command += ["--options", f"{key}={value}"]
        environment = {**os.environ, LOCKS_VARIABLE: spec.locks}
        with (self._logs / f"{spec.name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module with arguments of our own
                _tethered(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        return LocalProcess(process)
