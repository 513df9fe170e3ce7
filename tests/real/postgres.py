"""A real PostgreSQL for tests: found or installed by apt, with its data in a folder, on a free local port."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.debian import found_or_installed
from tests.real.ports import free_ports

USER = "sink"


class PostgresServer:
    """One server that trusts all connections of this machine. `settings`: such as `wal_level=logical`."""

    def __init__(self, folder: Path, *settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._programs = Path(found_or_installed(_initdb, "postgresql")).parent
        self._data, self.port = folder / "data", free_ports(1)[0]
        self._log, self._settings = folder / "postgres.log", ("fsync=off", *settings)
        if os.geteuid() == 0:
            # The server refuses to run as root, and every folder above its own must let its user pass.
            self._data = Path(f"/tmp/tideline-postgres-{os.getpid()}-{self.port}")
            self._data.mkdir(mode=0o700)
            shutil.chown(self._data, "postgres", "postgres")

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Returns when it answers."""
        self._run("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        options = " ".join([f"-h 127.0.0.1 -p {self.port} -k ''", *(f"-c {setting}" for setting in self._settings)])
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._data / "log"), "-w", "-o", options, "start")

    def stop(self) -> None:
        """End it; what it knew is gone."""
        try:
            self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        finally:
            shutil.rmtree(self._data, ignore_errors=True)

    def query(self, statement: str) -> str:
        """Return what a statement answers, without headings."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", "postgres"]
        command = [str(self._programs / "psql"), *address, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def _run(self, program: str, *arguments: str) -> None:
        user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        with self._log.open("ab") as log:
            # Not a pipe: the server inherits it and never closes it.
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                check=False,
                timeout=120,
                **user,
            )
        if done.returncode:
            raise RuntimeError(f"{program}: {self._log.read_text(errors='replace')[-2000:]}")


@contextmanager
def running_postgres(folder: Path, *settings: str) -> Iterator[PostgresServer]:
    """A server that runs inside the `with` block."""
    server = PostgresServer(folder, *settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _initdb() -> str | None:
    # Debian keeps it out of the PATH, in a folder of each release.
    return max(glob.glob("/usr/lib/postgresql/*/bin/initdb"), default=None) or shutil.which("initdb")
