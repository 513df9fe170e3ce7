"""A real schema registry for tests: Apicurio Registry with Confluent's API, pinned by hash. Needs Java 17."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.artifacts import cache_folder, java_command, unpacked_artifact
from tests.real.kafka import STOP_TIMEOUT_S
from tests.real.ports import free_ports

PIN = Path(__file__).with_suffix(".json")
READY_TIMEOUT_S = 300


class RegistryFailed(Exception):
    """The registry did not come up; the message holds the end of its log."""


class RegistryServer:
    """One registry with its data in `folder`. It keeps port, schemas and ids over `stop` and the next `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        """Returns when it answers."""
        assert self._process is None, "the registry is running"
        home, log = _home(), self._folder / "registry.log"
        properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "apicurio.datasource.url": f"jdbc:h2:file:{self._folder}/registry",
        }
        jar = next(home.glob("*-runner.jar"))
        command = [*java_command(), "-Xmx256m", *(f"-D{k}={v}" for k, v in properties.items()), "-jar", str(jar)]
        with log.open("ab") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, cwd=self._folder)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RegistryFailed(log.read_text(errors="replace")[-4000:])
            time.sleep(0.1)

    def stop(self) -> None:
        """An orderly end; nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def running_registry(folder: Path) -> Iterator[RegistryServer]:
    """A registry that runs inside the `with` block."""
    server = RegistryServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _home() -> Path:
    """The folder of the pinned release, unpacked."""
    ((name, sha256),) = json.loads(PIN.read_text()).items()
    return unpacked_artifact(name, sha256, cache_folder() / "apicurio")
