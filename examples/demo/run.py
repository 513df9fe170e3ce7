"""Runs the demo: create the tables, start services and writers, watch, cluster, verify, report."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
from examples.demo.consumer import CommitConsumer
from examples.demo.deployment import SMALL_FILE_BYTES, SORT_COLUMNS, Layout, Process, start_services, start_writer, stopping
from examples.demo.fleet import TABLES, WRITERS
from examples.demo.report import Outcome, QueryRun, print_report
from examples.demo.tally import TableRow, Tally
from examples.demo.verification import verify
from examples.demo.view import View
from rich.console import Console

from tideline_events import open_event_log
from tideline_runtime.signals import on_termination
from tideline_runtime.state_folder import PRIVATE_FOLDER
from tideline_table.action import request_clustering
from tideline_table.config import CLUSTERING_SMALL_FILE_LIMIT, CLUSTERING_SORT_COLUMNS
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.storage import writing
from tideline_table.table import Table, create_table

MARK = "tideline-demo"
"""Name of the file that marks a folder of the demo. The next demo in a marked folder deletes all files there."""
_CLUSTERING_WAIT_S = 90.0
_EVENTS_WAIT_S = 20.0
_QUERY_RUNS = 7
QUERY = "flights of HA to HNL"

Pause = Callable[[float], None]
"""Waits for a number of seconds. Raises `KeyboardInterrupt` once SIGINT (Ctrl-C) or SIGTERM has arrived."""


class DemoFailed(TidelineError):
    """A writer or service failed, or a step exceeded its time limit."""


def run_demo(folder: Path, console: Console) -> bool:
    """Run the demo in `folder` and return whether every check passed.

    Raises `DemoFailed`, `InvalidOption` for a folder with other files, and `KeyboardInterrupt` after Ctrl-C. In each case all
    processes of the demo have ended, and the tables are readable.
    """
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
            view.phase(f"{len(WRITERS)} writers and all services work on {len(TABLES)} tables in {layout.tables}")
            processes.append(start_services(layout))
            consumer.start()
            writers = [start_writer(w, layout, tally.add) for w in WRITERS]
            processes += writers
            began = time.monotonic()
            _watch(view, tally, tables, processes, writers, pause)
            ingest_s = time.monotonic() - began
            view.phase("all batches are committed: clustering the remaining small files, as `tideline plan clustering` does")
            before = _rows(tally, tables)
            first_run = _query(tables["flights"])
            _cluster(tables, processes, view, tally, pause)
            after = _rows(tally, tables)
            second_run = _query(tables["flights"])
            if second_run.rows != first_run.rows:
                raise DemoFailed(
                    f"the query found {second_run.rows} rows after clustering", expected=f"{first_run.rows}, as before"
                )
            events = _await_events(consumer, tables, pause)
    finally:
        consumer.stop()
        event_log.close()
    view.phase("verifying every table against DuckDB, read by tideline and by hudi-rs")
    checks = verify(layout.tables)
    outcome = Outcome(
        before=before,
        after=after,
        batches=tally.batches_done(),
        writers=len(WRITERS),
        ingest_s=ingest_s,
        total_s=time.monotonic() - started,
        query=QUERY,
        before_clustering=first_run,
        after_clustering=second_run,
        events=events,
        out_of_order=consumer.out_of_order,
        checks=checks,
    )
    print_report(console, outcome, folder)
    return outcome.succeeded


@contextmanager
def _interruptible() -> Iterator[Pause]:
    """Let Ctrl-C end the demo only between two steps: within a step, the exception could be swallowed or leave a lock held."""
    asked = threading.Event()

    def pause(wait_s: float) -> None:
        if asked.wait(wait_s):
            raise KeyboardInterrupt

    with on_termination(lambda _: asked.set()):
        yield pause


def _prepare(folder: Path) -> Layout:
    """Create the folder anew, with the mark and the settings.

    Raises `InvalidOption` for a folder with files and without the mark.
    """
    layout = Layout(folder.absolute())
    with writing(repr(str(folder))):
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARK).exists():
                raise InvalidOption(
                    f"folder {str(folder)!r} has files that are not from the demo",
                    expected="an empty folder, or the tables of an earlier demo",
                    remedy="choose another folder: make demo FOLDER=...",
                )
            shutil.rmtree(folder)
        for made in (layout.tables, layout.logs):
            made.mkdir(parents=True, exist_ok=True)
        layout.state.mkdir(PRIVATE_FOLDER, exist_ok=True)
        (folder / MARK).write_text("The tables of make demo; the next demo in this folder deletes them.\n")
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
    """Publish final plans and wait until the launcher has run all pending plans. Raises `DemoFailed` after `_CLUSTERING_WAIT_S`."""
    deadline = time.monotonic() + _CLUSTERING_WAIT_S
    planned = set()
    while True:
        for name, table in tables.items():
            table.refresh()
            if name not in planned and not table.state.pending_clusterings():
                sorting = {CLUSTERING_SORT_COLUMNS.key: SORT_COLUMNS[name]} if name in SORT_COLUMNS else {}
                request_clustering(table, {CLUSTERING_SMALL_FILE_LIMIT.key: 8 * SMALL_FILE_BYTES, **sorting})
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


def _query(table: Table) -> QueryRun:
    """Time the query `QUERY` on the present layout."""
    where = (pc.field("carrier") == "HA") & (pc.field("dest") == "HNL")
    times, rows = [], 0
    for _ in range(_QUERY_RUNS):
        began = time.perf_counter()
        rows = table.read(["flight_id", "dep_delay", "arr_delay"], where).num_rows
        times.append((time.perf_counter() - began) * 1000)
    return QueryRun(rows, statistics.median(times), len(table.slices()))
