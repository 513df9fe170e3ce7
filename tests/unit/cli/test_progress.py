"""The progress bar: only on a terminal, only for slow commands."""

from __future__ import annotations

import io
import threading

import pyarrow as pa
import pytest
from rich.console import Console

from tideline_cli import advise, inspection, jobs, metadata, read, resize, restore, savepoints, services, share, status, write
from tideline_cli.main import run
from tideline_cli.progress import Progress
from tideline_table.action import write_rows
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def shown(console: Console) -> str:
    return console.file.getvalue()


def test_a_slow_command_shows_what_is_done():
    console = terminal()
    progress = Progress("tables", 3, console=console, shown_after_s=0.0)
    with progress:
        progress._timer.join(30)
        progress.describe("trips\x1b[31m")
        progress.advance()
        progress._bar.refresh()
    assert "1/3" in shown(console)
    assert "trips\\x1b[31m" in shown(console)


def test_a_fast_command_shows_nothing():
    console = terminal()
    with Progress("tables", 3, console=console, shown_after_s=3600) as progress:
        progress.advance()
    assert shown(console) == ""


def test_nothing_is_printed_to_a_pipe():
    console = Console(file=io.StringIO(), force_terminal=False)
    before = threading.active_count()
    with Progress("tables", 3, console=console, shown_after_s=0.0) as progress:
        progress.advance()
        assert threading.active_count() == before
    assert shown(console) == ""


@pytest.fixture
def bars(monkeypatch) -> list[Progress]:
    """The bars of a command, shown at once on a terminal of their own."""
    made: list[Progress] = []

    def progress(unit: str, total: int | None) -> Progress:
        made.append(Progress(unit, total, console=terminal(), shown_after_s=0.0))
        return made[-1]

    for module in (metadata, read, resize, restore, share, advise, services, inspection, jobs, savepoints, status, write):
        monkeypatch.setattr(module, "Progress", progress)
    return made


def counts(bar: Progress) -> tuple[float, float | None]:
    (task,) = bar._bar.tasks
    return task.completed, task.total


def test_commands_count_the_files_that_they_read(tmp_path, bars):
    path = str(tmp_path / "t")
    schema = pa.schema([("id", pa.string()), ("p", pa.string())])
    create_table(path, TableRequest("t", schema, ("id",), ("p",), type=TableType.MOR, index=BucketIndex(2)))
    for _ in range(2):
        write_rows(Table.open(path), pa.table({"id": list("abcdefgh"), "p": ["x", "y"] * 4}), Operation.UPSERT)
    files = sum(len(s.paths) for s in Table.open(path).slices())
    for command in (
        ["read", path, "--output", str(tmp_path / "rows.jsonl")],
        ["metadata", "create", path, "--type", "files,column_stats,bloom_filters"],
        ["resize-buckets", path, "--buckets", "4"],
    ):
        assert run(command) == 0, command
    assert [counts(bar) for bar in bars] == [(files, files), (2, files), (files, files)]
    bars.clear()
    assert run(["check", path]) == 0
    assert run(["advise", path]) == 0
    checked, advised = bars
    assert counts(checked)[0] > 0
    assert counts(advised)[0] > 0


def test_a_restore_counts_the_files_that_it_deletes(tmp_path, bars):
    path = str(tmp_path / "t")
    create_table(path, TableRequest("t", pa.schema([("id", pa.string())]), ("id",)))
    for key in "ab":
        write_rows(Table.open(path), pa.table({"id": [key]}), Operation.UPSERT)
    saved = Table.open(path).state.completed_writes()[0].instant
    assert run(["savepoint", "create", path, "--instant", saved]) == 0
    bars.clear()
    assert run(["restore", path, "--to", saved, "--yes"]) == 0
    assert [counts(bar) for bar in bars] == [(1, None)]


def test_a_table_behind_a_bar_can_be_shared(tmp_path, bars):
    path = str(tmp_path / "t")
    create_table(path, TableRequest("t", pa.schema([("id", pa.string())]), ("id",)))
    assert run(["share", path]) == 0
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a"}\n')
    assert run(["write", path, "--from", str(rows)]) == 0
    assert run(["run", "rollback", path]) == 0
    assert [counts(bar) for bar in bars] == [(0, None), (1, 1), (1, 1), (0, None)], "share, input, write, rollback"


def test_commands_about_metadata_count_what_they_read_and_write(tmp_path, bars):
    path = str(tmp_path / "t")
    create_table(path, TableRequest("t", pa.schema([("id", pa.string()), ("p", pa.string())]), ("id",), ("p",)))
    for key in "abc":
        rows = pa.table({"id": [key, key], "p": ["x", "y"]})
        write_rows(Table.open(path), rows, Operation.INSERT, options={"hoodie.parquet.small.file.limit": 0})
    saved = Table.open(path).state.completed_writes()[0].instant
    page = str(tmp_path / "page.html")
    assert run(["timeline", path, "--limit", "2"]) == 0
    assert run(["show", path, "--html", page]) == 0
    # The footers count from 0 again.
    assert [counts(bar) for bar in bars] == [(2, 2), (6, 6)]
    small = ["--option", "hoodie.clustering.plan.strategy.small.file.limit=1000000"]
    commands = [
        ["show", path],
        ["plan", "clustering", path, "--dry-run", *small],
        ["plan", "archival", path, "--dry-run"],
        ["plan", "clustering", path, *small],
        ["run", "clustering", path, "--dry-run"],
        ["savepoint", "create", path, "--instant", saved],
        ["savepoint", "list", path],
        ["savepoint", "delete", path, saved],
        ["delete-partition", path, "y"],
        ["adopt", path, "--yes"],
    ]
    for command in commands:
        bars.clear()
        assert run(command) == 0, command
        (bar,) = bars
        assert counts(bar)[0] > 0, command
    write_rows(Table.open(path), pa.table({"id": ["d"], "p": ["x"]}), Operation.INSERT)
    assert run(["plan", "clustering", path, *small]) == 0
    (pending,) = Table.open(path).state.pending_clusterings()
    bars.clear()
    assert run(["job", "list", path]) == 0
    assert run(["job", "cancel", path, pending.instant]) == 0
    listed, cancelled = bars
    assert counts(listed) == (1, 1)
    bars.clear()
    assert run(["why", path]) == 0
    assert run(["status", path]) == 0
    assert run(["maintain", path, "--dry-run"]) == 0
    assert [counts(bar) for bar in bars] == [(6, 6), (1, 1), (1, 1)]
    assert counts(cancelled)[0] > 0


def test_items_count_when_they_are_done():
    progress = Progress("tables", None, console=terminal())
    items = progress.over(["a", "b"])
    assert next(items) == "a"
    assert counts(progress) == (0, 2)
    assert list(items) == ["b"]
    assert counts(progress) == (2, 2)
