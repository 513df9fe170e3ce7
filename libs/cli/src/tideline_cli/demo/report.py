"""The demo's report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from tideline_cli.demo.tally import TableRow
from tideline_cli.demo.verification import Check
from tideline_cli.demo.view import human_bytes


@dataclass(frozen=True, slots=True)
class QueryTime:
    """The same query on the layout that writers left and on the clustered one."""

    text: str
    rows: int
    before_ms: float
    after_ms: float
    files_before: int
    files_after: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that the report tells."""

    before: Mapping[str, TableRow]
    after: Mapping[str, TableRow]
    batches: int
    writers: int
    ingest_s: float
    total_s: float
    query: QueryTime
    events: Mapping[str, tuple[int, int]]
    """By table: events that the consumer saw, entries that the table log has."""
    out_of_order: int
    checks: Sequence[Check]

    @property
    def succeeded(self) -> bool:
        """Every table is right for every reader, and the consumer missed nothing."""
        return not any(c.difference for c in self.checks) and all(s == h for s, h in self.events.values()) and not self.out_of_order


def print_report(console: Console, outcome: Outcome, folder: Path) -> None:
    """Print everything."""
    console.print()
    grid = Grid(title="What happened", title_justify="left")
    for heading in (
        "table",
        "commits",
        "conflicts resolved",
        "rollbacks",
        "clustering plans run",
        "cleans",
        "files",
        "bytes on disk",
    ):
        grid.add_column(heading, justify="left" if heading == "table" else "right")
    for name, after in outcome.after.items():
        before = outcome.before[name].summary
        s = after.summary
        files = f"{before.file_groups} -> {s.file_groups}"
        sizes = f"{human_bytes(before.latest_bytes)} -> {human_bytes(s.latest_bytes)}"
        grid.add_row(name, *map(str, (s.commits, after.conflicts, after.rollbacks, after.clusterings, after.cleans, files, sizes)))
    console.print(grid)
    console.print(
        f"{outcome.writers} writers, {outcome.batches} batches in {outcome.ingest_s:.1f} s; the whole run took {outcome.total_s:.1f} s"
    )
    query = outcome.query
    console.print(
        f"query [{query.text}]: {query.before_ms:.1f} ms over {query.files_before} files before the last clustering, "
        f"{query.after_ms:.1f} ms over {query.files_after} files after it ({query.rows} rows)",
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
    console.print("\nThe tables stay on disk. Look at them:")
    for command in (
        f"show {tables}/flights",
        f"timeline {tables}/flights --limit 20",
        f"read {tables}/aircraft --where \"last_carrier = 'UA'\" --limit 5",
    ):
        console.print(f"  .venv/bin/tideline {command}", highlight=False, markup=False)
