"""A progress bar on stderr for commands that run longer than two seconds on a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

import rich.progress as bars
from rich.console import Console

from tideline_cli.report import printable

SHOWN_AFTER_S = 2.0
T = TypeVar("T")


class Progress:
    """Counts steps from `__enter__` to `__exit__`. Thread-safe. `total` is None if the number of steps is not known.

    Nothing is printed unless stderr is a terminal and the command has run for `SHOWN_AFTER_S`. The bar is removed at the end.
    """

    def __init__(
        self, unit: str, total: int | None, *, console: Console | None = None, shown_after_s: float = SHOWN_AFTER_S
    ) -> None:
        self._console = console or Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn(unit),
            bars.TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total)
        self._timer = threading.Timer(shown_after_s, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._is_over = self._is_shown = False

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._is_shown:
                self._bar.stop()

    def advance(self, steps: float = 1) -> None:
        """Add `steps` to the number of steps that are done."""
        self._bar.advance(self._task, steps)

    def expect(self, total: int) -> None:
        """Set the number of steps, and set the number of steps that are done to 0."""
        self._bar.reset(self._task, total=total)

    def counting(self, items: Sequence[object]) -> Callable[[], None]:
        """Make the number of `items` the total, and return the function to call after each item."""
        self.expect(len(items))
        return self.advance

    def over(self, items: Sequence[T]) -> Iterator[T]:
        """Make the number of `items` the total, and yield the items. An item counts as done when the caller takes the next one."""
        self.expect(len(items))
        for item in items:
            yield item
            self.advance()

    def describe(self, text: str) -> None:
        """Set the text that the bar shows."""
        self._bar.update(self._task, description=printable(text))

    def _show(self) -> None:
        with self._lock:
            if not self._is_over:
                self._is_shown = True
                self._bar.start()
