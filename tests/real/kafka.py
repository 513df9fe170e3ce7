"""A real Kafka for tests: one KRaft node, its jars pinned by hash, started and stopped by the test session. Needs Java 17."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
JARS = Path(__file__).with_name("kafka_jars.json")
SPARK_SOURCE_JARS = Path(__file__).with_name("spark_source_jars.json")
"""Spark's Kafka source. Maven Central has none of PySpark's release, and the token provider of an earlier one only."""
READY_TIMEOUT_S = 90
STOP_TIMEOUT_S = 30
DOWNLOAD_TIMEOUT_S = 60

SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
controlled.shutdown.enable=false
"""


class KafkaFailed(Exception):
    """Kafka did not come up; the message holds the end of its log."""


class KafkaNode:
    """One broker and controller with its data in `folder`. It keeps ports and data over `stop`, `kill` and the next `start`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.controller_port = _free_ports(2)
        self._properties = folder / "server.properties"
        self._log = folder / "kafka.log"
        self._server: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(SERVER.format(port=self.port, controller_port=self.controller_port, folder=folder))
        self._run("kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(self._properties))

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap_servers}"

    @property
    def pid(self) -> int:
        assert self._server is not None, "the node is not running"
        return self._server.pid

    def start(self) -> None:
        """Returns when the broker answers."""
        assert self._server is None, "the node is running"
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [*_java(), "-Xmx384m", "kafka.Kafka", str(self._properties)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
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
        if server is None:
            return
        server.send_signal(how)
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _await_ready(self) -> None:
        assert self._server is not None
        # Until the broker answers, librdkafka would report every refused connection.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 500})
        for _ in range(READY_TIMEOUT_S):
            if self._server.poll() is not None:
                raise KafkaFailed(f"exit code {self._server.returncode}: {self._log.read_text()[-4000:]}")
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=1).brokers:
                    return
        raise KafkaFailed(f"no answer after {READY_TIMEOUT_S} s: {self._log.read_text()[-4000:]}")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([*_java(), *arguments], capture_output=True, text=True, check=False, timeout=READY_TIMEOUT_S)
        if done.returncode:
            raise KafkaFailed(f"{arguments[0]}: {done.stdout}{done.stderr}")


@contextmanager
def running_kafka(folder: Path) -> Iterator[KafkaNode]:
    """A node that runs inside the `with` block."""
    node = KafkaNode(folder)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def kafka_jars() -> Path:
    """The folder with the pinned jars of the broker."""
    return _pinned_jars(JARS)


def spark_source_jars() -> list[Path]:
    """What a Spark session needs to read from Kafka."""
    return sorted(_pinned_jars(SPARK_SOURCE_JARS).glob("*.jar"))


def _pinned_jars(pins: Path) -> Path:
    """The folder with the jars of a list; what is absent or broken is downloaded (again)."""
    pinned = json.loads(pins.read_text())
    folder = cache_folder() / "kafka" / pinned["kafka"]
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda jar: ensure_pinned(folder / jar["file"], jar["path"], jar["sha256"]), pinned["jars"]))
    return folder


def cache_folder() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get("TIDELINE_CACHE") or REPOSITORY_ROOT / ".cache")


def ensure_pinned(target: Path, path: str, sha256: str) -> None:
    """Download a file of Maven Central, unless it is there and whole."""
    if target.exists() and _sha256(target) == sha256:
        return
    base_url = os.environ.get("MAVEN_BASE_URL", "https://repo1.maven.org/maven2").rstrip("/")
    # Sessions may run side by side: each downloads to a name of its own and moves the verified file into place.
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    try:
        with urllib.request.urlopen(f"{base_url}/{path}", timeout=DOWNLOAD_TIMEOUT_S) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        found = _sha256(partial)
        if found != sha256:
            raise KafkaFailed(f"{base_url}/{path} has SHA-256 {found}; expected {sha256}")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def java_command() -> list[str]:
    """A Java that starts fast and stays small."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise KafkaFailed("no java on PATH and no JAVA_HOME")
    return [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def _java() -> list[str]:
    return [*java_command(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{kafka_jars()}/*"]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
