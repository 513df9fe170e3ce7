"""The Java client of Apache Hudi 1.2.1 as a second peer: unmodified jars of Maven Central, driven by `HudiJavaClient.java`.

The Spark bundle of 1.2.1 is not needed: timeline, log format, file group reader, metadata table and table services are those of the
jars pinned in `jars.json`. The rest of the class path are jars that the peer's PySpark holds. Unlike the peer on Spark this one
has no SQL, no incremental queries and no data source; it writes by the index `SIMPLE` or `BLOOM`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from tests.artifacts import ensure_artifacts, java_command
from tests.conformance.peers.apache_hudi import PeerFailed
from tests.conformance.peers.environment import VIRTUAL_ENVIRONMENT, prepare

SOURCE = Path(__file__).with_name("HudiJavaClient.java")
JARS: dict[str, str] = json.loads(SOURCE.with_name("jars.json").read_text(encoding="utf-8"))
"""SHA-256 by coordinates."""
(RELEASE,) = {name.rpartition(":")[2] for name in JARS if name.startswith("org.apache.hudi:")}
REQUEST_TIMEOUT_S = 300.0
LOG_TAIL_BYTES = 4000
CHEAP = ("-Djol.skipHotspotSAAttach=true", "-Djdk.lang.Process.launchMechanism=VFORK")
"""Hudi's estimates of sizes start no further JVMs, and Hadoop its `chmod` for each file without a program in between."""


def class_path() -> tuple[str, Path]:
    """The class path, and the home of the Java that runs it; what is missing is downloaded."""
    environment = prepare()
    (spark,) = VIRTUAL_ENVIRONMENT.glob("lib/python*/site-packages/pyspark/jars")
    (ivy,) = spark.glob("ivy-*.jar")
    jars = ensure_artifacts(JARS, ivy=ivy, java_home=environment.java_home)
    return ":".join([*map(str, jars), f"{spark}/*"]), environment.java_home


class HudiJavaClient:
    """A process with Apache Hudi's Java client. Leaving the context ends it.

    All methods raise PeerFailed with the class and the message of the Java error, or when the process ends or is late.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hudi-java-"))
        jars, java_home = class_path()
        command = [*java_command(java_home), *CHEAP, "-Xmx512m", "-Duser.timezone=UTC", "-cp", jars, str(SOURCE)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "TZ": "UTC"},
            )
        self._pending = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process and removes its files."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- commands --------------------------------------------------------------------------------------------------------

    def ping(self) -> dict[str, str]:
        """The releases of Hudi and Java."""
        return dict(self._ask("ping"))

    def create(self, base_path: Path, options: Mapping[str, str]) -> None:
        """Create a table; `options` are entries of `hoodie.properties`, `hoodie.table.version` among them."""
        self._ask("create", base_path=str(base_path), options=dict(options))

    def read(self, base_path: Path, *, metadata: bool) -> pa.Table:
        """The rows of a snapshot query, meta fields included; listed by the metadata table, which must be there, or by folders."""
        target = self._folder / "read.parquet"
        try:
            self._ask("read", base_path=str(base_path), metadata=metadata, target=str(target))
            return pq.read_table(target)
        finally:
            target.unlink(missing_ok=True)

    def write(self, base_path: Path, rows: pa.Table, operation: str, options: Mapping[str, str]) -> str:
        """Write rows by `upsert`, `insert`, `bulk_insert` or (their keys) `delete`; the instant."""
        source = self._folder / "write.parquet"
        pq.write_table(rows, source, coerce_timestamps="us")
        try:
            return str(self._ask("write", base_path=str(base_path), source=str(source), operation=operation, options=dict(options)))
        finally:
            source.unlink()

    def service(self, base_path: Path, service: str, options: Mapping[str, str], instant: str | None = None) -> str | None:
        """Schedule or run a table service, or undo an instant; the instant, None if there was nothing to do."""
        done = self._ask("service", base_path=str(base_path), service=service, options=dict(options), instant=instant)
        return None if done is None else str(done)

    def locations(self, base_path: Path, keys: Iterable[str]) -> dict[str, tuple[str, str, str]]:
        """By record key, the partition path, file id and instant that the record index has. Unknown keys are left out."""
        found = self._ask("locations", base_path=str(base_path), keys=list(keys))
        return {key: (partition, file_id, instant) for key, (partition, file_id, instant) in found.items()}

    def column_stats(self, base_path: Path, files: Iterable[tuple[str, str]], column: str) -> dict[str, tuple[int, int, Any, Any]]:
        """By file name: values, nulls, minimum and maximum of a column of files (partition path, name). Others are left out."""
        found = self._ask("column_stats", base_path=str(base_path), files=[list(file) for file in files], column=column)
        return {
            name: (int(values), int(nulls), json.loads(low)["value"], json.loads(high)["value"])
            for name, (values, nulls, low, high) in found.items()
        }

    # --- lines -----------------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self._folder / "java.log"

    def _ask(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            reply = json.loads(self._line(time.monotonic() + REQUEST_TIMEOUT_S))
        except (OSError, EOFError) as error:
            # What it would still answer is no answer to the next request.
            self._process.kill()
            tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise PeerFailed(type(error).__name__, f"{command}: {error}; its log ends with\n{tail}") from error
        if "kind" in reply:
            raise PeerFailed(reply["kind"], reply["message"])
        return reply["result"]

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        replies = self._process.stdout.fileno()
        while (end := self._pending.find(b"\n")) < 0:
            if not select.select([replies], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("no reply in time")
            if not (received := os.read(replies, 1 << 16)):
                raise EOFError("the process ended")
            self._pending.extend(received)
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line
