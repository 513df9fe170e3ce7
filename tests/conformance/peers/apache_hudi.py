"""The real Apache Hudi (1.2.0 on Spark 3.5, or an older release) as a peer that reads and writes tables next to Tideline.

One Spark process serves a whole test session: it starts with the first request, and again after it had to be ended because of a
request that took too long. Everything runs in UTC, because Hudi 1.x derives completion times of version-6 instants from file
times in the zone of its JVM. Tables are written as version 6 and never upgraded.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from tests.conformance.peers.environment import PeerEnvironment, prepare
from tests.conformance.peers.peer_lock import PeerObjectStoreLock

QueryType = Literal["snapshot", "read_optimized", "incremental"]
SaveMode = Literal["append", "overwrite", "errorifexists", "ignore"]

START_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
MEMORY_MB = 1536
FILE_LOCK = {"hoodie.write.lock.filesystem.expire": "0"}
"""What Hudi's file-system based lock provider asks for at least."""
LOG_TAIL_BYTES = 4000
_JVM_GONE = frozenset({"ConnectionRefusedError", "ConnectionResetError", "Py4JNetworkError"})
"""What the far side's Python says when its JVM has ended."""


class PeerFailed(Exception):
    """Apache Hudi refused or could not do what it was asked for.

    `kind` is the Java (or Python) class of the error, `message` its text with all causes, `trace` where it came from.
    """

    def __init__(self, kind: str, message: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.trace = trace


@dataclass(frozen=True, order=True)
class PeerInstant:
    """An instant of the active timeline as Apache Hudi sees it; `state` is REQUESTED, INFLIGHT or COMPLETED."""

    instant: str
    action: str
    state: str
    completion_time: str = field(default="", compare=False)


@dataclass(frozen=True, order=True)
class PeerFileSlice:
    """The latest file slice of a file group as Apache Hudi builds it from the listing; file names without folders."""

    partition_path: str
    file_id: str
    base_instant: str
    base_file: str | None
    log_files: tuple[str, ...]


@dataclass(frozen=True)
class _Link:
    """The running process and this side's ends of its two pipes."""

    process: subprocess.Popen[bytes]
    requests: int
    replies: int
    pending: bytearray


class ApacheHudi:
    """A session with Apache Hudi. Use it as a context manager: leaving it ends the Spark process and removes its files.

    All methods raise PeerFailed with the message of the far side; a request that exceeds `timeout_s` also ends the
    process, and the next request starts a new one. Not to be shared between threads.
    """

    def __init__(self, environment: PeerEnvironment | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="apache-hudi-"))
        self._link: _Link | None = None
        self._sent = 0

    def __enter__(self) -> Self:
        try:
            self._connected()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the Spark process if one runs and removes all temporary files."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- commands --------------------------------------------------------------------------------------------------------

    def read(
        self,
        base_path: str | Path,
        query_type: QueryType = "snapshot",
        as_of: str | None = None,
        *,
        metadata: bool | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        begin: str | None = None,
        end: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> pa.Table:
        """The rows of a table, meta columns included, in no particular order.

        `as_of` is an instant (time travel); `begin` (exclusive) and `end` (inclusive) bound an incremental query; `where` is a
        Spark SQL condition; `metadata` switches reading through the metadata table (None leaves it to Hudi, which uses one that
        is there).
        """
        wanted: dict[str, str] = {"hoodie.datasource.query.type": query_type}
        if as_of is not None:
            wanted["as.of.instant"] = as_of
        if begin is not None:
            wanted["hoodie.datasource.read.begin.instanttime"] = begin
        if end is not None:
            wanted["hoodie.datasource.read.end.instanttime"] = end
        if metadata is not None:
            wanted["hoodie.metadata.enable"] = _text(metadata)
        with self._transfer() as target:
            self._ask(
                "read",
                base_path=str(base_path),
                options={**wanted, **(options or {})},
                columns=None if columns is None else list(columns),
                where=where,
                target=str(target),
            )
            # Read eagerly: the folder is gone when this returns.
            return pa.concat_tables(pq.read_table(part, partitioning=None) for part in sorted(target.glob("*.parquet")))

    def write(
        self,
        base_path: str | Path,
        rows: pa.Table,
        options: Mapping[str, str],
        mode: SaveMode = "append",
        *,
        metadata: bool = False,
        computed: Mapping[str, str] | None = None,
    ) -> None:
        """Writes `rows` with Hudi's own data source; `options` are `hoodie.*` options as Hudi names them.

        `computed` replaces or adds columns by Spark SQL expressions (types that Parquet has no name for, values that fail in a
        task).

        `metadata` says whether this write keeps a metadata table: False makes Hudi drop one that exists, as 1.2 does when the
        option is off.
        """
        settings = {"hoodie.metadata.enable": _text(metadata), **options}
        with self._transfer() as source:
            source.mkdir()
            pq.write_table(rows, source / "rows.parquet", coerce_timestamps="us")
            self._ask(
                "write", base_path=str(base_path), source=str(source), options=settings, mode=mode, computed=dict(computed or {})
            )

    def sql(self, text: str, settings: Mapping[str, str] | None = None, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """The rows that a Spark SQL statement returns; `settings` hold, and `timeout_s` counts, for this statement only.

        Values that JSON has no type for (decimals, dates, timestamps) come as text.
        """
        arguments = {"text": text, "settings": dict(settings or {})}
        return list(self._exchange(self._connected(), "sql", arguments, self._timeout_s if timeout_s is None else timeout_s))

    def call(self, procedure: str, *, metadata: bool = False) -> list[dict[str, Any]]:
        """The rows that a Hudi procedure returns, for example `call("run_clustering(path => '…', op => 'schedule')")`.

        `metadata` as in `write`: procedures too build a metadata table unless told not to.
        """
        return self.sql(f"call {procedure}", {"hoodie.metadata.enable": _text(metadata)})

    def roll_back(self, base_path: str | Path, table: str, instant: str, options: Mapping[str, str]) -> bool:
        """Undo one instant, completed or not, through Hudi's write client; whether it did.

        (The procedure `rollback_to_instant` looks for the timeline folder of newer layouts and fails on tables of version 6.)
        """
        return bool(self._ask("roll_back", base_path=str(base_path), table=table, instant=instant, options=dict(options)))

    def restore(self, base_path: str | Path, table: str, instant: str, options: Mapping[str, str]) -> None:
        """Bring the table back to the savepoint `instant` through Hudi's write client."""
        self._ask("restore", base_path=str(base_path), table=table, instant=instant, options=dict(options))

    def lock(self, base_path: str | Path, options: Mapping[str, str] | None = None, *, wait_s: float = 0.0) -> bool:
        """Take and keep the table's lock through Hudi's file-system based provider; whether it was to be had within `wait_s`."""
        return bool(self._ask("lock", base_path=str(base_path), wait_ms=int(wait_s * 1000), options=dict(options or FILE_LOCK)))

    def unlock(self, base_path: str | Path) -> None:
        """Give back what `lock` took."""
        self._ask("unlock", base_path=str(base_path))

    def storage_lock(self, written: str) -> dict[str, Any]:
        """Hudi's own bytes of a lock of its storage based provider (`bytes`), and what Hudi reads in `written`."""
        return dict(self._ask("storage_lock", written=written))

    def object_store_lock(self, base_path: str, settings: Mapping[str, str], options: Mapping[str, str]) -> PeerObjectStoreLock:
        """Hudi's storage based lock provider for a table (s3://bucket/prefix) in the store that `settings` (AWS_...) name."""
        self._ask("make_object_store_lock", base_path=base_path, settings=dict(settings), options=dict(options))
        return PeerObjectStoreLock(
            lambda method, more: self._ask("object_store_lock", base_path=base_path, method=method, arguments=more)
        )

    def timeline(self, base_path: str | Path) -> list[PeerInstant]:
        """The active timeline in Hudi's order, one entry per instant and action with its highest state."""
        found = self._ask("timeline", base_path=str(base_path))
        return [PeerInstant(entry["instant"], entry["action"], entry["state"], entry["completion_time"] or "") for entry in found]

    def properties(self, base_path: str | Path) -> dict[str, str]:
        """`hoodie.properties` as Hudi parses it."""
        return dict(self._ask("properties", base_path=str(base_path)))

    def file_slices(self, base_path: str | Path) -> list[PeerFileSlice]:
        """The latest file slice of every file group, replaced groups left out, sorted."""
        found = self._ask("file_slices", base_path=str(base_path))
        return sorted(
            PeerFileSlice(
                entry["partition_path"], entry["file_id"], entry["base_instant"], entry["base_file"], tuple(entry["log_files"])
            )
            for entry in found
        )

    def bloom_filters(self, base_path: str | Path, partition: str, names: list[str], keys: list[str]) -> dict[str, list[bool]]:
        """By the name of a base file, whether its filter in the metadata table may hold each key.

        Files without a filter are left out.
        """
        found = self._ask("bloom_filters", base_path=str(base_path), partition=partition, names=names, keys=keys)
        return {name: list(answers) for name, answers in found.items()}

    def ping(self) -> dict[str, str]:
        """Spark's and Java's release and the JVM's time zone."""
        return dict(self._ask("ping"))

    @property
    def process_id(self) -> int:
        """The id of the Spark driver's process, which is started if none runs."""
        return self._connected().process.pid

    # --- process ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[Path]:
        """A path of its own for the rows of one request, removed with all it holds."""
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="rows-") as folder:
            yield Path(folder) / "rows"

    def _connected(self) -> _Link:
        if self._link is not None and self._link.process.poll() is None:
            return self._link
        self._stop()
        environment = self._environment = self._environment or prepare()
        requests_far, requests_near = os.pipe()
        replies_near, replies_far = os.pipe()
        try:
            process = self._start(environment, requests_far, replies_far)
        except BaseException:
            os.close(requests_near)
            os.close(replies_near)
            raise
        finally:
            os.close(requests_far)
            os.close(replies_far)
        self._link = _Link(process, requests_near, replies_near, bytearray())
        self._exchange(self._link, "ping", {}, START_TIMEOUT_S)
        return self._link

    def _start(self, environment: PeerEnvironment, requests: int, replies: int) -> subprocess.Popen[bytes]:
        # Settings of this side's own (newer) Spark must not reach the peer.
        foreign = ("SPARK", "PYSPARK", "PYTHON", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "HADOOP", "VIRTUAL_ENV")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        variables = {"TZ": "UTC", "JAVA_HOME": str(environment.java_home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1"}
        options = {
            "bundle": environment.bundle,
            "folder": self._folder,
            "memory-mb": MEMORY_MB,
            "requests": requests,
            "replies": replies,
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    str(environment.python),
                    str(Path(__file__).with_name("hudi_server.py")),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=inherited | variables,
                pass_fds=(requests, replies),
                start_new_session=True,
            )

    def _stop(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        # The end of the request stream is the far side's signal to finish.
        os.close(link.requests)
        os.close(link.replies)
        try:
            link.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill(link.process)

    def _abandon(self, link: _Link) -> None:
        self._kill(link.process)
        self._stop()

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        # The process leads a session of its own, so its group holds it and its JVM and nobody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    # --- frames ----------------------------------------------------------------------------------------------------------

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._exchange(self._connected(), command, arguments, self._timeout_s)

    def _exchange(self, link: _Link, command: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        self._sent += 1
        frame = json.dumps({"id": self._sent, "command": command, **arguments}) + "\n"
        deadline = time.monotonic() + timeout_s
        try:
            _send(link.requests, frame.encode())
            reply = json.loads(_line(link, deadline))
        except (OSError, EOFError) as error:
            self._abandon(link)
            message = f"{command}: {error} (limit {timeout_s:g} s); its log ends with\n{self._log_tail()}"
            raise PeerFailed(type(error).__name__, message) from error
        except BaseException:
            # Interrupted between request and reply: the reply would be taken for the next request's.
            self._abandon(link)
            raise
        if reply["id"] != self._sent:
            self._abandon(link)
            raise PeerFailed("ProtocolError", f"reply to request {reply['id']}, expected {self._sent}")
        if "error" in reply:
            if reply["error"]["kind"] in _JVM_GONE:
                self._abandon(link)
            raise PeerFailed(**reply["error"])
        return reply["value"]

    @property
    def _log(self) -> Path:
        return self._folder / "spark.log"

    def _log_tail(self) -> str:
        if not self._log.is_file():
            return ""
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def _send(descriptor: int, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _line(link: _Link, deadline: float) -> bytes:
    """The next reply; raises EOFError when the far side is gone and TimeoutError at `deadline` (monotonic seconds)."""
    while (end := link.pending.find(b"\n")) < 0:
        readable, _, _ = select.select([link.replies], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise TimeoutError("no reply in time")
        received = os.read(link.replies, 1 << 16)
        if not received:
            raise EOFError("the process ended")
        link.pending.extend(received)
    line = bytes(link.pending[:end])
    del link.pending[: end + 1]
    return line


def _text(flag: bool) -> str:
    return "true" if flag else "false"
