"""Processes that outlive the command that started them, each with a record by which it is found and stopped.

A record holds the process id, the start time and the boot of the machine, so that a process id that the kernel gave to another
process is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STOP_TIMEOUT_S = 15.0
KILL_TIMEOUT_S = 10.0
ORDERLY = ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S))
SHOWN_LINES = 5


@dataclass(frozen=True)
class Record:
    """One started process. `started_ticks` counts the kernel's clock ticks from the boot `boot` on."""

    pid: int
    started_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Record | None:
        """Describe a running process; None if there is none with this id. A process that ended and was not reaped does not run."""
        try:
            state, started_ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text())
        except OSError:
            return None
        return None if state in "ZX" else cls(pid, started_ticks, BOOT_ID.read_text().strip())

    @classmethod
    def parse(cls, text: str) -> Record | None:
        """Read a record's line; None if it is not one."""
        try:
            pid, started_ticks, boot = text.split()
            return cls(int(pid), int(started_ticks), boot)
        except ValueError:
            return None

    def line(self) -> str:
        """Return the line that `parse` reads."""
        return f"{self.pid} {self.started_ticks} {self.boot}\n"

    def is_running(self) -> bool:
        """Return whether this very process runs."""
        return Record.of(self.pid) == self


def parse_stat(text: str) -> tuple[str, int]:
    """Return state and start time of a line of `/proc/PID/stat`. The program's name in it may contain spaces and brackets."""
    fields = text[text.rindex(")") + 1 :].split()
    return fields[0], int(fields[19])


class Processes:
    """The processes of one cluster: records in `run`, output in `logs`, both created when needed."""

    def __init__(self, run: Path, logs: Path) -> None:
        self._run = run
        self._logs = logs

    def names(self) -> list[str]:
        """Names of all that was started and not stopped, whether it still runs or not."""
        return sorted(path.stem for path in self._run.glob("*.pid"))

    def record(self, name: str) -> Record | None:
        """Return the record of a running process, None if it does not run."""
        try:
            record = Record.parse(self._path(name).read_text())
        except FileNotFoundError:
            return None
        return record if record is not None and record.is_running() else None

    def is_running(self, name: str) -> bool:
        return self.record(name) is not None

    def log(self, name: str) -> Path:
        """Where the process's output is appended."""
        return self._logs / f"{name}.log"

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> bool:
        """Start a process in a session of its own; return False if it runs already. Raises ClusterError if it cannot be started."""
        if self.is_running(name):
            return False
        self._run.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        texts = [str(part) for part in command]
        program = shutil.which(texts[0], path=environment.get("PATH"))
        if program is None:
            raise ClusterError(f"found no program {texts[0]} to start {name}; expected it on the PATH")
        appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            program,
            texts,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), appended, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        record = Record.of(pid)
        if record is None:
            raise ClusterError(f"{name} ended at once: {self.last_lines(name)}")
        self._path(name).write_text(record.line())
        return True

    def require(self, name: str) -> None:
        """Raise ClusterError with the last lines of its log if the process does not run."""
        if not self.is_running(name):
            raise ClusterError(f"{name} has ended; expected it to run: {self.last_lines(name)} ({self.log(name)})")

    def stop(self, name: str) -> None:
        """Stop a process and remove its record: SIGTERM, after `STOP_TIMEOUT_S` seconds SIGKILL. Does nothing if it does not
        run."""
        record = self.record(name)
        if record is not None:
            _stop(record, *ORDERLY)
        self._path(name).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """End a process by SIGKILL, as a fault. Raises ClusterError if it does not run."""
        record = self.record(name)
        if record is None:
            raise ClusterError(f"{name} does not run; expected it to run, so that it can be killed")
        _stop(record, (signal.SIGKILL, KILL_TIMEOUT_S))
        self._path(name).unlink(missing_ok=True)

    def last_lines(self, name: str) -> str:
        """Return the end of the process's output in one line."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "no output"
        return " | ".join(lines[-SHOWN_LINES:]) or "no output"

    def _path(self, name: str) -> Path:
        return self._run / f"{name}.pid"


def _stop(record: Record, *signals: tuple[signal.Signals, float]) -> None:
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    try:
        # The handle stays with one process: checked after it was opened, the record and the handle mean the same process.
        if not record.is_running():
            return
        for number, timeout_s in signals:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            ended, _, _ = select.select([handle], [], [], timeout_s)
            if ended:
                break
        else:
            raise ClusterError(f"process {record.pid} does not end after SIGKILL")
    finally:
        os.close(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(record.pid, 0)
