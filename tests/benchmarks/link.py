"""The parent's side of an engine: a process of its own, asked with JSON lines, its processor time read from the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
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
        before = self._cpu_s()
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
        return Answer(reply["value"], float(reply["seconds"]), self._cpu_s() - before)

    def _kill(self) -> None:
        assert self._process is not None
        # The process leads a group of its own, which holds it, its JVM and its workers, and nobody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _cpu_s(self) -> float:
        """Of all processes of the engine's session, and of those that they have waited for."""
        assert self._process is not None
        ticks = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._process.pid:
                ticks += sum(map(int, fields[11:15]))
        return ticks / _TICKS_PER_S
