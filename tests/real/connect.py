"""A real worker of Kafka Connect with a connector of Debezium, for tests: standalone, pinned by hash. Needs Java 17."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.artifacts import cache_folder, ensure_artifacts, java_command, unpacked_artifact
from tests.real.kafka import JARS, STOP_TIMEOUT_S
from tests.real.ports import free_ports

PINS = Path(__file__).with_suffix(".json")
"""The worker's jars, beside those of the broker, and Debezium's archives of connectors."""
PLUGIN = "io.debezium:debezium-connector-"


class Worker:
    """A worker with one connector.

    Over `stop` and `start`, the offsets of a sink stay in its consumer group, those of a source in a file.
    """

    def __init__(
        self, folder: Path, bootstrap_servers: str, connector: Mapping[str, str], converters: Mapping[str, str], plugin: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "connect.log"
        self._process: subprocess.Popen[bytes] | None = None
        worker = {
            "bootstrap.servers": bootstrap_servers,
            "offset.storage.file.filename": str(folder / "offsets"),
            "plugin.path": str(_plugins(plugin)),
            # The connector says in its jar what it has: the worker need not look through all classes of all jars.
            "plugin.discovery": "service_load",
            "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
            "offset.flush.interval.ms": "200",
            **converters,
        }
        self._files = [folder / "worker.properties", folder / "connector.properties"]
        for file, options in zip(self._files, (worker, connector), strict=True):
            file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))

    def start(self) -> None:
        """Does not wait: the connector reads when it has its partitions."""
        assert self._process is None, "the worker is running"
        broker = json.loads(JARS.read_text())
        pins = {name: sha256 for name, sha256 in json.loads(PINS.read_text()).items() if not name.startswith(PLUGIN)}
        path = ":".join(map(str, ensure_artifacts({**broker, **pins})))
        command = [*java_command(), "-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", path]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", *map(str, self._files)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def check(self) -> None:
        """Raise `AssertionError` with the end of the log if the worker has ended or a task of it was killed by an error."""
        said = self._log.read_text(errors="replace")
        assert self._process is not None, "not started"
        assert self._process.poll() is None, said[-4000:]
        assert "Task is being killed" not in said, said[-6000:]

    def stop(self) -> None:
        """An orderly end, which commits the offsets; nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running_worker(
    folder: Path, bootstrap_servers: str, connector: Mapping[str, str], converters: Mapping[str, str], plugin: str = "jdbc"
) -> Iterator[Worker]:
    """A worker that runs inside the `with` block."""
    worker = Worker(folder, bootstrap_servers, connector, converters, plugin)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def _plugins(plugin: str) -> Path:
    """The folder with the pinned connector, unpacked."""
    (name, sha256) = next(pin for pin in json.loads(PINS.read_text()).items() if pin[0].startswith(f"{PLUGIN}{plugin}:"))
    return unpacked_artifact(name, sha256, cache_folder() / f"debezium-{plugin}")
