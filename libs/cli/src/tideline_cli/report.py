"""Printing: JSON documents for programs, aligned text for people."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table as Grid

PIPE_WIDTH = 200
"""Columns that a listing may take where no terminal says otherwise."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """`text` with control characters escaped: names come from tables that others wrote and must not steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def stdout_bytes() -> BinaryIO:
    """Stdout for bytes, after everything that was printed as text."""
    sys.stdout.flush()
    return sys.stdout.buffer


def print_json(document: object) -> None:
    """One JSON document and a line end."""
    stream = stdout_bytes()
    stream.write(json.dumps(_plain(document), ensure_ascii=False, indent=2).encode())
    stream.write(b"\n")
    stream.flush()


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def print_line(text: str) -> None:
    """One line for people."""
    _console().print(printable(text), soft_wrap=True)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other."""
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, printable(str(value)))
    _console().print(grid)


def print_listing(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Rows below a heading; the columns named in `right` are aligned to the right."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        grid.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*("" if value is None else printable(str(value)) for value in row))
    _console().print(grid)


def size_text(size_bytes: int) -> str:
    """`size_bytes` in the largest binary unit that keeps it at 1 or more."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def _console() -> Console:
    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
