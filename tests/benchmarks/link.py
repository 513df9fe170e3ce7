"""The parent's side of an engine: a process of its own, asked with JSON lines, its processor time read from the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ENGINES = "tests.benchmarks.engines"
_REPOSITORY = Path(__file__).resolve().parents[2]
_FOREIGN = ("SPARK", "PYSPARK", "PYTHON", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "HADOOP", "VIRTUAL_ENV")
_STOP_TIMEOUT_S = 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class EngineFailed(Exception):
    """What the engine said when it could not do a work."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of a call, the seconds that it took on the clock, and the processor seconds of all of the engine's processes."""

    value: Any
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Ticks:
    """Processor time of a process in ticks of the kernel: its own, and that of ended children for which it waited."""

    parent: int
    own: int
    waited: int


class EngineLink:
    """One running engine; leaving the context ends all of its processes."""

    def __init__(
        self,
        name: str,
        module: str,
        python: Path,
        folder: Path,
        arguments: dict[str, object],
        variables: dict[str, str],
        *,
        foreign: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self._command = [
            str(python),
            "-m",
            f"{ENGINES}.{module}",
            f"--folder={folder}",
            *(f"--{k}={v}" for k, v in arguments.items()),
        ]
        # Settings of this side's Spark and Python must not reach a peer.
        kept = {k: v for k, v in os.environ.items() if not (foreign and k.startswith(_FOREIGN))}
        path = os.pathsep.join(filter(None, [str(_REPOSITORY), kept.get("PYTHONPATH")]))
        self._variables = kept | variables | {"PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: IO[str] | None = None
        self._replies: IO[str] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        far_in, near_out = os.pipe()
        near_in, far_out = os.pipe()
        with (self.folder / "engine.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, f"--requests={far_in}", f"--replies={far_out}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._variables,
                pass_fds=(far_in, far_out),
                start_new_session=True,
            )
        os.close(far_in)
        os.close(far_out)
        self._requests, self._replies = os.fdopen(near_out, "w"), os.fdopen(near_in)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        assert self._requests is not None
        assert self._replies is not None
        with contextlib.suppress(OSError):
            self._requests.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._replies.close()

    def ask(self, command: str, *, timeout_s: float, **arguments: Any) -> Answer:
        """The answer to one command. Raises `EngineFailed`; a call beyond `timeout_s` also ends the engine."""
        assert self._process is not None
        assert self._requests is not None
        assert self._replies is not None
        before = self._ticks()
        overdue = threading.Timer(timeout_s, self._kill)
        overdue.start()
        try:
            self._requests.write(json.dumps({"command": command, **arguments}) + "\n")
            self._requests.flush()
            line = self._replies.readline()
        except OSError as error:
            raise EngineFailed(f"{self.name} is gone ({error}); its log: {self.folder / 'engine.log'}") from error
        finally:
            overdue.cancel()
        if not line:
            raise EngineFailed(
                f"{self.name} ended in {command}, or took more than {timeout_s:g} s; its log: {self.folder / 'engine.log'}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise EngineFailed(str(reply["error"]))
        return Answer(reply["value"], float(reply["seconds"]), spent_ticks(before, self._ticks()) / _TICKS_PER_S)

    def _kill(self) -> None:
        assert self._process is not None
        # The process leads a group of its own, which holds it, its JVM and its workers, and nobody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ticks(self) -> dict[int, Ticks]:
        """Of all processes of the engine's session."""
        assert self._process is not None
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._process.pid:
                user, system, user_of_ended, system_of_ended = map(int, fields[11:15])
                found[int(entry.name)] = Ticks(int(fields[1]), user + system, user_of_ended + system_of_ended)
        return found


def spent_ticks(before: Mapping[int, Ticks], after: Mapping[int, Ticks]) -> int:
    """Return what processes spent between two readings, by process id.

    What a process spent until it ended is lost, unless its parent waited for it: Spark ends idle Python workers, and nothing
    waits for them.
    """
    none = Ticks(0, 0, 0)
    own = sum(ticks.own - before.get(pid, none).own for pid, ticks in after.items())
    waited = {pid: ticks.waited - before.get(pid, none).waited for pid, ticks in after.items()}
    for pid in before.keys() - after.keys():
        # What it had spent before the first reading is no part of what its parent has gained by waiting for it.
        parent, earlier = before[pid].parent, before[pid].own + before[pid].waited
        if waited.get(parent, 0) >= earlier:
            waited[parent] -= earlier
    return own + sum(waited.values())
