"""A real Hive metastore for tests, on loopback, with its database in memory. Needs a JDK.

By default 2.3.10, from the jars inside PySpark. `HIVE_RELEASE` names another one, whose jars `hive` pins by hash. Those of Hadoop
3.3 take the place of the release's own, which needs Java 8.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark
from tests.artifacts import ensure_artifacts, java_command
from tests.real.ports import free_ports

SOURCE = Path(__file__).with_name("LoopbackMetastore.java")
RELEASES = SOURCE.with_name("hive")
RELEASE = os.environ.get("HIVE_RELEASE", "") or "2.3.10"
IGNORES_EXPECTED = RELEASE.startswith("3.")
"""Whether the server changes a table whatever value of a parameter a client expects."""
LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 240.0
"""Its database is created by the first call: four seconds on an idle machine, a minute on a loaded one."""
OPENED = ("java.lang", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.c.ref = c
appender.c.type = Console
appender.c.name = c
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = %d %p %c{1}: %m%n
"""


class HiveMetastoreServer:
    """One server; it keeps its port over `stop` and the next `start`, and its folder, but forgets its tables."""

    def __init__(self, folder: Path, lock_timeout_s: int | None = None) -> None:
        self.folder = folder
        self.lock_timeout_s = lock_timeout_s
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "log4j2.properties").write_text(LOGGING)

    @property
    def url(self) -> str:
        return f"hms://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:memory:{self.folder.name}{self.port}{time.monotonic_ns()};create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "datanucleus.connectionPoolingType": "HikariCP",  # PySpark has no BoneCP
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file://{self.folder}/warehouse",
            "hive.metastore.disallow.incompatible.col.type.changes": "false",
        }
        if not RELEASE.startswith("2."):
            task = "org.apache.hadoop.hive.metastore.events.EventCleanerTask"
            settings |= {
                "metastore.thrift.bind.host": LOOPBACK,
                "metastore.warehouse.external.dir": f"file://{self.folder}/warehouse",
                # The classes that are the defaults of these are in hive-exec, which a metastore of its own lacks.
                "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
                "metastore.task.threads.always": task,
                "metastore.task.threads.remote": task,
                "metastore.housekeeping.threads.on": "false",
            }
        if self.lock_timeout_s:
            settings["hive.txn.timeout"] = f"{self.lock_timeout_s}s"
        properties = "".join(f"<property><name>{k}</name><value>{escape(v)}</value></property>" for k, v in settings.items())
        for name in ("hive-site.xml", "metastore-site.xml"):
            (self.folder / "conf" / name).write_text(f"<configuration>{properties}</configuration>")
        jars = server_jars(RELEASE)
        opens = [flag for package in OPENED for flag in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        command = [*java_command(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens]
        command += [f"-Dderby.stream.error.file={self.folder}/derby.log", f"-Djava.io.tmpdir={self.folder}"]
        command += [f"-Dlog4j2.configurationFile={self.folder}/conf/log4j2.properties"]
        command += ["-cp", f"{self.folder}/conf:{jars}"]
        if RELEASE.startswith("2."):
            command += [str(SOURCE), str(self.port), str(self.lock_timeout_s is not None).lower()]
        elif RELEASE.startswith("3."):
            command += [str(RELEASES / "LoopbackMetastore3.java"), str(self.port)]
        else:
            command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)]
        with open(self.folder / "out.log", "ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError(f"the metastore did not start: {(self.folder / 'out.log').read_text()[-3000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), 1):
            return True
        return False


def server_jars(release: str) -> str:
    """The class path of a server."""
    if release == "2.3.10":
        return f"{Path(pyspark.__file__).parent}/jars/*"
    pins = RELEASES / f"{release}.json"
    if not pins.exists():
        raise ValueError(f"HIVE_RELEASE={release}; expected 2.3.10, or one of {sorted(f.stem for f in RELEASES.glob('*.json'))}")
    return ":".join(map(str, ensure_artifacts(json.loads(pins.read_text()))))


@contextmanager
def hive_metastore(lock_timeout_s: int | None = None) -> Iterator[HiveMetastoreServer]:
    """A running metastore, stopped at the end. With `lock_timeout_s` it keeps locks, and ends those without heartbeats."""
    with tempfile.TemporaryDirectory(prefix="tideline-hms-", ignore_cleanup_errors=True) as folder:
        server = HiveMetastoreServer(Path(os.path.realpath(folder)), lock_timeout_s)
        server.start()
        try:
            yield server
        finally:
            server.stop()
