"""`python -m tests.benchmarks.steady --tables 20000 --minutes 10`: mirror, planner, launcher and cleaner while a fleet is written.

The tables are copies of one, on local disk, with an embedded event log; their states are published before the services start. This
process writes `--hot` of them in turn, `--commits` in a second, each with a hint. Four commits of a table make its clustering due,
so that a service a second follows from four commits, which the resident workers of the launcher run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.benchmarks.control_plane import (
    ASK_EVERY_S,
    PAUSE_S,
    QUIET_S,
    SEED,
    Service,
    at_end,
    commit,
    has_visited_all,
    make_copies,
    measure_start,
    running,
    tell,
    wait_until,
)
from tests.fleet.checks import percentile

from tideline_events import EventLog, Hint, Publisher, Subscription, Transition, decode, encode, open_event_log
from tideline_table.clock import SystemClock
from tideline_table.table import Table

SERVICES = ("mirror", "planner", "launcher", "cleaner")
COMMITS_PER_SERVICE = 4
SAY_EACH_S = 60.0
SETTINGS = {
    "TIDELINE_PLANNER__CLUSTERING_MIN_FILES": str(COMMITS_PER_SERVICE),
    "TIDELINE_PLANNER__CLUSTERING_MIN_COMMITS": str(COMMITS_PER_SERVICE),
    "TIDELINE_LAUNCHER__WORKERS__COUNT": "2",
}


@dataclass
class Seen:
    """What the event log said while the fleet was written."""

    committed: dict[tuple[str, int], float] = field(default_factory=dict)
    """When each commit returned, by uid and sequence."""
    delays_s: list[float] = field(default_factory=list)
    completed: Counter[str] = field(default_factory=Counter)
    """Completed actions of services by name."""

    def take(self, topic: Subscription, pause_s: float) -> None:
        for event in map(decode, topic.poll(pause_s)):
            if not isinstance(event, Transition):
                continue
            returned_s = self.committed.pop((event.table_uid, event.sequence), None)
            if returned_s is not None:
                self.delays_s.append(time.monotonic() - returned_s)
            elif event.to_state == "completed":
                self.completed[event.action] += 1


def write(tables: list[Table], publisher: Publisher, topic: Subscription, per_s: float, duration_s: float) -> tuple[Seen, int]:
    """Commit to the tables in turn. Return what was seen, and the number of commits."""
    seen, began_s, number = Seen(), time.monotonic(), 0
    said = 0
    while (now_s := time.monotonic() - began_s) < duration_s:
        if now_s < number / per_s:
            seen.take(topic, PAUSE_S)
            continue
        if now_s >= SAY_EACH_S * (said + 1):
            said += 1
            print(f"{now_s:.0f} s: {number} commits, {len(seen.committed)} without an event, {dict(seen.completed)}", flush=True)
        table = tables[number % len(tables)]
        number += 1
        sequence = commit(table, number)
        seen.committed[table.uid, sequence] = time.monotonic()
        publisher.publish(encode(Hint(table.uid, datetime.now(UTC), table.base_path, sequence, "committed")))
        seen.take(topic, 0)
    return seen, number


def steady(count: int, hot: int, per_s: float, duration_s: float, folder: Path) -> Iterator[str]:
    """Run the fleet, and yield the lines of the report."""
    url, root = f"sqlite://{folder}/state/events.db", f"{folder}/tables"
    uids = make_copies(root, count, quiet_s=QUIET_S)
    measure_start(folder, f"{root}/t00000", url)
    tell(url, uids)
    with contextlib.ExitStack() as stack:
        services: Mapping[str, Service] = {
            name: stack.enter_context(running(name, folder, f"{root}/*", {**SETTINGS, "TIDELINE_EVENT_LOG": url}))
            for name in SERVICES
        }
        for service in services.values():
            wait_until(partial(has_visited_all, service), service, ASK_EVERY_S)
        events: EventLog = stack.enter_context(contextlib.closing(open_event_log(url, clock=SystemClock())))
        chosen = random.Random(SEED).sample(sorted(uids), hot)
        tables = [Table.open(f"{root}/{name}", writer_id="benchmark") for name in chosen]
        publisher = stack.enter_context(contextlib.closing(events.publisher("benchmark")))
        topic = stack.enter_context(contextlib.closing(at_end(events)))
        before, load = {name: service.cpu_s() for name, service in services.items()}, os.getloadavg()
        seen, number = write(tables, publisher, topic, per_s, duration_s)
        took_s = {name: service.cpu_s() - before[name] for name, service in services.items()}
        memory = {name: service.rss_bytes() / 2**20 for name, service in services.items()}
        pending = sum(len(table.refresh().pending_clusterings()) for table in tables)
    yield f"{count} tables, {hot} written: {number} commits in {duration_s:.0f} s, {number / duration_s:.2f} a second"
    yield (
        f"commit to event: median {percentile(seen.delays_s, 0.5):.3f} s, p99 {percentile(seen.delays_s, 0.99):.3f} s; "
        f"{len(seen.committed)} commits without an event at the end"
    )
    done = ", ".join(f"{name} {times}" for name, times in sorted(seen.completed.items()))
    yield f"completed: {done or 'nothing'}, {sum(seen.completed.values()) / duration_s:.2f} a second; {pending} plans pending"
    for name in SERVICES:
        yield f"{name}: {1000 * took_s[name] / duration_s:.0f} ms of processor per s, {memory[name]:.0f} MiB"
    yield f"load of the machine {load[0]:.1f} before, {os.getloadavg()[0]:.1f} behind it"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.steady", description=__doc__)
    parser.add_argument("--tables", type=int, default=20_000)
    parser.add_argument("--hot", type=int, default=400, help="tables that are written")
    parser.add_argument("--commits", type=float, default=4.0, help="commits in a second")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, help="where the tables are made")
    given = parser.parse_args()
    if not 0 < given.hot < given.tables:
        parser.error(f"--hot {given.hot}: fewer than --tables {given.tables}, and at least one")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-steady-") as name:
        for line in steady(given.tables, given.hot, given.commits, given.minutes * 60, Path(name)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
