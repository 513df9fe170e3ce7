"""The progress bar: only on a terminal, only for slow commands."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from tideline_cli.progress import Progress


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
