"""A real Kafka for tests: one KRaft node, its jars pinned by hash, started and stopped by the test session. Needs Java 17."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.artifacts import cache_folder, ensure_artifacts, java_command, locked
from tests.real.ports import free_ports

JARS = Path(__file__).with_name("kafka_jars.json")
SPARK_SOURCE_JARS = Path(__file__).with_name("spark_source_jars.json")
"""Spark's Kafka source. None is published for the release of PySpark, and the token provider for an earlier one only."""
LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30

SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
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
    """One broker and controller with its data in `folder`. It keeps ports and data over `stop`, `kill` and the next `start`.

    `host` is an address of this machine: where clients reach the broker.
    """

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        self.folder = folder
        self.host = host
        self.port, self.controller_port = free_ports(2, host)
        self._properties = folder / "server.properties"
        self._log = folder / "kafka.log"
        self._server: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        ports = {"port": self.port, "controller_port": self.controller_port}
        self._properties.write_text(SERVER.format(host=host, folder=folder, **ports))
        shutil.copytree(_formatted(), folder / "data")

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

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
        quiet = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 500}
        # The coordinator of groups is later than the broker, the first time by as long as its topic takes to be made.
        with contextlib.closing(Consumer({**quiet, "group.id": "is-it-ready"})) as consumer:
            deadline_s = time.monotonic() + READY_TIMEOUT_S
            while time.monotonic() < deadline_s:
                if self._server.poll() is not None:
                    raise KafkaFailed(f"exit code {self._server.returncode}: {self._log.read_text()[-4000:]}")
                try:
                    consumer.committed([TopicPartition("any", 0)], timeout=1)
                except KafkaException:
                    time.sleep(0.1)
                else:
                    return
        raise KafkaFailed(f"no answer after {READY_TIMEOUT_S} s: {self._log.read_text()[-4000:]}")


@contextmanager
def running_kafka(folder: Path, host: str = LOOPBACK) -> Iterator[KafkaNode]:
    """A node that runs inside the `with` block."""
    node = KafkaNode(folder, host)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def spark_source_jars() -> list[Path]:
    """What a Spark session needs to read from Kafka."""
    return ensure_artifacts(json.loads(SPARK_SOURCE_JARS.read_text()))


def _formatted() -> Path:
    """A data folder as Kafka's tool formats it: the same for all nodes, so a JVM is started for it once."""
    target = cache_folder() / "kafka-formatted" / hashlib.sha256((SERVER + JARS.read_text()).encode()).hexdigest()[:16]
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if not target.exists():
            properties = Path(folder, "server.properties")
            properties.write_text(SERVER.format(host=LOOPBACK, folder=folder, port=9092, controller_port=9093))
            tool = ("kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(properties))
            done = subprocess.run([*_java(), *tool], capture_output=True, text=True, check=False, timeout=READY_TIMEOUT_S)
            if done.returncode:
                raise KafkaFailed(f"{tool[0]}: {done.stdout}{done.stderr}")
            Path(folder, "data").replace(target)
    return target


def _java() -> list[str]:
    jars = ensure_artifacts(json.loads(JARS.read_text()))
    return [*java_command(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", ":".join(map(str, jars))]
