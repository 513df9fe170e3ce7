"""Prints results: JSON documents for programs, aligned text for people."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table as Grid

PIPE_WIDTH = 200
"""Width of a listing, in characters, if stdout is no terminal."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """Return `text` with control characters escaped: names in tables are untrusted and must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def stdout_bytes() -> BinaryIO:
    """Return stdout for bytes, after flushing printed text."""
    sys.stdout.flush()
    return sys.stdout.buffer


def print_json(document: object) -> None:
    """Print one JSON document and a line end."""
    stream = stdout_bytes()
    stream.write(json.dumps(document, ensure_ascii=False, indent=2, default=_plain).encode() + b"\n")
    stream.flush()


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else dict(value)


def print_line(text: str) -> None:
    """Print one line for people."""
    _console().print(printable(text), soft_wrap=True)


def print_warning(text: str) -> None:
    """Print one line on stderr about a request that succeeded, but may not do what the user meant."""
    print(f"tideline: warning: {printable(' '.join(text.split()))}", file=sys.stderr)  # noqa: T201 - a command's output


def print_result(document: object, text: str, *more: str, as_json: bool) -> None:
    """Print the result of a command: the JSON document for programs, or lines for people."""
    if as_json:
        print_json(document)
    else:
        for line in (text, *more):
            print_line(line)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, printable(str(value)))
    _console().print(grid)


def print_listing(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print rows below a heading. The columns named in `right` are right-aligned."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        grid.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*("" if value is None else printable(str(value)) for value in row))
    _console().print(grid)


def size_text(size_bytes: int) -> str:
    """Return `size_bytes` in the largest binary unit in which it is at least 1."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def _console() -> Console:
    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
