"""A real redis-server for tests: found on the PATH or installed by apt, on a free local port, without persistence."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.real.debian import found_or_installed
from tests.real.ports import free_ports

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 300.0
START_ATTEMPTS = 3


class RedisServer:
    """One server on one port; it may be stopped, started again (empty), frozen and thawed. `host` is an address of this machine."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self.host = host
        self._binary = redis_binary()
        self._folder = tempfile.TemporaryDirectory(prefix="tideline-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        for _ in range(START_ATTEMPTS):
            (self.port,) = free_ports(1, host)
            # Another process may take the port before the server does.
            with contextlib.suppress(RuntimeError):
                self.start()
                return
        self._folder.cleanup()
        raise RuntimeError(f"redis-server did not start on {START_ATTEMPTS} free ports")

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def start(self) -> None:
        assert self._process is None
        command = [self._binary, "--bind", self.host, "--port", str(self.port), "--save", "", "--appendonly", "no"]
        # It has no password: off loopback it would refuse clients otherwise.
        command += ["--protected-mode", "no"]
        log = os.path.join(self._folder.name, "redis.log")
        self._process = subprocess.Popen([*command, "--dir", self._folder.name, "--logfile", log, "--daemonize", "no"])
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                with open(log, encoding="utf-8") as lines:
                    raise RuntimeError(f"redis-server did not start: {lines.read()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it; what it knew is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        self._folder.cleanup()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def running_redis(host: str = LOOPBACK) -> Iterator[RedisServer]:
    server = RedisServer(host)
    try:
        yield server
    finally:
        server.close()


def redis_binary() -> str:
    return found_or_installed(lambda: shutil.which("redis-server"), "redis-server")
