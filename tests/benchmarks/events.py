"""`python -m tests.benchmarks.events`: events of many tables on a real Kafka, with a real mirror and a documented consumer.

Delays: the benchmark commits to one table after the other; the consumer of `tests.benchmarks.event_reader`, another process,
notes when each commit arrives. Without hints the mirror finds a commit at its next look; the interval is the default. Rebuilding:
two topics are deleted under a running mirror, which publishes the histories of all tables again; the rate is that between the
first and the last record, by the times that the records carry. Starts: a mirror meets many tables with empty topics, and again
with full ones.

Processor seconds stand beside those of the clock: on a machine with other work only they are comparable.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table as Lines
from tests.benchmarks.control_plane import (
    LIMIT_S,
    TICKS_PER_S,
    Service,
    commit,
    make_copies,
    make_tables,
    measure_start,
    running,
    wait_until,
)
from tests.fleet.checks import percentile
from tests.real.kafka import KafkaNode, running_kafka
from tests.real.object_store import running_object_store

from tideline_events import TABLES, TIMELINE, EventLog, EventLogUnavailable, Hint, Transition, decode, encode, open_event_log
from tideline_events.envelope import RECORDED_TIME
from tideline_table.clock import SystemClock
from tideline_table.storage import open_storage
from tideline_table.table import Table, read_identity
from tideline_table.table.identity import replace_identity

BUCKET = "events"
HINTED_EVERY_S = 0.25
POLLED_EVERY_S = 0.37
"""No divisor of the mirror's interval, so that commits fall anywhere in it."""
SETTLE_S = 5.0
UPLOADS = 16
DONE = ("tideline_runtime_ticks_total", 'outcome="done"')


@dataclass(frozen=True)
class Figures:
    """One line of the report."""

    what: str
    result: str
    seconds: float | None = None
    mirror_cpu_s: float | None = None
    broker_cpu_s: float | None = None

    def cells(self) -> tuple[str, ...]:
        used = (self.seconds, self.mirror_cpu_s, self.broker_cpu_s)
        return (self.what, self.result, *("" if each is None else f"{each:.1f}" for each in used))


class Reader:
    """The consumer process, and what it got so far."""

    def __init__(self, url: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.event_reader", url, "reader"]
        self._log = (folder / "reader.log").open("wb")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.arrived: dict[tuple[str, int], float] = {}
        self.twice: Counter[tuple[str, int]] = Counter()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            uid, sequence, at_s = line.split()
            key = uid, int(sequence)
            self.twice[key] += key in self.arrived
            self.arrived.setdefault(key, float(at_s))

    def wait_for(self, keys: Sequence[tuple[str, int]]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not all(key in self.arrived for key in keys):
            assert self._process.poll() is None, "the consumer ended"
            assert time.monotonic() < deadline_s, "commits have no event"
            time.sleep(0.1)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._thread.join()
        self._log.close()


def delays(
    place: str, root: str, kafka: KafkaNode, folder: Path, samples: int, environment: Mapping[str, str]
) -> Iterator[Figures]:
    """Yield the delays of commits to tables below `root`, each to another table, without and with hints."""
    url = f"{kafka.url}?prefix=delays-{place}."
    uids = make_tables(root, 2 * samples, os.cpu_count() or 1)
    tables = {uid: Table.open(path, writer_id="benchmark") for path, uid in uids.items()}
    named = {**environment, "TIDELINE_EVENT_LOG": url}
    with running("mirror", folder, f"{root}/*", named) as mirror:
        wait_until(lambda: mirror.metric(*DONE) >= 1, mirror)
        with (
            contextlib.closing(Reader(url, folder)) as reader,
            contextlib.closing(open_event_log(url, clock=SystemClock())) as events,
        ):
            # The consumer starts behind the newest event: it has joined when it gets one.
            probe = next(iter(tables.values()))
            joined = [(probe.uid, commit(probe, 1))]
            wait_for_any(reader, probe, joined)
            with contextlib.closing(events.publisher("benchmark")) as publisher:
                for is_hinted, chosen in ((False, list(tables)[1:samples]), (True, list(tables)[samples:])):
                    before = mirror.cpu_s(), kafka_cpu_s(kafka), time.monotonic()
                    committed = {}
                    for uid in chosen:
                        sequence = commit(tables[uid], 1)
                        committed[uid, sequence] = time.monotonic()
                        if is_hinted:
                            publisher.publish(encode(Hint(uid, datetime.now(UTC), tables[uid].base_path, sequence, "committed")))
                        time.sleep(HINTED_EVERY_S if is_hinted else POLLED_EVERY_S)
                    reader.wait_for(list(committed))
                    took = sorted(reader.arrived[key] - at_s for key, at_s in committed.items())
                    assert not sum(reader.twice.values()), "the consumer got a step twice"
                    yield Figures(
                        f"commit to consumer, {'with' if is_hinted else 'without'} hints, {place}, {len(took)} commits",
                        f"p50 {percentile(took, 0.5):.3f} s, p99 {percentile(took, 0.99):.3f} s",
                        time.monotonic() - before[2],
                        mirror.cpu_s() - before[0],
                        kafka_cpu_s(kafka) - before[1],
                    )


def wait_for_any(reader: Reader, table: Table, tried: list[tuple[str, int]]) -> None:
    """Commit to `table` until the consumer gets one of the commits, then wait for the last one."""
    deadline_s = time.monotonic() + LIMIT_S
    while not any(key in reader.arrived for key in tried):
        assert time.monotonic() < deadline_s, "the consumer gets nothing"
        time.sleep(SETTLE_S)
        tried.append((table.uid, commit(table, len(tried) + 1)))
    reader.wait_for(tried[-1:])


def rebuilding(kafka: KafkaNode, folder: Path, count: int, commits: int) -> Figures:
    """Return what it takes until all events of `count` tables are there again after their topics were deleted."""
    prefix = "rebuilding."
    url = f"{kafka.url}?prefix={prefix}"
    make_copies(f"{folder}/tables", count, commits)
    with contextlib.closing(open_event_log(url, clock=SystemClock())) as events:
        events.ensure_topics()
        with running("mirror", folder, f"{folder}/tables/*", {"TIDELINE_EVENT_LOG": url}) as mirror:
            wait_until(lambda: mirror.metric(*DONE) >= 1, mirror)
            heads = {record.table_uid: record.sequence for record in events.table_records()}
            assert len(heads) == count
            before = mirror.cpu_s(), kafka_cpu_s(kafka), time.monotonic()
            names = [topic.name.replace("tideline.", prefix) for topic in (TIMELINE, TABLES)]
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
            for future in admin.delete_topics(names, operation_timeout=30).values():
                future.result()
            recorded = _again(events, heads, mirror)
            used = time.monotonic() - before[2], mirror.cpu_s() - before[0], kafka_cpu_s(kafka) - before[1]
    # The first publication waits for the new topic; all records of one have one time.
    later = [at for at in recorded if at > recorded[0]]
    after = [at for at in later if at > later[0]]
    assert after, "too few events for a rate: --rebuilt-tables, --rebuilt-commits"
    what = f"topics deleted and published again, {count} tables, {len(recorded)} events"
    return Figures(
        what, f"{len(after) / (after[-1] - later[0]).total_seconds():.0f} events/s behind the first two publications", *used
    )


def _again(events: EventLog, heads: Mapping[str, int], mirror: Service) -> list[datetime]:
    """Read the new topic until it has every step of every table, each once; return when they were published, in order."""
    missing, found = sum(heads.values()), Counter[str]()
    recorded: list[datetime] = []
    deadline_s = time.monotonic() + LIMIT_S
    while missing:
        # Until the topic is there again, and if it was the one that is being deleted.
        with contextlib.suppress(EventLogUnavailable), contextlib.closing(events.tail([TIMELINE.name])) as tail:
            missing, found, recorded = sum(heads.values()), Counter(), []
            quiet_since_s = time.monotonic()
            while missing and time.monotonic() < quiet_since_s + SETTLE_S:
                for record in tail.poll(1.0):
                    event = decode(record)
                    assert isinstance(event, Transition)
                    found[event.table_uid] += 1
                    assert event.sequence == found[event.table_uid], f"{event.table_uid}: {event.sequence}"
                    recorded.append(datetime.fromisoformat(record.header(RECORDED_TIME) or ""))
                    missing -= 1
                    quiet_since_s = time.monotonic()
        assert mirror.process.poll() is None, mirror.log.read_text()[-2000:]
        assert time.monotonic() < deadline_s, f"{missing} events are missing"
    assert found == heads
    return sorted(recorded)


def starts(place: str, root: str, kafka: KafkaNode, folder: Path, count: int, environment: Mapping[str, str]) -> Iterator[Figures]:
    """Yield what a start of a mirror over the tables below `root` takes until it has visited all of them."""
    url = f"{kafka.url}?prefix=starts-{place}."
    for title in ("first start, empty topics", "restart, full topics"):
        before_s = kafka_cpu_s(kafka)
        start = measure_start(folder, f"{root}/*", url, environment)
        used_s = kafka_cpu_s(kafka) - before_s
        with contextlib.closing(open_event_log(url, clock=SystemClock())) as events:
            assert sum(1 for _ in events.table_records()) == count
        yield Figures(
            f"{title}, {place}, {count} tables",
            f"{1000 * start.seconds / count:.2f} ms a table",
            start.seconds,
            start.cpu_s,
            used_s,
        )


def upload_copies(root: str, count: int, folder: Path) -> None:
    """Put copies of one table below `root`, an address in an object store, each with an identity of its own."""
    make_copies(f"{folder}/original", 1)
    source = open_storage(f"{folder}/original/t00000")
    identity = read_identity(source)
    files = {stat.path: source.read(stat.path) for stat in source.list_objects("")}

    def upload(number: int) -> None:
        path = f"{root}/t{number:05}"
        storage = open_storage(path)
        for name, content in files.items():
            storage.put(name, content)
        replace_identity(storage, SystemClock(), identity, path, in_place=False)

    with ThreadPoolExecutor(UPLOADS) as pool:
        assert sum(1 for _ in pool.map(upload, range(count))) == count


def kafka_cpu_s(kafka: KafkaNode) -> float:
    """Return the processor seconds of the broker so far."""
    fields = Path(f"/proc/{kafka.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def measure(given: argparse.Namespace, folder: Path) -> Iterator[Figures]:
    """Yield the figures of all parts."""
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(folder / "kafka"))
        stores: dict[str, tuple[str, dict[str, str]]] = {"disk": (f"{folder}/disk", {})}
        if "minio" in given.stores:
            server = stack.enter_context(running_object_store("minio"))
            server.make_bucket(BUCKET)
            environment = {**server.settings, "AWS_ALLOW_HTTP": "true"}
            os.environ.update(environment)
            stores["minio"] = f"s3://{BUCKET}", environment
        for place in given.stores if given.samples else ():
            yield from delays(
                place, f"{stores[place][0]}/delays", kafka, _made(folder / f"delays-{place}"), given.samples, stores[place][1]
            )
        if given.rebuilt_tables:
            yield rebuilding(kafka, _made(folder / "rebuilding"), given.rebuilt_tables, given.rebuilt_commits)
        for place in given.stores if given.tables else ():
            root, environment = stores[place]
            inner = _made(folder / f"starts-{place}")
            if place == "disk":
                make_copies(f"{root}/starts", given.tables)
            else:
                upload_copies(f"{root}/starts", given.tables, inner)
            yield from starts(place, f"{root}/starts", kafka, inner, given.tables, environment)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    """Measure, and print one table of figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.events", description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000, help="tables of the mirror that starts; 0: no start")
    parser.add_argument(
        "--samples", type=int, default=200, help="commits whose delays are measured, with and without hints each; 0: none"
    )
    parser.add_argument("--rebuilt-tables", type=int, default=100, help="tables whose events are published again; 0: none")
    parser.add_argument("--rebuilt-commits", type=int, default=100, help="commits of each of them: two events each")
    parser.add_argument("--stores", nargs="+", choices=("disk", "minio"), default=["disk", "minio"], help="where the tables are")
    parser.add_argument("--folder", type=Path, help="where tables and Kafka keep their files")
    given = parser.parse_args()
    console = Console(width=max(150, Console().width))
    lines = Lines("what", "result", "seconds", "mirror, processor s", "broker, processor s", title="events on a real Kafka")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-events-") as name:
        for figures in measure(given, Path(name)):
            print(*figures.cells(), sep="; ", file=sys.stderr, flush=True)
            lines.add_row(*figures.cells())
    console.print(lines)


if __name__ == "__main__":
    main()
