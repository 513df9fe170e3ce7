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

START_TIMEOUT_S = 10.0
START_ATTEMPTS = 3
APT_TIMEOUT_S = 240


class RedisServer:
    """One server on one port; it may be stopped, started again (empty), frozen and thawed."""

    def __init__(self) -> None:
        self._binary = redis_binary()
        self._folder = tempfile.TemporaryDirectory(prefix="tideline-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        for _ in range(START_ATTEMPTS):
            self.port = free_port()
            # Somebody else may take the port before the server does.
            with contextlib.suppress(RuntimeError):
                self.start()
                return
        self._folder.cleanup()
        raise RuntimeError(f"redis-server did not start on {START_ATTEMPTS} free ports")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert self._process is None
        command = [self._binary, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
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
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        yield server
    finally:
        server.close()


def redis_binary() -> str:
    found = shutil.which("redis-server")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for step in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "redis-server"]):
            subprocess.run(["apt-get", *step], check=True, env=quiet, timeout=APT_TIMEOUT_S, stdout=subprocess.DEVNULL)
        found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("no redis-server on the PATH; install it, or run pytest with -m 'not real'")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
