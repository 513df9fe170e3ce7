"""A table of Apache Hudi's jobs is taken over step by step while they write: observed, checked, shared, served, left.

After each step the rows equal those that the jobs acknowledged, here and by Apache Hudi 1.2.0. No job dies, and one that has not
been given the lock is found out.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import HUDI_RELEASE, prepare
from tests.simulation.faults import SAMPLE_STEP

from tideline_locks import open_hudi_lock
from tideline_table.action import (
    NotDue,
    compact_slice,
    leave,
    reappend_hidden,
    request_clean,
    request_compaction,
    run_clean,
    run_compaction,
    write_rows,
)
from tideline_table.coordination import SharedTimeline
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import (
    FindingKind,
    Table,
    WriterVerdict,
    find_writers,
    findings_of,
    resume_services,
    share_table,
    writer_names,
)
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

RELEASES = [HUDI_RELEASE, *(("1.0.2", "1.1.1") if SAMPLE_STEP == 1 else ())]
TRIES = 10
"""To stop a job between its inflight file and its completion, which lies some tenths of a second behind."""
W = "hoodie.datasource.write."
JOB = {
    "hoodie.table.name": "trips",
    W + "recordkey.field": "id",
    W + "partitionpath.field": "city",
    W + "precombine.field": "ts",
    W + "table.type": "MERGE_ON_READ",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.compact.inline": "false",
    "hoodie.parquet.small.file.limit": "0",  # updates go to log files, also beside inserts
}
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("city", pa.string())])
SERVICES: dict[str, object] = {"hoodie.compact.inline.max.delta.commits": 1, "hoodie.cleaner.commits.retained": 1}
DUE = {"hoodie.compact.inline.max.delta.commits": "1"}
SLOW = {"ts": "if(id like 'slow%', ts + coalesce(cast(reflect('java.lang.Thread', 'sleep', 2000L) as bigint), 0), ts)"}
"""The source of the rows takes two seconds, between the instant of a write and its inflight file."""
WAIT_S = 300.0


class Jobs:
    """Jobs of one release on one table, and the rows that they acknowledged."""

    def __init__(self, peer: ApacheHudi, judge: ApacheHudi, path: Path) -> None:
        self.peer, self.judge, self.path = peer, judge, path
        self.options: dict[str, str] = {}
        self.model: dict[str, int] = {}
        self.ts = 0

    def write(self, numbers: Iterable[int], *, metadata: bool = False, slow: bool = False, **more: str) -> None:
        """Rows of two partitions. With `slow`, one of them comes late."""
        self.ts += 1
        names = [*(f"k{n:02}" for n in numbers), *(["slow"] if slow else [])]
        columns = {"id": names, "ts": [self.ts] * len(names), "city": [("paris", "rome")[len(n) % 2] for n in names]}
        options = {**JOB, **self.options, **{key.replace("__", "."): value for key, value in more.items()}}
        self.peer.write(self.path, pa.table(columns, schema=SCHEMA), options, metadata=metadata, computed=SLOW if slow else None)
        self.model |= dict.fromkeys(names, self.ts)

    def agree(self) -> None:
        """Both sides read what was acknowledged."""
        here = Table.open(str(self.path)).read(["id", "ts"])
        there = self.judge.read(self.path, columns=["id", "ts"])
        for found in (here, there):
            rows = found.to_pylist()
            assert len(rows) == len(self.model)
            assert {row["id"]: row["ts"] for row in rows} == self.model

    def pending(self) -> list[tuple[str, State]]:
        """Writes of the timeline that did not complete."""
        listed = Table.open(str(self.path)).state.pending()
        return [(a.instant, a.state) for a in listed if a.action in WRITE_ACTIONS and not a.is_clustering]


def _until(happened: Callable[[], object], job: Future[None] | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        if job is not None and job.done() and not happened():
            job.result()
            raise AssertionError("the job ended too early")
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_pending(path: Path, suffix: str) -> bool:
    """Whether a write has this file and is not completed."""
    names = {found.name for found in (path / ".hoodie").iterdir()}
    begun = {name.partition(".")[0] for name in names if name.endswith(f".deltacommit.{suffix}")}
    return any(f"{instant}.deltacommit" not in names for instant in begun)


@contextmanager
def _running(job: Callable[[], None], path: Path) -> Iterator[Future[None]]:
    """A job in a thread of its own, once it has its instant. It must not fail."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job)
        _until(lambda: _is_pending(path, "requested"), running)
        yield running
        running.result(WAIT_S)


def _opened(path: Path, **options: object) -> Table:
    return Table.open(str(path), options={**SERVICES, **options}, hudi_lock=open_hudi_lock)


def _snapshot(path: Path) -> Mapping[str, int]:
    return {str(found): found.stat().st_mtime_ns for found in path.rglob("*")}


def _serve(path: Path) -> None:
    """Compaction and clean, as the services run them."""
    table = _opened(path)
    assert isinstance(request_compaction(table), str)
    assert run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks]) is not None
    if isinstance(request_clean(table), str):
        run_clean(table)


def _kinds(table: Table) -> set[FindingKind]:
    return {found.kind for found in findings_of(table)}


@pytest.mark.parametrize("release", RELEASES)
def test_from_observed_to_left(apache_hudi: ApacheHudi, workdir: Path, release: str) -> None:
    path = workdir / "trips"
    if release == HUDI_RELEASE:
        _story(Jobs(apache_hudi, apache_hudi, path), release)
        return
    with ApacheHudi(prepare(release)) as peer:
        _story(Jobs(peer, apache_hudi, path), release)


def test_from_observed_to_left_by_jobs_of_an_older_release(apache_hudi: ApacheHudi, older_hudi: ApacheHudi, workdir: Path) -> None:
    _story(Jobs(older_hudi, apache_hudi, workdir / "trips"), "0.15.0")


def _story(jobs: Jobs, release: str) -> None:
    path = jobs.path
    jobs.write(range(4), metadata=True)
    jobs.write(range(2, 6), metadata=True)
    _observe_and_check(jobs, release)
    observed = Table.open(str(path))
    sharing = Sharing(HudiLockKind.FILE_SYSTEM)
    shared = share_table(observed, sharing, open_hudi_lock, writers=writer_names(observed))
    jobs.agree()
    jobs.options = dict(shared.hudi_options())
    _nothing_is_planned_on_probation(jobs)
    jobs.write(range(4, 8))
    jobs.agree()
    _opened(path).timeline.heal(0.0)  # as the mirror does
    assert _kinds(_opened(path)) == set()
    _nothing_is_planned_over_a_job(jobs)
    _serve(path)
    jobs.agree()
    jobs.write(range(6, 10))
    jobs.agree()
    _a_job_without_the_lock(jobs)
    _serve(path)
    jobs.agree()
    if jobs.peer is not jobs.judge:
        _a_job_behind_a_compaction(jobs)
    _the_jobs_archive_our_cleans(jobs)
    leave(_opened(path), open_hudi_lock)
    assert not [found for found in (path / ".hoodie" / ".tideline").rglob("*") if found.is_file()]
    assert not (path / ".hoodie" / ".lock.crc").exists()
    jobs.agree()
    jobs.options = {}
    jobs.write(range(8, 12), metadata=True)
    jobs.agree()
    if not release.startswith("0."):
        _a_job_that_upgrades(jobs, "8" if release.startswith("1.0.") else "9")


def _observe_and_check(jobs: Jobs, release: str) -> None:
    before = _snapshot(jobs.path)
    jobs.agree()
    found = find_writers(Table.open(str(jobs.path)))
    assert _snapshot(jobs.path) == before
    (writer,) = found.writers
    assert writer.release.value == ("0.x" if release.startswith("0.") else "1.x")
    assert writer.verdict is WriterVerdict.LACKS_OPTIONS
    assert {"hoodie.metadata.enable", "hoodie.write.lock.provider", "hoodie.cleaner.policy.failed.writes"} <= set(writer.lacks)


def _nothing_is_planned_on_probation(jobs: Jobs) -> None:
    """A job that takes a lock elsewhere does not end it. It completes while Tideline does not have the lock: nothing proves it."""
    elsewhere = jobs.path.parent / "beside"
    elsewhere.mkdir()
    jobs.write(range(3, 7), hoodie__write__lock__filesystem__path=str(elsewhere))
    table = _opened(jobs.path)
    table.timeline.heal(0.0)
    answer = request_compaction(table)
    assert isinstance(answer, NotDue)
    assert "seen 0 of 1 writers" in answer.reason
    assert _kinds(table) == {FindingKind.PROBATION}
    jobs.agree()


def _nothing_is_planned_over_a_job(jobs: Jobs) -> None:
    with _running(lambda: jobs.write([4, 20], slow=True), jobs.path):
        answer = request_compaction(_opened(jobs.path))
        assert isinstance(answer, NotDue)
        assert "of Apache Hudi is" in answer.reason
    jobs.agree()
    assert _kinds(_opened(jobs.path)) == set()


def _the_jobs_archive_our_cleans(jobs: Jobs) -> None:
    """Releases before 1.0 read the plan in the inflight file of a clean, and their job fails on an empty one."""
    for number in range(4):
        jobs.write([number])
        _serve(jobs.path)
    timeline = jobs.path / ".hoodie"
    first = min(timeline.glob("*.clean.inflight"))
    archival = {"hoodie__keep__min__commits": "2", "hoodie__keep__max__commits": "3", "hoodie__cleaner__commits__retained": "1"}
    jobs.write([5], **archival)
    assert not first.exists(), sorted(found.name for found in timeline.glob("*.clean"))
    jobs.agree()


@contextmanager
def _standing_still(jobs: Jobs, numbers: list[int], **options: str) -> Iterator[Callable[[], None]]:
    """A job whose process is stopped behind its inflight file. What is yielded lets it go on, and waits until it has completed."""
    group = jobs.peer.process_id
    for _ in range(TRIES):
        with _running(lambda: jobs.write(numbers, slow=True, **options), jobs.path) as job:
            _until(lambda: _is_pending(jobs.path, "inflight") or job.done(), job)
            os.killpg(group, signal.SIGSTOP)
            try:
                if not _is_pending(jobs.path, "inflight"):
                    continue

                def go_on(job: Future[None] = job) -> None:
                    os.killpg(group, signal.SIGCONT)
                    _until(lambda: not _is_pending(jobs.path, "requested"), job)

                yield go_on
                return
            finally:
                os.killpg(group, signal.SIGCONT)
    raise AssertionError(f"the job completed {TRIES} times before it was stopped")


def _a_job_without_the_lock(jobs: Jobs) -> None:
    """It takes a lock elsewhere, and completes while Tideline has the lock of the table."""
    elsewhere = jobs.path.parent / "elsewhere"
    elsewhere.mkdir()
    ours = _opened(jobs.path)
    with (
        _standing_still(jobs, [5, 21], hoodie__write__lock__filesystem__path=str(elsewhere)) as go_on,
        _within_a_step(ours, go_on),
    ):
        rows = {"id": ["own"], "ts": [1], "city": ["oslo"]}
        write_rows(ours, pa.table(rows, schema=SCHEMA), Operation.UPSERT)
    jobs.model["own"] = 1
    jobs.agree()
    services = _opened(jobs.path)
    assert FindingKind.UNLOCKED_WRITER in _kinds(services)
    for request in (request_compaction, request_clean):
        answer = request(services)
        assert isinstance(answer, NotDue)
        assert "without the lock" in answer.reason
    jobs.write([6, 22])
    assert len(resume_services(services)) == 1
    jobs.agree()
    assert _kinds(_opened(jobs.path)) == set()


def _a_job_behind_a_compaction(jobs: Jobs) -> None:
    """Another job of Apache Hudi compacts while it writes, which hides its rows from all readers; they are appended again."""
    jobs.write(range(4, 8))
    before = dict(jobs.model)
    with _standing_still(jobs, [6, 7], hoodie__write__concurrency__mode="single_writer") as go_on:
        jobs.judge.sql(f"call run_compaction(op => 'scheduleAndExecute', path => '{jobs.path}')", DUE | jobs.options)
        go_on()
    acknowledged = jobs.model
    jobs.model = before | {"slow": acknowledged["slow"]}  # its file group had nothing to compact
    table = _opened(jobs.path)
    table.timeline.heal(0.0)
    assert FindingKind.HIDDEN_COMMIT in _kinds(table)
    jobs.agree()
    (done,) = reappend_hidden(table)
    assert (done.rows, done.older) == (2, 0)
    jobs.model = acknowledged
    jobs.agree()
    resume_services(_opened(jobs.path))
    assert _kinds(_opened(jobs.path)) == set()


@contextmanager
def _within_a_step(table: Table, act: Callable[[], object]) -> Iterator[None]:
    """`act()` happens once, while a step of `table` has the lock and has listed the timeline."""
    timeline = table.timeline
    assert isinstance(timeline, SharedTimeline)
    take_step, once = timeline._take_step, threading.Lock()

    def first(*arguments: Any) -> None:
        if once.acquire(blocking=False):
            act()
        take_step(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timeline, "_take_step", first)
        yield


def _a_job_that_upgrades(jobs: Jobs, version: str) -> None:
    """A job with the defaults of 1.x, whose newest version is `version`: the shared table is refused by name, no row is lost."""
    share_table(Table.open(str(jobs.path)), Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    ours = _opened(jobs.path)
    jobs.write([7, 23], metadata=True, hoodie__write__table__version=version, hoodie__write__auto__upgrade="true")
    assert _kinds(ours) == {FindingKind.REFUSED}
    (found,) = findings_of(ours)
    assert "downgrade" in found.text
    jobs.agree()
