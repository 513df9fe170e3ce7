"""Tasks of one service that run at the same time in this process, within a memory budget.

Decoding, sorting and encoding release the interpreter's lock, so that as many tasks as there are processors make progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(slots=True)
class MemoryBudget:
    """A number of bytes that tasks share. A task that needs more than all of it waits until no other task holds any."""

    limit_bytes: int
    _held: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Wait until `size_bytes` are free, and hold them until the context ends."""
        wanted = min(size_bytes, self.limit_bytes)
        with self._changed:
            self._changed.wait_for(lambda: self._held + wanted <= self.limit_bytes)
            self._held += wanted
        try:
            yield
        finally:
            with self._changed:
                self._held -= wanted
                self._changed.notify_all()


def run_side_by_side(
    tasks: Sequence[Task], work: Callable[[Task], Result], on_done: Callable[[], None] = lambda: None, *, threads: int = 0
) -> list[Result]:
    """Return the result of `work` for each task, in order of the tasks; `on_done` is called behind each, in the caller's thread.

    Runs `threads` tasks at a time, 0: as many as Arrow has threads. An error ends the run once running tasks have ended, so
    that they write nothing afterwards. Raises the error of the first task that has one.
    """
    count = min(len(tasks), threads or pa.cpu_count())
    if count <= 1:
        results = []
        for task in tasks:
            results.append(work(task))
            on_done()
        return results
    pool = ThreadPoolExecutor(count, thread_name_prefix="table-service")
    try:
        running: list[Future[Result]] = [pool.submit(work, task) for task in tasks]
        for done in as_completed(running):
            if done.exception() is not None:
                break
            on_done()
    finally:
        pool.shutdown(cancel_futures=True)
    failed = [future for future in running if not future.cancelled() and future.exception() is not None]
    return [future.result() for future in failed or running]
