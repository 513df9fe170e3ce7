"""Tables that jobs of Apache Hudi write, beside the fleet's own: observed, checked, shared, served, left, while the jobs run.

One process of each release writes its tables in turn. Each table has one job, so that what dies, dies because of Tideline.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.environment import HUDI_RELEASE, prepare
from tests.fleet.policies import HEARTBEAT, HUDI_HEARTBEAT_MS

from tideline_cli.main import run
from tideline_table.table import Table

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("part", pa.string())])
W = "hoodie.datasource.write."
JOB = {
    W + "recordkey.field": "id",
    W + "partitionpath.field": "part",
    W + "precombine.field": "ts",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.compact.inline": "false",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.write.auto.upgrade": "false",
    HEARTBEAT: str(HUDI_HEARTBEAT_MS),
}
KINDS = (("0.15.0", 6), ("1.0.2", 8), (HUDI_RELEASE, 9), (HUDI_RELEASE, 6))
"""Releases and table versions, in turn."""
TYPES = (("mor", "MERGE_ON_READ"), ("cow", "COPY_ON_WRITE"))
KEYS = 12
PAUSE_S = 1.0
"""Between two writes of a process: without it three of them leave the services of the fleet no processor on a small machine."""


@dataclass
class HudiTable:
    """One table, and what its job was told."""

    base_path: str
    release: str
    version: int
    type: str
    options: dict[str, str] = field(default_factory=dict)
    """What its job got beside its own options: the lock options, at the time of the next write."""
    model: dict[str, int] = field(default_factory=dict)
    """The ordering value that was acknowledged last, by key."""
    commits: int = 0
    with_options: int = 0
    """Commits that began with the lock options."""
    most_log_files: int = 0
    died: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.base_path.rpartition("/")[2]

    def write(self, peer: ApacheHudi) -> None:
        """Upsert every third key and a new one."""
        ts, options = self.commits + len(self.died) + 1, dict(self.options)
        ids = [f"k{n:02}" for n in range(ts % 3, KEYS, 3)] + [f"new{ts:04}"]
        rows = pa.table({"id": ids, "ts": [ts] * len(ids), "part": [f"p{int(k[-2:]) % 2}" for k in ids]}, schema=SCHEMA)
        own = {**JOB, "hoodie.table.name": self.name, W + "table.type": self.type, "hoodie.write.table.version": str(self.version)}
        try:
            peer.write(self.base_path, rows, {**own, **options}, metadata=True)
        except PeerFailed as error:
            self.died.append(str(error)[:2000])
            return
        self.model |= dict.fromkeys(ids, ts)
        self.commits += 1
        self.with_options += bool(options)
        slices = Table.open(self.base_path).state.latest_slices()
        self.most_log_files = max([self.most_log_files, *(len(s.applied.log_files) for s in slices)])


@dataclass
class Jobs:
    """One process of a release, and the tables that it writes in turn."""

    tables: list[HudiTable]
    peer: ApacheHudi
    enough: threading.Event = field(default_factory=threading.Event)

    def round(self) -> None:
        """Write each table once."""
        for table in self.tables:
            table.write(self.peer)

    def go_on(self) -> None:
        """Write the tables in turn until there is enough."""
        while not self.enough.is_set():
            for table in self.tables:
                table.write(self.peer)
                if self.enough.wait(PAUSE_S):
                    return


@dataclass
class HudiJobs:
    """The processes of all releases."""

    tables: list[HudiTable]
    jobs: list[Jobs]
    pool: ThreadPoolExecutor
    running: list[Any] = field(default_factory=list)

    def round(self) -> None:
        """Let each job write once, and wait for it."""
        list(self.pool.map(Jobs.round, self.jobs))

    def start(self) -> None:
        self.running = [self.pool.submit(jobs.go_on) for jobs in self.jobs]

    def stop(self) -> None:
        for jobs in self.jobs:
            jobs.enough.set()
        for each in self.running:
            each.result()

    def read(self, table: HudiTable) -> dict[str, int]:
        """Return what Apache Hudi's newest release reads."""
        (peer,) = [jobs.peer for jobs in self.jobs if jobs.tables[0].release == HUDI_RELEASE]
        found = peer.read(table.base_path, columns=["id", "ts"]).to_pylist()
        assert len(found) == len({row["id"] for row in found}), f"{table.name}: Apache Hudi reads keys twice"
        return {row["id"]: row["ts"] for row in found}


def hudi_tables(count: int, folder: Path) -> list[HudiTable]:
    """Return the tables: releases and versions in turn, each of them of both types."""
    found = []
    for number in range(count):
        release, version = KINDS[number % len(KINDS)]
        short, kind = TYPES[(number + number // len(KINDS)) % len(TYPES)]
        found.append(HudiTable(f"file:{folder}/h{number:02}-v{version}-{short}-{release}", release, version, kind))
    return found


@contextmanager
def running_jobs(tables: Sequence[HudiTable]) -> Iterator[HudiJobs]:
    """Start a process for each release; they end with the context."""
    releases = list(dict.fromkeys([*(table.release for table in tables), *([HUDI_RELEASE] if tables else [])]))
    jobs = [Jobs([t for t in tables if t.release == release], ApacheHudi(prepare(release))) for release in releases]
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        made = HudiJobs(list(tables), jobs, pool)
        try:
            yield made
        finally:
            for each in jobs:
                each.enough.set()
            pool.shutdown(wait=True)
            for each in jobs:
                each.peer.close()


def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run `tideline … --json` in this process and return its exit code, its document, and what it says of an error."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = run([*arguments, "--json"])
    texts = []
    for stream in streams:
        stream.seek(0)
        texts.append(stream.read().strip())
    return code, json.loads(texts[0] or "{}"), texts[1]


def rows_here(table: HudiTable) -> dict[str, int]:
    """Return what Tideline reads."""
    found = Table.open(table.base_path).read(["id", "ts"]).to_pylist()
    assert len(found) == len({row["id"] for row in found}), f"{table.name}: Tideline reads keys twice"
    return {row["id"]: row["ts"] for row in found}


def files_of_tideline(table: HudiTable) -> list[str]:
    """Return what is left of Tideline below the base path."""
    root = Path(table.base_path.removeprefix("file:"))
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if ".tideline" in path.parts or path.name == ".lock.crc")
