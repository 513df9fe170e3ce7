"""The live view: progress of the writers and one row per table, updated in place on a terminal, else printed as lines."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from examples.demo.tally import TableRow
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from tideline_cli.report import size_text
from tideline_events import Transition

_LINE_EVERY_S = 5.0
_COMMIT_EVERY = 25
"""Without a terminal, a commit is printed if the number of completed transitions is a multiple of this. Other completed
transitions, such as clusterings and cleans, are always printed."""


class View:
    """The display while the writers run."""

    def __init__(self, console: Console, total_batches: int) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task: TaskID = self._progress.add_task("ingesting", total=total_batches)
        self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._printed_s = float("-inf")
        self._heard = 0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Show the current phase."""
        self._progress.update(self._task, description=text)
        self.console.print(f"[bold]==> {text}[/bold]")

    def show(self, rows: Sequence[TableRow], batches: int, now_s: float) -> None:
        """Update the view."""
        self._progress.update(self._task, completed=batches)
        if self._live is not None:
            self._live.update(Group(_grid(rows), self._progress))
        elif now_s - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = now_s
            parts = (f"{r.name}: {r.summary.commits} commits, {r.summary.file_groups} files, {r.conflicts} conflicts" for r in rows)
            self.console.print(f"    {batches} batches | " + " | ".join(parts), highlight=False)

    def heard(self, transition: Transition) -> None:
        """Show a completed transition that the example consumer received, but not every commit (`_COMMIT_EVERY`)."""
        if transition.to_state != "completed":
            return
        self._heard += 1
        is_commit = transition.datachange
        if is_commit and self._heard % (_COMMIT_EVERY if self._live is None else 5):
            return
        what = (
            f"+{transition.rows_inserted} rows"
            if is_commit
            else f"{transition.files_added} files for {transition.file_groups_replaced}"
        )
        line = (
            f"    event {transition.sequence:>5}  {transition.table.name:<9} {transition.instant} {transition.action} "
            f"{transition.operation}"
        )
        self.console.print(Text(f"{line}  {what}", style="dim" if is_commit else "cyan"))


def _grid(rows: Sequence[TableRow]) -> Grid:
    grid = Grid(title="the fleet")
    for heading in ("table", "commits", "files", "mean file", "rows", "pending plans", "clustered", "cleaned", "conflicts"):
        grid.add_column(heading, justify="left" if heading == "table" else "right")
    for r in rows:
        s = r.summary
        counts = (s.commits, s.file_groups, size_text(s.mean_file_bytes), f"{s.rows:,}")
        grid.add_row(r.name, *map(str, (*counts, r.pending_plans, r.clusterings, r.cleans, r.conflicts)))
    return grid
