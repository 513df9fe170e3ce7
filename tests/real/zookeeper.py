"""A real ZooKeeper for tests: one server of the jars that come with PySpark (pinned in requirements/). Needs Java 17."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.artifacts import java_command
from tests.real.ports import free_ports

LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
_JARS = ("zookeeper-", "slf4j-api-", "log4j-", "metrics-core-", "snappy-java-", "netty-")
SERVER = """\
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=500
admin.enableServer=false
4lw.commands.whitelist=ruok
maxClientCnxns=0
"""
"""With this tick sessions last 1 to 10 s."""


class ZooKeeperFailed(Exception):
    """ZooKeeper did not come up; the message holds the end of its log."""


class ZooKeeperServer:
    """One server with its data in `folder`. It keeps port and data over `stop`, `kill` and the next `start`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1, LOOPBACK)
        self._settings, self._log = folder / "zoo.cfg", folder / "zookeeper.log"
        self._settings.write_text(SERVER.format(folder=folder, port=self.port))
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Returns when the server answers."""
        assert self._server is None, "the server is running"
        main = ("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._settings))
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [*java_command(), "-Xmx128m", "-cp", _class_path(), *main], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """An orderly end; nothing if it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9; nothing if it is not running."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(how)
            server.wait(STOP_TIMEOUT_S)

    def _await_ready(self) -> None:
        assert self._server is not None
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._server.poll() is not None:
                raise ZooKeeperFailed(f"exit code {self._server.returncode}: {self._log.read_text()[-4000:]}")
            if self._answers():
                return
            time.sleep(0.1)
        raise ZooKeeperFailed(f"no answer after {READY_TIMEOUT_S} s: {self._log.read_text()[-4000:]}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(16) == b"imok"
        except OSError:
            return False


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """A server that runs inside the `with` block."""
    server = ZooKeeperServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _class_path() -> str:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    jars = Path(found.origin).with_name("jars")
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS))
