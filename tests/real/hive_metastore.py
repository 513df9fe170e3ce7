"""A real Hive metastore 2.3.10 for tests, from the jars inside PySpark, on loopback, with its database in memory. Needs a JDK."""

from __future__ import annotations

import contextlib
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
from tests.artifacts import java_command
from tests.real.ports import free_ports

SOURCE = Path(__file__).with_name("LoopbackMetastore.java")
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
        if self.lock_timeout_s:
            settings["hive.txn.timeout"] = f"{self.lock_timeout_s}s"
        properties = "".join(f"<property><name>{k}</name><value>{escape(v)}</value></property>" for k, v in settings.items())
        (self.folder / "conf" / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
        jars = Path(pyspark.__file__).parent / "jars"
        opens = [flag for package in OPENED for flag in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        command = [*java_command(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens]
        command += [f"-Dderby.stream.error.file={self.folder}/derby.log", f"-Djava.io.tmpdir={self.folder}"]
        command += [f"-Dlog4j2.configurationFile={self.folder}/conf/log4j2.properties"]
        command += [
            "-cp",
            f"{self.folder}/conf:{jars}/*",
            str(SOURCE),
            str(self.port),
            str(self.lock_timeout_s is not None).lower(),
        ]
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
