"""Running the demo: create the tables, start services and writers, watch, cluster, verify, report."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console

from tideline_cli.demo.consumer import CommitConsumer
from tideline_cli.demo.deployment import SMALL_FILE_BYTES, SORT_COLUMNS, Layout, Process, start_services, start_writer, stopping
from tideline_cli.demo.fleet import TABLES, WRITERS
from tideline_cli.demo.report import Outcome, QueryTime, print_report
from tideline_cli.demo.tally import TableRow, Tally
from tideline_cli.demo.verification import verify
from tideline_cli.demo.view import View
from tideline_events import open_event_log
from tideline_service.signals import on_termination
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.table import Table, create_table, schedule_clustering

MARK = "tideline-demo"
"""A file that says that a folder is the demo's, and may be emptied by the next one."""
_CLUSTERING_WAIT_S = 90.0
_EVENTS_WAIT_S = 20.0
_QUERY_RUNS = 7

Pause = Callable[[float], None]
"""Waits for so many seconds. Raises `KeyboardInterrupt` once Ctrl-C was pressed."""


class DemoFailed(TidelineError):
    """A writer or a service ended with an error, or something did not happen in time."""


def run_demo(folder: Path, console: Console) -> bool:
    """Run the main job in `folder`; True when every check passed. Ctrl-C leaves readable tables and no process."""
    started = time.monotonic()
    layout = _prepare(folder)
    for name, request in TABLES.items():
        create_table(str(layout.tables / name), request)
    tables = {name: Table.open(str(layout.tables / name)) for name in TABLES}
    tally = Tally()
    event_log = open_event_log(layout.event_log)
    event_log.ensure_topics()
    processes: list[Process] = []
    view = View(console, total_batches=sum(sum(1 for _ in w.batches()) for w in WRITERS))
    consumer = CommitConsumer(event_log, layout.tables, view.heard)
    try:
        with _interruptible() as pause, stopping(processes), view:
            view.phase(f"{len(WRITERS)} writers and all services at work on {len(TABLES)} tables in {layout.tables}")
            processes.append(start_services(layout))
            consumer.start()
            writers = [start_writer(w, layout, tally.add) for w in WRITERS]
            processes += writers
            began = time.monotonic()
            _watch(view, tally, tables, processes, writers, pause)
            ingest_s = time.monotonic() - began
            view.phase("all batches are in: clustering what is left, as an operator would by `tideline plan clustering`")
            before = _rows(tally, tables)
            query = _Query.on(tables["flights"])
            _cluster(tables, processes, view, tally, pause)
            after = _rows(tally, tables)
            times = query.again(tables["flights"])
            events = _await_events(consumer, tables, pause)
    finally:
        consumer.stop()
        event_log.close()
    view.phase("verifying every table against DuckDB, read by tideline and by hudi-rs")
    checks = verify(layout.tables)
    outcome = Outcome(
        before,
        after,
        tally.batches_done(),
        len(WRITERS),
        ingest_s,
        time.monotonic() - started,
        times,
        events,
        consumer.out_of_order,
        checks,
    )
    print_report(console, outcome, folder)
    return outcome.succeeded


@contextmanager
def _interruptible() -> Iterator[Pause]:
    """Ctrl-C ends the demo between two steps: in the middle of one it could be swallowed, or leave a lock held that ending needs."""
    asked = threading.Event()

    def pause(wait_s: float) -> None:
        if asked.wait(wait_s):
            raise KeyboardInterrupt

    with on_termination(lambda _: asked.set()):
        yield pause


def _prepare(folder: Path) -> Layout:
    """An empty folder with the mark and the settings. Refuses to empty a folder that is not the demo's."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise InvalidOption(
                f"folder {str(folder)!r} holds something else", expected="an empty folder, or the tables of an earlier demo"
            )
        shutil.rmtree(folder)
    layout = Layout(folder.absolute())
    for made in (layout.tables, layout.state, layout.logs):
        made.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("The tables of tideline demo; the next demo in this folder deletes them.\n")
    layout.write_settings()
    return layout


def _rows(tally: Tally, tables: Mapping[str, Table]) -> dict[str, TableRow]:
    return {name: tally.row(name, table) for name, table in tables.items()}


def _watch(
    view: View, tally: Tally, tables: Mapping[str, Table], processes: list[Process], writers: list[Process], pause: Pause
) -> None:
    while any(w.exit_code is None for w in writers):
        view.show(list(_rows(tally, tables).values()), tally.batches_done(), time.monotonic())
        _check(processes, writers)
        pause(0.5)
    _check(processes, writers)
    view.show(list(_rows(tally, tables).values()), tally.batches_done(), time.monotonic())


def _check(processes: list[Process], writers: list[Process]) -> None:
    for process in processes:
        code = process.exit_code
        if code is not None and not (code == 0 and process in writers):
            raise DemoFailed(
                f"{process.name} ended with exit code {code}", expected="0 after its work", remedy=f"see {process.log}"
            )


def _cluster(tables: Mapping[str, Table], processes: list[Process], view: View, tally: Tally, pause: Pause) -> None:
    """Publish last plans and wait until the launcher has run everything that is pending."""
    deadline = time.monotonic() + _CLUSTERING_WAIT_S
    planned = set()
    while True:
        for name, table in tables.items():
            table.refresh()
            if name not in planned and not table.state.pending_clusterings():
                options = {
                    "hoodie.clustering.plan.strategy.sort.columns": SORT_COLUMNS.get(name, ""),
                    "hoodie.clustering.plan.strategy.small.file.limit": 8 * SMALL_FILE_BYTES,
                }
                schedule_clustering(table, options)
                planned.add(name)
        if len(planned) == len(tables) and not any(t.state.pending_clusterings() for t in tables.values()):
            return
        _check(processes, [p for p in processes if p.name != "services"])
        if time.monotonic() > deadline:
            raise DemoFailed(f"clustering plans are pending after {_CLUSTERING_WAIT_S:.0f} s", remedy="see the launcher's log")
        view.show(list(_rows(tally, tables).values()), tally.batches_done(), time.monotonic())
        pause(0.3)


def _await_events(consumer: CommitConsumer, tables: Mapping[str, Table], pause: Pause) -> dict[str, tuple[int, int]]:
    deadline = time.monotonic() + _EVENTS_WAIT_S
    while True:
        found = {name: (consumer.seen[t.uid], t.refresh().sequence) for name, t in tables.items()}
        if all(seen == head for seen, head in found.values()) or time.monotonic() > deadline:
            return found
        pause(0.2)


@dataclass(frozen=True, slots=True)
class _Query:
    """One query, timed: the flights of one carrier to one airport."""

    rows: int
    milliseconds: float
    files: int
    text = "flights of HA to HNL"

    @classmethod
    def on(cls, table: Table) -> _Query:
        where = (pc.field("carrier") == "HA") & (pc.field("dest") == "HNL")
        times, rows = [], 0
        for _ in range(_QUERY_RUNS):
            began = time.perf_counter()
            rows = table.read(["flight_id", "dep_delay", "arr_delay"], where).num_rows
            times.append((time.perf_counter() - began) * 1000)
        return cls(rows, statistics.median(times), len(table.slices()))

    def again(self, table: Table) -> QueryTime:
        """The same on the layout of now; the answer has to be the same."""
        now = _Query.on(table)
        if now.rows != self.rows:
            raise DemoFailed(f"the query found {now.rows} rows after clustering", expected=f"{self.rows}, as before")
        return QueryTime(self.text, now.rows, self.milliseconds, now.milliseconds, self.files, now.files)
