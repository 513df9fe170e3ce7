"""What a mirror and a planner cost for many tables: start, delays after commits, memory, processor time; requests of idle tables.

The tables are made by the engine: each has its own log, uid and a committed write. Mirror and planner are processes of their
own with default intervals, on an embedded event log. Commits come from this process, each to another table; half of them are
followed by a hint.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import httpx
import pyarrow as pa
from tests.real.kafka import running_kafka
from tests.real.notifications import TOPIC, running_notifying_store
from tests.real.object_store import running_object_store
from tests.real.s3_proxy import proxy_before

from tideline_events import TIMELINE, EventLog, Hint, Subscription, Transition, decode, encode, open_event_log
from tideline_runtime.metrics import STORAGE_REQUESTS
from tideline_runtime.running import read_running
from tideline_table.action import write_rows
from tideline_table.clock import Clock, ManualClock, SystemClock
from tideline_table.config import SMALL_FILE_LIMIT
from tideline_table.storage import open_storage
from tideline_table.table import Table, TableRequest, TableType, create_table, read_identity
from tideline_table.table.identity import replace_identity
from tideline_table.writer import Operation

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("fare", pa.float64())])
ROWS = 10
LIMIT_S = 3600.0
PAUSE_S = 0.02
ASK_EVERY_S = 1.0
COMMIT_EVERY_S = 0.25
IDLE_S = 30.0
SETTLE_S = 3.0
SEED = 19
BUCKET = "fleet"
QUIET_S = 48 * 3600.0
"""More than the day in which a service that starts opens all tables."""
BEAT_S = 150.0
"""More than two intervals between heartbeats."""
TOGETHER = ("mirror", "planner", "launcher", "cleaner", "lock_service")
REQUESTS = STORAGE_REQUESTS.name
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """The process of a service at rest."""

    rss_bytes: int
    cpu_s_per_s: float
    """Processor seconds per second."""


@dataclass(frozen=True)
class Delays:
    """Seconds after a commit, sorted."""

    to_event: tuple[float, ...]
    to_plan: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """The figures of a run with so many tables."""

    tables: int
    creation_s: float
    start_s: Mapping[str, float]
    """From the start of the process to its consistent view, by service."""
    load: Mapping[str, Load]
    polled: Delays
    """Without hints: the mirror looks when its interval is over."""
    hinted: Delays


@dataclass
class Service:
    """A running service."""

    name: str
    process: subprocess.Popen[bytes]
    state: Path
    log: Path

    @property
    def url(self) -> str | None:
        found = read_running(self.state / f"{self.name}.json")
        return None if found is None or found.pid != self.process.pid else found.url

    def metric(self, name: str, label: str = "") -> float:
        """Return the sum of the samples of a metric that have a label, 0 before the service answers."""
        if self.url is None:
            return 0.0
        lines = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def rss_bytes(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@contextlib.contextmanager
def running(name: str, folder: Path, tables: str, environment: Mapping[str, str]) -> Iterator[Service]:
    """Run a service inside the `with` block."""
    given = {
        **os.environ,
        **environment,
        "TIDELINE_TABLES": json.dumps([tables]),
        "TIDELINE_STATE_FOLDER": str(folder / "state"),
        "TIDELINE_LOG_LEVEL": "warning",
    }
    log = folder / f"{name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen([sys.executable, "-m", f"tideline_{name}"], stdout=sink, stderr=sink, env=given)
        try:
            yield Service(name, process, folder / "state", log)
        finally:
            process.terminate()
            process.wait(120)


def make_table(path: str, quiet_s: float = 0.0) -> str:
    """Create a table with a write that was committed `quiet_s` ago; every other one is merge-on-read. Return its uid."""
    clock: Clock = ManualClock(datetime.now(UTC) - timedelta(seconds=quiet_s)) if quiet_s else SystemClock()
    name = path.rpartition("/")[2]
    type_ = TableType.MOR if int(name.removeprefix("t")) % 2 else TableType.COW
    create_table(path, TableRequest(name, SCHEMA, ("id",), type=type_), clock)
    table = Table.open(path, writer_id="benchmark", clock=clock)
    commit(table, 0)
    return table.uid


def commit(table: Table, number: int) -> int:
    """Write a small file; return the sequence of the commit."""
    ids = [f"{number}-{n}" for n in range(ROWS)]
    rows = pa.table([ids, [float(n) for n in range(ROWS)]], schema=SCHEMA)
    done = write_rows(table, rows, Operation.INSERT, options={SMALL_FILE_LIMIT.key: 0}, parallelism=1)
    return done.sequence


def make_tables(root: str, count: int, processes: int, quiet_s: float = 0.0) -> dict[str, str]:
    """Create the tables and return their uids by base path."""
    paths = [f"{root}/t{number:05}" for number in range(count)]
    # Not forked: clients of the object store have threads.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return dict(zip(paths, pool.map(partial(make_table, quiet_s=quiet_s), paths, chunksize=8), strict=True))


@dataclass(frozen=True)
class Start:
    """What a start of a mirror took until it had visited all tables for the first time."""

    seconds: float
    cpu_s: float


def make_copies(root: str, count: int, commits: int = 1, quiet_s: float = 0.0) -> dict[str, str]:
    """Make a table with so many commits, and copies of it with identities of their own: faster than as many writes.

    Return the uids of the copies by name.
    """
    first = f"{root}/t00000"
    make_table(first, quiet_s)
    table = Table.open(first, writer_id="benchmark")
    for number in range(1, commits):
        commit(table, number)
    uids: dict[str, str] = {}
    for number in range(1, count):
        path = f"{root}/t{number:05}"
        shutil.copytree(first, path, copy_function=os.link)
        storage = open_storage(path)
        uids[f"t{number:05}"] = replace_identity(storage, SystemClock(), read_identity(storage), path, in_place=False).uid
    return uids


def tell(url: str, uids: Mapping[str, str]) -> None:
    """Publish the states of copies as a mirror does, from that of the first table: a mirror takes 7 ms of processor for each."""
    with contextlib.closing(open_event_log(url, clock=SystemClock())) as events:
        (first,) = events.table_records()
        since = datetime.now(UTC) - timedelta(seconds=QUIET_S)  # log entries have the time of the machine
        publisher = events.publisher("mirror-0-of-1")
        with contextlib.closing(publisher):
            for at in range(0, len(uids), 1000):
                tables = [
                    replace(first.table, uid=uids[name], base_path=first.table.base_path.replace("t00000", name))
                    for name in sorted(uids)[at : at + 1000]
                ]
                publisher.publish(*(encode(replace(first, table=table, quiet_since=since)) for table in tables))


def make_quiet(url: str) -> None:
    """Publish the states of all tables again as a mirror does, with a last step of two days ago."""
    with contextlib.closing(open_event_log(url, clock=SystemClock())) as events:
        since, records = datetime.now(UTC) - timedelta(seconds=QUIET_S), list(events.table_records())
        with contextlib.closing(events.publisher("mirror-0-of-1")) as publisher:
            for at in range(0, len(records), 1000):
                publisher.publish(*(encode(replace(record, quiet_since=since)) for record in records[at : at + 1000]))


def measure_starts(count: int, folder: Path) -> tuple[Start, Start]:
    """Return what the start of a mirror takes that publishes all tables, and of one that finds their states published."""
    make_copies(f"{folder}/tables", count)
    url = f"sqlite://{folder}/state/events.db"
    first, again = (measure_start(folder, f"{folder}/tables/*", url) for _ in range(2))
    with contextlib.closing(open_event_log(url, clock=SystemClock())) as events:
        assert sum(1 for _ in events.table_records()) == count
    return first, again


@dataclass(frozen=True)
class Idle:
    """What a mirror and a planner take for tables that nobody writes."""

    seconds: float
    """From the start of the process until it has visited all tables once. The mirror has their states, the planner the mirror's."""
    cpu_s: float
    rss_bytes: int
    """After further visits."""
    rest_cpu_s_per_s: float


def measure_idle(count: int, folder: Path, settle_s: float) -> dict[str, Idle]:
    """Return what the start of a mirror and of a planner take over quiet tables whose states are published, and their memory."""
    uids, url = make_copies(f"{folder}/tables", count, quiet_s=QUIET_S), f"sqlite://{folder}/state/events.db"
    pattern, environment = f"{folder}/tables/*", {"TIDELINE_EVENT_LOG": url}
    measure_start(folder, f"{folder}/tables/t00000", url)
    tell(url, uids)
    found = {}
    with contextlib.ExitStack() as stack:
        for name in ("mirror", "planner"):
            began_s = time.monotonic()
            service = stack.enter_context(running(name, folder, pattern, environment))
            wait_until(partial(has_visited_all, service), service, ASK_EVERY_S)
            found[name] = service, time.monotonic() - began_s, service.cpu_s()
        time.sleep(settle_s)
        load = at_rest([service for service, _, _ in found.values()])
    return {name: Idle(s, cpu_s, load[name].rss_bytes, load[name].cpu_s_per_s) for name, (_, s, cpu_s) in found.items()}


def measure_start(folder: Path, pattern: str, url: str, environment: Mapping[str, str] | None = None) -> Start:
    """Start a mirror on the event log at `url`, wait until it has visited all tables once, and end it."""
    began_s = time.monotonic()
    with running("mirror", folder, pattern, {**(environment or {}), "TIDELINE_EVENT_LOG": url}) as mirror:
        # Its answer holds a line of each table: asked all the time, the mirror would do little else.
        wait_until(partial(has_visited_all, mirror), mirror, ASK_EVERY_S)
        return Start(time.monotonic() - began_s, mirror.cpu_s())


def has_visited_all(service: Service) -> bool:
    return service.metric("tideline_runtime_ticks_total", 'outcome="done"') >= 1


def measure(count: int, samples: int, folder: Path, cores: int) -> Measured:
    """Make the tables below `folder` and measure one mirror and one planner on them."""
    root = folder / "tables"
    began_s = time.monotonic()
    uids = make_tables(str(root), count, cores)
    creation_s = time.monotonic() - began_s
    pattern = f"{root}/*"
    start_s: dict[str, float] = {}
    planner_settings = {"TIDELINE_PLANNER__CLUSTERING_MIN_FILES": "2", "TIDELINE_PLANNER__CLUSTERING_MIN_COMMITS": "2"}
    with contextlib.ExitStack() as stack:
        mirror = stack.enter_context(running("mirror", folder, pattern, {}))
        began_s = time.monotonic()
        events = stack.enter_context(contextlib.closing(open_event_log(f"sqlite://{folder}/state/events.db", clock=SystemClock())))
        events.ensure_topics()
        last = uids[max(uids)]
        # The mirror visits tables in the order of their paths.
        wait_until(lambda: events.cursor(last) is not None, mirror)
        start_s["mirror"] = time.monotonic() - began_s
        planner = stack.enter_context(running("planner", folder, pattern, planner_settings))
        began_s = time.monotonic()
        wait_until(lambda: planner.metric("tideline_planner_verdicts", 'service="clustering"') >= count, planner)
        start_s["planner"] = time.monotonic() - began_s
        time.sleep(SETTLE_S)
        load = at_rest((mirror, planner))
        chosen = random.Random(SEED).sample(sorted(uids), 2 * samples)
        polled = delays(chosen[:samples], uids, events, is_hinted=False)
        hinted = delays(chosen[samples:], uids, events, is_hinted=True)
        _check(uids, events)
    return Measured(count, creation_s, start_s, load, polled, hinted)


def at_rest(services: Sequence[Service]) -> dict[str, Load]:
    """Return memory and processor time of services while nothing happens."""
    before = {service.name: service.cpu_s() for service in services}
    began_s = time.monotonic()
    time.sleep(IDLE_S)
    took_s = time.monotonic() - began_s
    return {s.name: Load(s.rss_bytes(), (s.cpu_s() - before[s.name]) / took_s) for s in services}


def measure_notified(count: int, samples: int, folder: Path, cores: int) -> tuple[float, ...]:
    """Return the seconds from commits to quiet tables in MinIO to their events, told by MinIO's notifications alone, sorted."""
    with running_kafka(folder / "kafka") as kafka, running_notifying_store(kafka, BUCKET) as store, contextlib.ExitStack() as stack:
        os.environ.update({**store.settings, "AWS_ALLOW_HTTP": "true"})
        uids = make_tables(f"s3://{BUCKET}/tables", count, cores)
        url = f"sqlite://{folder}/state/events.db"
        measure_start(folder, f"s3://{BUCKET}/tables/*", url)
        make_quiet(url)
        told = {"TIDELINE_MIRROR__NOTIFICATIONS": f"{kafka.url}/{TOPIC}", "TIDELINE_MIRROR__FRESHNESS_S": "3600"}
        mirror = stack.enter_context(running("mirror", folder, f"s3://{BUCKET}/tables/*", told))
        events = stack.enter_context(contextlib.closing(open_event_log(url, clock=SystemClock())))
        wait_until(lambda: mirror.metric("tideline_runtime_ticks_total", 'outcome="done"') >= 2, mirror, ASK_EVERY_S)
        found = delays(random.Random(SEED).sample(sorted(uids), samples), uids, events, is_hinted=False, has_planner=False)
        _check(uids, events)
        return found.to_event


def delays(paths: Sequence[str], uids: Mapping[str, str], events: EventLog, *, is_hinted: bool, has_planner: bool = True) -> Delays:
    """Commit to each table and return how long its event and its plan took.

    The commit makes a clustering due, because it is the second small file of its table.
    """
    tables = {uids[path]: Table.open(path, writer_id="benchmark") for path in paths}
    committed: dict[str, tuple[int, float, datetime]] = {}
    seen: dict[str, float] = {}
    waiting = list(tables.values())
    next_s, deadline_s = time.monotonic(), time.monotonic() + LIMIT_S
    publisher = events.publisher("benchmark")
    with contextlib.closing(publisher), contextlib.closing(at_end(events)) as topic:
        while len(seen) < len(tables):
            assert time.monotonic() < deadline_s, f"{len(tables) - len(seen)} commits have no event"
            if waiting and time.monotonic() >= next_s:
                table = waiting.pop()
                sequence = commit(table, 1)
                committed[table.uid] = sequence, time.monotonic(), datetime.now(UTC)
                if is_hinted:
                    publisher.publish(encode(Hint(table.uid, datetime.now(UTC), table.base_path, sequence, "committed")))
                next_s = time.monotonic() + COMMIT_EVERY_S
            for event in map(decode, topic.poll(PAUSE_S)):
                if isinstance(event, Transition) and committed.get(event.table_uid, (0,))[0] == event.sequence:
                    seen[event.table_uid] = time.monotonic() - committed[event.table_uid][1]
    plans = [_plan_delay_s(table, committed[uid][2]) for uid, table in tables.items()] if has_planner else []
    return Delays(tuple(sorted(seen.values())), tuple(sorted(plans)))


def _plan_delay_s(table: Table, committed: datetime) -> float:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        table.refresh()
        for plan in table.state.pending_clusterings():
            return (datetime.fromisoformat(plan.since) - committed).total_seconds()
        time.sleep(0.2)
    raise AssertionError(f"{table.base_path} has no plan")


def at_end(events: EventLog) -> Subscription:
    """Return a subscription that has read what is there."""
    topic = events.subscribe([TIMELINE.name], f"benchmark-{time.monotonic_ns()}")
    while topic.poll(0):
        continue
    return topic


def _check(uids: Mapping[str, str], events: EventLog) -> None:
    """Check that the event log holds each entry of each table once."""
    found: dict[str, list[int]] = {}
    with contextlib.closing(events.subscribe([TIMELINE.name], "benchmark-check")) as topic:
        while records := topic.poll(0):
            for event in map(decode, records):
                if isinstance(event, Transition):
                    found.setdefault(event.table_uid, []).append(event.sequence)
    wrong = [uid for uid in uids.values() if found.get(uid) != list(range(1, len(found.get(uid, ())) + 1))]
    assert not wrong, f"{len(wrong)} tables do not have each entry as one event"


@dataclass(frozen=True)
class Requests:
    """Storage requests per idle table and hour of a service beside all others: by kind, as a proxy of its own before the object
    store counts them, and by the metric of the service."""

    seen: Mapping[str, float]
    by_metric: float


def requests_per_hour(count: int, folder: Path, settle_s: float, duration_s: float, cores: int) -> dict[str, Requests]:
    """Return the storage requests of each service while all run together on a real object store; the tables are quiet.

    Counted `settle_s` after the start: each service opens all tables once, in turns.
    """
    with running_object_store("minio") as server, contextlib.ExitStack() as stack:
        server.make_bucket(BUCKET)
        os.environ.update({**server.settings, "AWS_ALLOW_HTTP": "true"})
        uids = make_tables(f"s3://{BUCKET}/tables", count, cores)
        url = f"sqlite://{folder}/state/events.db"
        measure_start(folder, f"s3://{BUCKET}/tables/*", url)
        make_quiet(url)
        proxies = {name: stack.enter_context(proxy_before(server)) for name in TOGETHER}
        services = {
            name: stack.enter_context(
                running(name, folder, f"s3://{BUCKET}/tables/*", {**proxy.settings, "AWS_ALLOW_HTTP": "true"})
            )
            for name, proxy in proxies.items()
        }
        # Until the first heartbeat the services ask for themselves.
        wait_until(lambda: services["mirror"].metric("tideline_runtime_ticks_total", 'outcome="done"') >= 2, services["mirror"])
        time.sleep(max(BEAT_S, settle_s))
        before = {name: (len(proxies[name].requests), service.metric(REQUESTS)) for name, service in services.items()}
        began_s = time.monotonic()
        time.sleep(duration_s)
        found: dict[str, Requests] = {}
        for name, service in services.items():
            per_table_and_hour = 3600 / (time.monotonic() - began_s) / len(uids)
            asked = Counter("LIST" if "list-type" in r.query else r.method for r in proxies[name].requests[before[name][0] :])
            by_metric = service.metric(REQUESTS) - before[name][1]
            found[name] = Requests({k: n * per_table_and_hour for k, n in sorted(asked.items())}, by_metric * per_table_and_hour)
    return found


def wait_until(met: Callable[[], bool], service: Service, pause_s: float = PAUSE_S) -> None:
    """Ask until the answer is true. Raises `AssertionError` if the service ends, and after an hour."""
    deadline_s = time.monotonic() + LIMIT_S
    while not met():
        assert service.process.poll() is None, f"{service.name} ended: {service.log.read_text()[-2000:]}"
        assert time.monotonic() < deadline_s, f"{service.name} is not ready after {LIMIT_S:g} s"
        time.sleep(pause_s)
