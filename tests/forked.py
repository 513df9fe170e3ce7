"""Python programs of tests as processes of their own that need not import what they use: a process that has done so is forked.

A service takes a second of processor time to import its modules. Everything else is as when the program is started: its arguments,
environment, standard streams, signals, exit code, and what an interpreter does at its end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_REQUEST_BYTES = 1 << 20


class Forked:
    """A program that runs, with those attributes of a `Popen` that tests use; all three streams are pipes."""

    def __init__(self, parent: Parent, argv: Sequence[str], environment: Mapping[str, str], *, text: bool = True) -> None:
        (in_, own_in), (own_out, out), (own_err, err), (own_status, status) = (os.pipe() for _ in range(4))
        parent.fork({"argv": [*argv], "environment": dict(environment), "folder": os.getcwd()}, (in_, out, err, status))
        for fd in (in_, out, err, status):
            os.close(fd)
        mode = "" if text else "b"
        self.stdin: IO[Any] = open(own_in, f"w{mode}")  # noqa: SIM115 - as Popen: its user closes them
        self.stdout: IO[Any] = open(own_out, f"r{mode}")  # noqa: SIM115
        self.stderr: IO[Any] = open(own_err, f"r{mode}")  # noqa: SIM115
        self._status = own_status
        self.pid = int(self._told(None) or 0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if the program has ended."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises `TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close this end of its streams."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and (told := self._told(timeout)) is not None:
            self.returncode = int(told)
            os.close(self._status)
        return self.returncode

    def _told(self, timeout: float | None) -> str | None:
        """Return the next line about the program: first its process id, then its exit code."""
        ready, _, _ = select.select([self._status], [], [], timeout)
        if not ready:
            return None
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._status, 1)
            assert byte, "the process that forks programs ended"
            line += byte
        return line.decode()


class Parent:
    """The process that is forked: an interpreter with these options that has imported these modules."""

    def __init__(self, modules: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, *options, __file__, str(other.fileno()), *modules]
            self._process = subprocess.Popen(
                command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, **environment}
            )
        atexit.register(self.close)

    def fork(self, program: Mapping[str, object], streams: Sequence[int]) -> None:
        """Start a program on these streams; the last one hears of it."""
        socket.send_fds(self._socket, [json.dumps(program).encode()], list(streams))

    def close(self) -> None:
        """End the process; programs that run go on."""
        self._socket.close()
        self._process.wait()


@functools.cache
def parent_of(modules: tuple[str, ...], options: tuple[str, ...] = (), environment: tuple[tuple[str, str], ...] = ()) -> Parent:
    """Return the parent of programs that need these modules: one for all tests of this process."""
    return Parent(modules, options, dict(environment))


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each program that is asked for. Returns twice: in such a process with the program, and None at the end."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 4)
        with contextlib.suppress(ChildProcessError):  # none is left
            while os.waitpid(-1, os.WNOHANG)[0]:  # watchers whose programs have ended
                pass
        if not request:
            return None
        if os.fork():
            for fd in streams:
                os.close(fd)
            continue
        connection.close()
        *standard, status = streams
        if pid := os.fork():
            _watch(pid, standard, status)
        os.close(status)
        for number, fd in enumerate(standard):
            os.dup2(fd, number)
            os.close(fd)
        program: dict[str, Any] = json.loads(request)
        return program


def _watch(pid: int, standard: Sequence[int], status: int) -> None:
    """Tell the process id of a program and how it ended; never returns."""
    for fd in standard:
        os.close(fd)
    os.write(status, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def main() -> None:
    """Import the modules, then be what is asked for."""
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    if program is None:
        return
    os.environ.clear()
    os.environ.update(program["environment"])
    time.tzset()
    os.chdir(program["folder"])
    sys.argv = program["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
