"""A living fleet for the console: tables of all kinds, one damaged, stuck, paused or under a steady writer each, with services."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx
import pyarrow as pa

import tideline
from tideline_table.table import GivenUp, keep_given_up

HOSTILE = "<b>דוח & יומי"
SMALL_FILES = {"hoodie.parquet.small.file.limit": 0}
PAUSED, STUCK, DAMAGED, HAMMERED = "finance/ledger", "shop/customers", "finance/invoices", "logistics/rides"
PLACES = {
    "shop/orders": "mor",
    "shop/returns": "cow",
    STUCK: "mor",
    HAMMERED: "mor",
    "logistics/parcels": "cow",
    "logistics/drivers": "cow",
    "iot/sensors": "mor",
    f"iot/{HOSTILE}": "cow",
    "iot/empty": "cow",
    PAUSED: "cow",
    DAMAGED: "cow",
}
_YEARS = range(2008, 2027)
"""Small tables of the archive: thirty tables in all."""
POLICY = """\
version: 1
fleet:
  pending_plans: 20
defaults:
  retention: {{commits: 20}}
  objectives: {{small_files: 500, unmerged_log_age: 12h}}
tags:
  gold:
    paths: ["file:{lake}/shop/*"]
rules:
  - name: archive at night
    match: {{paths: ["file:{lake}/archive/*"]}}
    priority: 20
    windows:
      - {{from: "22:00", to: "05:00", time_zone: Europe/Berlin}}
  - name: gold tables
    match: {{tags: [gold]}}
    priority: 80
    sort_columns: [id, day]
  - name: end of the year
    match: {{tables: ["file:{lake}/{paused}"]}}
    pause: {{reason: "the books are closed"}}
"""
Found = TypeVar("Found")


def awaited(find: Callable[[], Found | None], limit_s: float = 300.0) -> Found:
    """What `find` finds at last."""
    deadline_s = time.monotonic() + limit_s
    while not (found := find()):
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.25)  # each look at a console makes it render a page
    return found


@contextmanager
def running(name: str, environment: dict[str, str]) -> Iterator[None]:
    """A service as a process, until the end of the block."""
    with subprocess.Popen([sys.executable, "-m", f"tideline_{name}"], env=os.environ | environment) as process:
        try:
            yield
            assert process.poll() is None, f"{name} ended by itself"
        finally:
            process.terminate()


def rows(first: int, count: int = 200) -> pa.Table:
    ids = list(range(first, first + count))
    days = [f"2026-11-{20 + each % 5}" for each in ids]
    return pa.table({"id": ids, "day": days, "fare": [each * 1.5 for each in ids], "at": [first] * count})


def make_fleet(lake: Path) -> int:
    """Make the tables of `PLACES` and of `_YEARS`, as writers and services left them; return how many there are."""
    places = {**PLACES, **{f"archive/year_{year}": "cow" for year in _YEARS}}
    for place, kind in places.items():
        table = tideline.create(str(lake / place), schema=rows(0).schema, key="id", partition="day", ordering="at", type=kind)
        small = place in ("shop/returns", STUCK, "logistics/parcels")
        for number in range(0 if place == "iot/empty" else 1 if place.startswith("archive/") else 6):
            table.upsert(rows(100 * number), options=SMALL_FILES if small else None)
        if place in ("shop/orders", "iot/sensors"):
            table.maintenance.create_savepoint(comment="before the import")
            for _ in range(2):
                table.upsert(rows(600, 50))  # The second time updates alone: rows in log files.
            table.maintenance.compact()
            table.upsert(rows(620, 50))
        if place in ("logistics/drivers", "shop/orders"):
            table.maintenance.cluster()
    (lake / DAMAGED / ".hoodie/hoodie.properties").write_bytes(b"\xff nothing")
    return len(places)


def stick(place: Path) -> None:
    """Leave a plan that a launcher gave up."""
    command = [sys.executable, "-m", "tideline_cli.main", "plan", "clustering", str(place)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    table = tideline.open(str(place))._table
    (action,) = table.state.pending()
    now = datetime.now(UTC).isoformat()
    keep_given_up(table.storage, GivenUp(action.instant, "clustering", 3, "executor ended with code 137 (memory)", now))


@contextmanager
def hammered(place: Path) -> Iterator[None]:
    """A writer that commits to the table all the time, and compacts it now and then, as a launcher would let it be done."""
    stop = threading.Event()

    def write() -> None:
        table, number = tideline.open(str(place)), 0
        while not stop.wait(0.5):
            table.upsert(rows(10 * number, 40))
            number += 1
            if number % 8 == 0:
                table.maintenance.compact()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def living_fleet(folder: Path, **console: str) -> Iterator[str]:
    """The address of a console, beside mirror, planner and cleaner, over the fleet while one table is written to."""
    lake = folder / "lake"
    number = make_fleet(lake)
    stick(lake / STUCK)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(lake=lake, paused=PAUSED))
    shared = {
        "STATE_FOLDER": str(folder / "state"),
        "TABLES": f'["{lake}/*/*"]',
        "POLICY_FILE": str(policy),
        "LOG_LEVEL": "error",
        "CONSOLE__ACTIONS": "true",
        "CONSOLE__LISTEN_PORT": "0",
        **console,
    }
    environment = {f"TIDELINE_{name}": value for name, value in shared.items()}
    with ExitStack() as held:
        for name in ("mirror", "planner", "cleaner", "console"):
            held.enter_context(running(name, environment))
        file = folder / "state" / "console.url"
        address = awaited(lambda: file.exists() and file.read_text().strip().rstrip("/"))
        held.enter_context(hammered(lake / HAMMERED))

        def is_complete() -> bool:
            overview = httpx.get(f"{address}/api/v1/overview", verify=False).json()
            return sum(overview["verdicts"].values()) == number and bool(overview["findings"])

        awaited(is_complete)
        yield address
