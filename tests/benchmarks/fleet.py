"""`python -m tests.benchmarks.fleet`: what a mirror and a planner cost for many tables, and how many small plans the launcher runs.

The first part is in `tests.benchmarks.control_plane`. The second one runs plans in resident workers beside Spark applications.
Each variant has tables of its own with pending clusterings, alike in all variants, and a launcher process of its own. The time
of a variant is that between the first and the last job event: from the launch of the first plan to the end of the last one,
with the start of workers or of Spark. The slow variants run fewer plans; plans per minute stay comparable, because Spark starts
as often per plan.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table as Lines
from tests.benchmarks.control_plane import Measured, Requests, measure_idle, measure_notified, measure_starts, requests_per_hour
from tests.benchmarks.control_plane import measure as measure_fleet
from tests.fleet.checks import percentile
from tests.plans import schedule_clustering

from tideline_events import JOBS, EventLog, JobEvent, decode, open_event_log
from tideline_table.action import write_rows
from tideline_table.clock import SystemClock
from tideline_table.config import SMALL_FILE_LIMIT
from tideline_table.hudi import State
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("city", pa.string()), pa.field("fare", pa.float64())])
FILES = 3
"""Files that each plan rewrites."""
PLANS_PER_TABLE = 4
LIMIT_S = 1800.0
STOP_LIMIT_S = 60.0
LOOK_S = 0.5


@dataclass(frozen=True)
class Variant:
    """One way to run small plans: its title, the settings of its launcher, and how many plans it runs."""

    title: str
    settings: dict[str, str]
    plans: int


@dataclass(frozen=True)
class Rate:
    """What one variant took."""

    plans: int
    seconds: float
    cpu_s: float
    """Of the launcher and all that it started, with the start of the launcher."""

    @property
    def per_minute(self) -> float:
        return 60 * self.plans / self.seconds


def variants(cores: int, plans: int, spark_plans: int, shared_plans: int) -> list[Variant]:
    """The variants; each may use all cores."""
    spark = {"TIDELINE_LAUNCHER__WORKERS__COUNT": "0", "TIDELINE_LAUNCHER__MAX_APPLICATIONS": str(cores)}
    return [
        Variant(f"{cores} resident workers", {"TIDELINE_LAUNCHER__WORKERS__COUNT": str(cores)}, plans),
        Variant("a Spark application for each plan", {**spark, "TIDELINE_LAUNCHER__SHARING__MAX_PLANS": "1"}, spark_plans),
        Variant("Spark applications of up to 16 plans", spark, shared_plans),
    ]


def pending_plans(folder: Path, plans: int, rows: int) -> list[tuple[Table, str]]:
    """Make tables with so many pending clusterings: each of three files of a partition, of `rows` rows together."""
    found = []
    for number in range(-(-plans // PLANS_PER_TABLE)):
        path = str(folder / f"table{number}")
        create_table(path, TableRequest(f"table{number}", SCHEMA, ("id",), ("city",)), SystemClock())
        table = Table.open(path, writer_id="benchmark")
        for city in range(min(PLANS_PER_TABLE, plans - len(found))):
            for file in range(FILES):
                count = rows // FILES
                ids = [f"{city}-{file}-{n}" for n in range(count)]
                data = pa.table({"id": ids, "city": [f"city{city}"] * count, "fare": [float(n) for n in range(count)]}, SCHEMA)
                write_rows(table, data, Operation.INSERT, options={SMALL_FILE_LIMIT.key: 0}, parallelism=1)
            instant = schedule_clustering(table)
            assert instant is not None
            found.append((table, instant))
    return found


def measure(variant: Variant, folder: Path, rows: int) -> Rate:
    """Run the plans of a variant; check that all of them are completed."""
    plans = pending_plans(folder / "tables", variant.plans, rows)
    state = folder / "state"
    state.mkdir()
    environment = {
        **os.environ,
        "TIDELINE_TABLES": f'["{folder}/tables/*"]',
        "TIDELINE_STATE_FOLDER": str(state),
        "TIDELINE_HTTP_PORT": "0",
        **variant.settings,
    }
    before = _children_cpu_s()
    with (folder / "launcher.log").open("wb") as log:
        launcher = subprocess.Popen([sys.executable, "-m", "tideline_launcher"], stderr=log, stdout=log, env=environment)
        try:
            with contextlib.closing(open_event_log(f"sqlite://{state}/events.db", clock=SystemClock())) as events:
                seconds = _seconds_until_ended(events, variant.plans, launcher, folder)
        finally:
            launcher.terminate()
            launcher.wait(STOP_LIMIT_S)
    pending = [instant for table, instant in plans if table.refresh().actions[instant].state is not State.COMPLETED]
    assert not pending, f"{len(pending)} plans are not completed; see {folder}/launcher.log"
    return Rate(variant.plans, seconds, _children_cpu_s() - before)


def _seconds_until_ended(events: EventLog, plans: int, launcher: subprocess.Popen[bytes], folder: Path) -> float:
    """Wait until so many plans succeeded; return the seconds between the first and the last job event."""
    events.ensure_topics()
    deadline_s = time.monotonic() + LIMIT_S
    began: datetime | None = None
    with contextlib.closing(events.subscribe([JOBS.name], "benchmark")) as subscription:
        while plans:
            assert launcher.poll() is None, f"the launcher ended; see {folder}/launcher.log"
            assert time.monotonic() < deadline_s, f"{plans} plans are pending; see {folder}/launcher.log"
            time.sleep(LOOK_S)
            for event in map(decode, subscription.poll(0)):
                assert isinstance(event, JobEvent)
                assert event.state != "failed", f"{event.application_id} failed: {event.reason}; see {folder}/launcher.log"
                began, last = began or event.time, event.time
                plans -= event.state == "succeeded"
    assert began is not None
    return (last - began).total_seconds()


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(rates: dict[str, Rate], console: Console) -> None:
    """Print a line for each variant, with its ratio to the first one."""
    first = next(iter(rates.values()))
    lines = Lines("variant", "plans", "seconds", "plans per minute", "CPU s per plan", "first is faster by")
    for title, rate in rates.items():
        ratio = f"{first.per_minute / rate.per_minute:.1f}"
        lines.add_row(
            title, str(rate.plans), f"{rate.seconds:.1f}", f"{rate.per_minute:.1f}", f"{rate.cpu_s / rate.plans:.2f}", ratio
        )
    console.print(lines)


def show_fleet(found: Measured, console: Console) -> None:
    """Print a line for each figure of a mirror and a planner."""
    lines = Lines("", *found.load, title=f"{found.tables} tables, made in {found.creation_s:.0f} s")
    lines.add_row("start to a consistent view, s", *(f"{found.start_s[name]:.1f}" for name in found.load))
    lines.add_row("memory, MiB", *(f"{load.rss_bytes / 2**20:.0f}" for load in found.load.values()))
    lines.add_row("processor at rest, ms per s", *(f"{1000 * load.cpu_s_per_s:.1f}" for load in found.load.values()))
    per_table = (f"{1e6 * load.cpu_s_per_s / found.tables:.1f}" for load in found.load.values())
    lines.add_row("processor at rest per table, µs per s", *per_table)
    for title, waits in (("polled", found.polled), ("with a hint", found.hinted)):
        for part in (0.5, 0.99):
            each = (percentile(waits.to_event, part), percentile(waits.to_plan, part))
            name = "median" if part == 0.5 else "p99"
            lines.add_row(f"commit to event / plan, {title}, {name}, s", *(f"{seconds:.2f}" for seconds in each))
    console.print(lines)


def show_requests(count: int, found: Mapping[str, Requests], console: Console) -> None:
    """Print a line for each service and one for all, with a column for each kind of request."""
    kinds = sorted({kind for requests in found.values() for kind in requests.seen})
    lines = Lines("", *kinds, "together", "by its metric", title=f"storage requests per table and hour, {count} quiet tables")
    for service, requests in found.items():
        each = (f"{requests.seen.get(kind, 0.0):.2f}" for kind in kinds)
        lines.add_row(service, *each, f"{sum(requests.seen.values()):.2f}", f"{requests.by_metric:.2f}")
    sums = [sum(requests.seen.get(kind, 0.0) for requests in found.values()) for kind in kinds]
    lines.add_row("all", *(f"{number:.2f}" for number in sums), f"{sum(sums):.2f}", "")
    console.print(lines)


def main() -> None:
    """Measure the fleets, then all variants of running plans, one after the other, and print the figures known after each."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fleet", description=__doc__)
    parser.add_argument("--plans", type=int, default=200, help="plans of the variant with resident workers")
    parser.add_argument("--spark-plans", type=int, default=6, help="plans of the variant with a Spark application for each")
    parser.add_argument("--shared-plans", type=int, default=32, help="plans of the variant with shared Spark applications")
    parser.add_argument("--rows", type=int, default=300, help="rows that each plan rewrites")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="workers, and Spark applications at once")
    parser.add_argument("--folder", type=Path, help="where the tables are made")
    parser.add_argument("--tables", type=int, nargs="*", default=[100, 1000], help="numbers of tables of one mirror and planner")
    parser.add_argument("--samples", type=int, default=40, help="commits whose delays are measured, with and without hints each")
    parser.add_argument(
        "--idle-tables", type=int, nargs="*", default=[100], help="numbers of quiet tables in MinIO whose requests are counted"
    )
    parser.add_argument("--idle-s", type=float, default=130.0, help="how long their requests are counted")
    parser.add_argument("--starts", type=int, nargs="*", default=[1000, 10_000], help="numbers of idle tables of a mirror's start")
    parser.add_argument("--idle", type=int, nargs="*", default=[], help="numbers of quiet tables whose memory is measured")
    parser.add_argument("--settle-s", type=float, default=60.0, help="how long their services run before that")
    parser.add_argument("--notified", type=int, nargs="*", default=[], help="numbers of tables in MinIO, which notifies of commits")
    given = parser.parse_args()
    console = Console(width=max(140, Console().width))
    for count in given.tables:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-fleet-") as name:
            show_fleet(measure_fleet(count, min(given.samples, count // 2), Path(name), given.cores), console)
    for count in given.starts:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-starts-") as name:
            for title, start in zip(("all are published", "nothing has changed"), measure_starts(count, Path(name)), strict=True):
                console.print(
                    f"start of a mirror over {count} tables, {title}: {start.seconds:.1f} s, processor {start.cpu_s:.1f} s"
                )
    for count in given.idle:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-idle-") as name:
            for service, idle in measure_idle(count, Path(name), given.settle_s).items():
                console.print(
                    f"{count} quiet tables, {service}: start {idle.seconds:.1f} s, processor {idle.cpu_s:.1f} s; "
                    f"{idle.rss_bytes / 2**20:.0f} MiB; {1000 * idle.rest_cpu_s_per_s:.1f} ms of processor per s",
                    highlight=False,
                )
    for count in given.notified:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-notified-") as name:
            waits = measure_notified(count, min(given.samples, count), Path(name), given.cores)
        middle, last = percentile(waits, 0.5), percentile(waits, 0.99)
        took = f"median {middle:.3f} s, p99 {last:.3f} s, most {waits[-1]:.3f} s"
        told = f"{len(waits)} commits of which MinIO notifies: to event {took}"
        console.print(f"{count} tables, {told}", highlight=False)
    for count in given.idle_tables:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-fleet-") as name:
            show_requests(count, requests_per_hour(count, Path(name), given.settle_s, given.idle_s, given.cores), console)
    rates: dict[str, Rate] = {}
    for variant in variants(given.cores, given.plans, given.spark_plans, given.shared_plans):
        if variant.plans:
            with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-fleet-") as name:
                console.print(f"[dim]{variant.title}: {variant.plans} plans[/dim]", highlight=False)
                rates[variant.title] = measure(variant, Path(name), given.rows)
                show(rates, console)


if __name__ == "__main__":
    main()
