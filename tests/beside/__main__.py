"""Jobs of one release of Apache Hudi write a table that is shared, beside all services of `tideline up`, for so many minutes.

python -m tests.beside --release 0.15.0 --minutes 60 --jobs 2

Each job has a partition of its own, so that no job is in the way of another: what dies, dies because of Tideline. Rows that were
acknowledged and are not there, jobs that died, and the longest backlog are counted. `--without-lock N` gives the last N jobs none
of the options: a write of theirs has to be named, or nothing is planned or cleaned over it, and no row may be missing either.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.environment import BUNDLE_SHA256, HUDI_RELEASE, PeerEnvironment, prepare

from tideline_locks import open_hudi_lock
from tideline_table.errors import TidelineError
from tideline_table.hudi.instant import State
from tideline_table.table import HudiLockKind, Sharing, Table, findings_of, share_table

FOLDER = Path(".cache/beside")
W = "hoodie.datasource.write."
JOB = {
    "hoodie.table.name": "trips",
    W + "recordkey.field": "id",
    W + "partitionpath.field": "part",
    W + "precombine.field": "ts",
    W + "table.type": "MERGE_ON_READ",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.compact.inline": "false",
    "hoodie.parquet.small.file.limit": "0",
}
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("part", pa.string())])
SETTINGS = """
state_folder = {state}
tables = [{table}]
poll_interval_s = 1.0
[planner]
options = {{"hoodie.compact.inline.max.delta.commits" = "2"}}
[launcher]
workers = {{count = 1}}
[cleaner]
clean_min_commits = 3
options = {{"hoodie.cleaner.commits.retained" = "3"}}
"""
KEYS = 30
LOOK_S = 5.0
SETTLE_S = 30.0
"""Behind the last write, services have this long for what is due."""


@dataclass
class Job:
    """One job: its partition, and what it was told."""

    number: int
    options: dict[str, str]
    model: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    died: list[str] = field(default_factory=list)

    def write(self, peer: ApacheHudi, path: Path, ts: int) -> None:
        """Every third key again, and a new one. The outcome of a job that dies is not known to it: its keys may have either
        value."""
        names = [f"j{self.number}-{n:03}" for n in range(ts % 3, KEYS, 3)] + [f"j{self.number}-new{ts:05}"]
        rows = {"id": names, "ts": [ts] * len(names), "part": [f"p{self.number}"] * len(names)}
        try:
            peer.write(path, pa.table(rows, schema=SCHEMA), {**JOB, **self.options})
        except PeerFailed as error:
            self.died.append(str(error)[:2000])
            return
        self.model |= dict.fromkeys(names, ts)
        self.commits += 1


@dataclass
class Seen:
    """What a look at the table showed over time."""

    most_log_files: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    texts: set[str] = field(default_factory=set)


def _look(path: Path, seen: Seen) -> None:
    table = Table.open(str(path))
    seen.most_log_files = max([seen.most_log_files, *(len(s.applied.log_files) for s in table.state.latest_slices())])
    for found in findings_of(table):
        seen.findings[found.kind.value] += 1
        seen.texts.add(f"{found.kind}: {found.text}")


def _run_job(job: Job, environment: PeerEnvironment, path: Path, over: threading.Event) -> None:
    with ApacheHudi(environment) as peer:
        ts = 1
        while not over.is_set():
            ts += 1
            job.write(peer, path, ts)


def _missing(jobs: list[Job], rows: dict[str, int]) -> list[str]:
    """Keys that were acknowledged and are not there, or older than that."""
    return sorted(key for job in jobs for key, ts in job.model.items() if rows.get(key, -1) < ts)


def _served(table: Table) -> Counter[str]:
    own = (a for a in table.state.actions.values() if a.state is State.COMPLETED and not a.is_by_hudi)
    return Counter(f"{a.action} {a.operation}" for a in own)


def run(release: str, minutes: float, number: int, unlocked: int, folder: Path, version: int = 6) -> int:
    """Return 1 if a row is missing, a job died, or a writer is accused that took the lock."""
    rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path, settings, seen = folder / "trips", folder / "settings.toml", Seen()
    environment = prepare(release)
    jobs = [Job(n, {"hoodie.write.table.version": str(version)}) for n in range(number)]
    with ApacheHudi(environment) as peer:
        for job in jobs:
            job.write(peer, path, 1)
    shared = share_table(Table.open(str(path)), Sharing(HudiLockKind.fitting(f"file:{path}")), open_hudi_lock)
    for job in jobs[: number - unlocked]:
        job.options |= shared.hudi_options()
    settings.write_text(SETTINGS.format(state=json.dumps(str(folder / "state")), table=json.dumps(str(path))))
    over = threading.Event()
    threads = [threading.Thread(target=_run_job, args=(job, environment, path, over)) for job in jobs]
    command = [sys.executable, "-m", "tideline_cli.main", "up", "--settings", str(settings)]
    with (folder / "services.log").open("ab") as log:
        services = subprocess.Popen(command, stdout=log, stderr=log)
    started = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        while time.monotonic() - started < minutes * 60 and services.poll() is None:
            time.sleep(LOOK_S)
            try:
                _look(path, seen)
            except TidelineError as error:
                seen.texts.add(f"look: {error}")
    finally:
        over.set()
        for thread in threads:
            thread.join()
        time.sleep(SETTLE_S)
        services.terminate()
        services.wait()
    return _judge(release, jobs, path, seen, time.monotonic() - started)


def _judge(release: str, jobs: list[Job], path: Path, seen: Seen, duration_s: float) -> int:
    table = Table.open(str(path))
    found = table.read(["id", "ts"]).to_pylist()
    rows = {row["id"]: row["ts"] for row in found}
    with ApacheHudi(prepare(HUDI_RELEASE)) as judge:
        judged = judge.read(path, columns=["id", "ts"]).to_pylist()
    theirs = {row["id"]: row["ts"] for row in judged}
    twice = len(found) - len(rows) + len(judged) - len(theirs)
    missing = sorted({*_missing(jobs, rows), *_missing(jobs, theirs)})
    died = [f"job {job.number}: {text}" for job in jobs for text in job.died]
    accused = set(table.state.unlocked.values()) if all(len(job.options) > 1 for job in jobs) else set()
    print(
        f"Apache Hudi {release}, {len(jobs)} jobs, {duration_s:.0f} s: {sum(job.commits for job in jobs)} commits, "
        f"{len(rows)} rows, {len(missing)} missing, {twice} twice, {len(died)} jobs died, at most "
        f"{seen.most_log_files} log files in a slice, of Tideline {dict(_served(table))}, findings {dict(seen.findings)}, "
        f"without the lock {len(table.state.unlocked)}"
    )
    for line in [*died, *sorted(seen.texts), *missing[:20]]:
        print(f"  {line}")
    return 1 if missing or died or accused or twice or rows != theirs else 0


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", choices=[*BUNDLE_SHA256], default=HUDI_RELEASE, help="of Apache Hudi")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="processes of Apache Hudi that write all the time")
    parser.add_argument("--version", type=int, choices=(6, 8, 9), default=6, help="of the table; a release writes 6 and its own")
    parser.add_argument("--without-lock", type=int, default=0, help="so many of the jobs have none of the options")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the table, the state and the log of the services")
    chosen = parser.parse_args()
    return run(chosen.release, chosen.minutes, chosen.jobs, chosen.without_lock, chosen.folder.resolve(), chosen.version)


if __name__ == "__main__":
    sys.exit(main())
