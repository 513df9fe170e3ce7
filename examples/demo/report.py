"""The report of the demo."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo.tally import TableRow
from examples.demo.verification import Check
from rich.console import Console
from rich.table import Table as Grid

from tideline_cli.report import size_text


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One query on the present layout of a table: its rows, its median time, and the files of the table."""

    rows: int
    milliseconds: float
    files: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The content of the report."""

    before: Mapping[str, TableRow]
    after: Mapping[str, TableRow]
    batches: int
    writers: int
    ingest_s: float
    total_s: float
    query: str
    before_clustering: QueryRun
    after_clustering: QueryRun
    events: Mapping[str, tuple[int, int]]
    """By table: the number of events that the consumer saw and of entries in the table log."""
    out_of_order: int
    checks: Sequence[Check]

    @property
    def succeeded(self) -> bool:
        """Whether every reader read every table correctly, and the consumer saw all events in order."""
        return not any(c.difference for c in self.checks) and all(s == h for s, h in self.events.values()) and not self.out_of_order


def print_report(console: Console, outcome: Outcome, folder: Path) -> None:
    """Print the report."""
    console.print()
    grid = Grid(title="What happened", title_justify="left")
    counts = ("commits", "conflicts resolved", "rollbacks", "clustering plans run", "cleans", "files", "bytes on disk")
    for heading in ("table", *counts):
        grid.add_column(heading, justify="left" if heading == "table" else "right")
    for name, after in outcome.after.items():
        before = outcome.before[name].summary
        s = after.summary
        files = f"{before.file_groups} -> {s.file_groups}"
        sizes = f"{size_text(before.latest_bytes)} -> {size_text(s.latest_bytes)}"
        grid.add_row(name, *map(str, (s.commits, after.conflicts, after.rollbacks, after.clusterings, after.cleans, files, sizes)))
    console.print(grid)
    console.print(
        f"{outcome.writers} writers, {outcome.batches} batches in {outcome.ingest_s:.1f} s; the whole run took "
        f"{outcome.total_s:.1f} s"
    )
    first, second = outcome.before_clustering, outcome.after_clustering
    console.print(
        f"query [{outcome.query}]: {first.milliseconds:.1f} ms over {first.files} files before the last clustering, "
        f"{second.milliseconds:.1f} ms over {second.files} files after it ({second.rows} rows)",
        highlight=False,
        markup=False,
    )
    for name, (seen, head) in outcome.events.items():
        console.print(
            f"events of {name}: {seen} of {head} seen by the consumer, {outcome.out_of_order} out of order", highlight=False
        )
    for check in outcome.checks:
        mark = "[green]equal[/green]" if not check.difference else "[red]DIFFERENT[/red]"
        console.print(
            f"{check.table} read by {check.reader}: {check.rows:,} rows, {mark} to the state computed by DuckDB from the CSV files"
        )
        if check.difference:
            console.print(f"  {check.difference}", style="red", markup=False)
    tables = os.path.relpath(folder / "tables")
    console.print("\nThe tables stay on disk. Commands to inspect them:")
    for command in (
        f"show {tables}/flights",
        f"timeline {tables}/flights --limit 20",
        f"read {tables}/aircraft --where \"last_carrier = 'UA'\" --limit 5",
    ):
        console.print(f"  .venv/bin/tideline {command}", highlight=False, markup=False)
    console.print("\nTo look at the tables in a browser:")
    console.print(f"  .venv/bin/tideline console --tables '{tables}/*'", highlight=False, markup=False)
