"""`python -m tests.benchmarks.console`: what the console's pages take over many tables, with many viewers, and for huge tables.

The console is a process of its own (`tests.benchmarks.console_fleet`), whose read model is made from generated tables and events.
Pages: time to the first byte and to the end of each, and, in Chromium, until a person can use it, one after the other. Viewers: all
ask for their pages every two seconds as `console.js` does, while commits arrive as events; a commit shows when the API tells it.
Processor seconds are those of the console; they are comparable where the machine has other work, and times are not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table as Lines
from tests.benchmarks.console_fleet import LONG, WIDE, path_of, uid_of
from tests.benchmarks.control_plane import TICKS_PER_S
from tests.fleet.checks import percentile

from tideline_console.model import key_of
from tideline_events import TableIdentity, TableRecord, Transition, open_event_log
from tideline_table.clock import SystemClock
from tideline_table.hudi.instant import instant_from_time

REFRESH_S = 2.0
START_S = 600.0
LOOK_S = 0.05
REFRESH = {"HX-Request": "true", "HX-Current-URL": "http://127.0.0.1/"}


@dataclass
class Asked:
    """What the requests for one page took. Times are sorted seconds."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    sent_bytes: int = 0
    usable: list[float] = field(default_factory=list)


class Server:
    """The console's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        said = next((line for line in process.stdout if line.startswith('{"address"')), "")  # Beside lines of its log.
        assert said, "the console did not start"
        found = json.loads(said)
        self.address, self.filled_s = found["address"], found["filled_s"]

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def rss_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@contextlib.contextmanager
def running(folder: Path, given: argparse.Namespace) -> Iterator[Server]:
    """Run a console inside the `with` block."""
    names = ("tables", "steps", "instants", "partitions", "rules")
    options = [text for name in names for text in (f"--{name}", str(getattr(given, name)))]
    command = [sys.executable, "-m", "tests.benchmarks.console_fleet", str(folder), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(START_S)


def pages(tables: str) -> dict[str, str]:
    """Return the addresses that are asked for, by what they are."""
    real = {name: key_of(f"file:{tables}/{name}") for name in (LONG, WIDE)}
    return {
        "overview": "/",
        "tables": "/tables",
        "tables by size": "/tables?sort=size",
        "tables, a text": "/tables?q=t077",
        "tables, CSV": "/tables.csv",
        "work": "/work",
        "writers": "/writers",
        "policies": "/policies",
        "events": "/events",
        "events, a text": "/events?q=writer-7",
        "events of a table": f"/events?table={key_of(path_of(77))}",
        "health": "/health",
        "many instants": f"/tables/{real[LONG]}",
        "many instants, all": f"/tables/{real[LONG]}?window=all",
        "many partitions": f"/tables/{real[WIDE]}",
        "API tables": "/api/v1/tables",
        "API overview": "/api/v1/overview",
    }


def ask(server: Server, address: str, times: int) -> Asked:
    """Ask for a page: once for nothing, because the first answer fills what is kept, then `times`."""
    found = Asked()
    with httpx.Client(base_url=server.address, trust_env=False, timeout=120) as client:
        first_s = _timed(client, address, found)
        before_s = server.cpu_s()
        for _ in range(times):
            time.sleep(REFRESH_S / 2)  # As a person or a refresh does: longer than an answer may be kept.
            _timed(client, address, found)
        found.cpu_s = (server.cpu_s() - before_s) / times
    found.first, found.whole = sorted(found.first[1:]), [*sorted(found.whole[1:]), first_s]
    return found


def _timed(client: httpx.Client, address: str, found: Asked) -> float:
    began_s = time.monotonic()
    with client.stream("GET", address) as answer:
        assert answer.status_code == 200, (address, answer.status_code)
        content = answer.iter_raw()
        size = len(next(content))
        found.first.append(time.monotonic() - began_s)
        size += sum(map(len, content))
    found.whole.append(time.monotonic() - began_s)
    found.sent_bytes = size
    return found.whole[-1]


def usable(server: Server, addresses: dict[str, str], times: int) -> dict[str, list[float]]:
    """Return the seconds from the navigation until scripts ran, in Chromium, sorted."""
    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for name, address in addresses.items():
            took = []
            for _ in range(times):
                page.goto(f"{server.address}{address}", wait_until="load")
                took.append(page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") / 1000)
            found[name] = sorted(took)
        browser.close()
    return found


async def _viewer(client: httpx.AsyncClient, address: str, at_s: float, until_s: float, took: list[float], sent: list[int]) -> None:
    await asyncio.sleep(at_s)
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        async with client.stream("GET", address, headers=REFRESH) as answer:
            assert answer.status_code in (200, 204, 304), answer.status_code
            sent.append(sum([len(part) async for part in answer.aiter_raw()]))
        took.append(time.monotonic() - began_s)
        await asyncio.sleep(max(0.0, REFRESH_S - took[-1]))


async def _commits(server: Server, folder: Path, until_s: float, steps: int, shown: list[float]) -> None:
    """Publish a commit every second, and ask every 50 ms until it shows."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(contextlib.closing(open_event_log(f"sqlite://{folder}/state/events.db", clock=SystemClock())))
        publisher = stack.enter_context(contextlib.closing(log.publisher("benchmark")))
        number = 0
        async with httpx.AsyncClient(base_url=server.address, trust_env=False, timeout=60) as client:
            while time.monotonic() < until_s - 5:
                number += 1
                uid, now = uid_of(77 + number), datetime.now(UTC)
                table = TableIdentity(uid, path_of(77 + number), f"t{77 + number:05}")
                instant = instant_from_time(now, UTC)
                step = Transition(
                    table=table,
                    instant=instant,
                    action="commit",
                    to_state="completed",
                    time=now,
                    requested_time=now,
                    completion_time=now,
                    sequence=steps + 1,
                    writer_id="benchmark",
                    observed_by="benchmark",
                    timeline_file=f"{instant}.commit",
                )
                publisher.publish_transitions(uid, [step], TableRecord(table, steps + 1, now))
                began_s = time.monotonic()
                while not (await client.get(f"/api/v1/events/{uid}/{steps + 1}")).is_success:
                    assert time.monotonic() < began_s + 60, "a commit does not show"
                    await asyncio.sleep(LOOK_S)
                shown.append(time.monotonic() - began_s)
                await asyncio.sleep(max(0.0, 1.0 - shown[-1]))


@dataclass(frozen=True)
class Crowd:
    """What so many viewers cost."""

    viewers: int
    took: list[float]
    shown: list[float]
    cpu_s_per_s: float
    sent_bytes_per_s: float


def crowd(server: Server, folder: Path, addresses: list[str], viewers: int, seconds: float, steps: int) -> Crowd:
    """Let so many viewers look at pages, one after the other of `addresses`, while a commit arrives every second."""
    took: list[float] = []
    sent: list[int] = []
    shown: list[float] = []

    async def all_of_them() -> None:
        # One client, with a connection for each viewer: making fifty of them takes seconds, which viewers would be charged for.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=server.address, trust_env=False, timeout=60, verify=False, limits=limits) as client:
            until_s = time.monotonic() + seconds
            asking = [
                _viewer(client, addresses[n % len(addresses)], REFRESH_S * n / viewers, until_s, took, sent) for n in range(viewers)
            ]
            await asyncio.gather(_commits(server, folder, until_s, steps, shown), *asking)

    before_s, began_s = server.cpu_s(), time.monotonic()
    asyncio.run(all_of_them())
    passed_s = time.monotonic() - began_s
    return Crowd(viewers, sorted(took), sorted(shown), (server.cpu_s() - before_s) / passed_s, sum(sent) / passed_s)


def load() -> str:
    """Return the load of the machine, which stands beside each figure."""
    return f"{os.getloadavg()[0]:.1f}"


def show_pages(found: dict[str, Asked], console: Console, load_before: str) -> None:
    """Print a line for each page."""
    heads = ("page", "first byte, p50", "whole, p95", "first answer", "usable, p50", "p95", "console, cpu ms", "kB sent")
    lines = Lines(*heads, title=f"ms; load {load_before} to {load()}")
    for name, asked in found.items():
        steady = asked.whole[:-1]
        used = [f"{1000 * percentile(asked.usable, part):.0f}" for part in (0.5, 0.95)] if asked.usable else ["", ""]
        lines.add_row(
            name,
            f"{1000 * percentile(asked.first, 0.5):.0f}",
            f"{1000 * percentile(steady, 0.95):.0f}",
            f"{1000 * asked.whole[-1]:.0f}",
            *used,
            f"{1000 * asked.cpu_s:.0f}",
            f"{asked.sent_bytes / 1000:.1f}",
        )
    console.print(lines)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.console", description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=40, help="steps of each table, two for an instant")
    parser.add_argument("--instants", type=int, default=100_000, help="instants of one table")
    parser.add_argument("--partitions", type=int, default=50_000, help="partitions of one table, which is written: 9 ms for each")
    parser.add_argument("--rules", type=int, default=20, help="rules of the policy file")
    parser.add_argument("--times", type=int, default=9, help="how often each page is asked for")
    parser.add_argument("--viewers", type=int, nargs="*", default=[1, 50])
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the viewers look")
    parser.add_argument("--browser", action="store_true", help="also ask with Chromium")
    parser.add_argument("--only", nargs="*", help="pages, by their names")
    parser.add_argument("--folder", type=Path, help="where the real tables are kept for the next run")
    given = parser.parse_args()
    console = Console(width=max(150, Console().width))
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tideline-console-")))
        server = stack.enter_context(running(folder, given))
        console.print(f"{given.tables} tables, filled in {server.filled_s:.1f} s; {server.rss_mib():.0f} MiB", highlight=False)
        addresses = {name: at for name, at in pages(f"{folder}/tables").items() if not given.only or name in given.only}
        before = load()
        found = {name: ask(server, address, given.times) for name, address in addresses.items() if given.times}
        if given.browser:
            shown = {name: at for name, at in addresses.items() if not at.startswith("/api") and not at.endswith(".csv")}
            for name, took in usable(server, shown, given.times).items():
                found[name].usable = took
        if found:
            show_pages(found, console, before)
        looked = [address for name, address in addresses.items() if "API" not in name and "CSV" not in name]
        console.print(f"after the pages: {server.rss_mib():.0f} MiB", highlight=False)
        for viewers in given.viewers:
            before = load()
            one = crowd(server, folder, looked, viewers, given.seconds, given.steps)
            console.print(
                f"{viewers} viewers of {len(looked)} pages: a refresh takes p50 {1000 * percentile(one.took, 0.5):.0f}, "
                f"p99 {1000 * percentile(one.took, 0.99):.0f} ms; a commit shows after p50 {percentile(one.shown, 0.5):.2f}, "
                f"p99 {percentile(one.shown, 0.99):.2f} s ({len(one.shown)}); console {1000 * one.cpu_s_per_s:.0f} cpu ms/s, "
                f"{one.sent_bytes_per_s / 1000:.0f} kB/s, {server.rss_mib():.0f} MiB; load {before} to {load()}",
                highlight=False,
            )


if __name__ == "__main__":
    main()
