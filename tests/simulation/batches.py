"""Histories in batches, each in a process of its own: as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.scheduler import stop_workers
from tests.simulation.shared_simulation import history
from tests.simulation.simulate import story


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What came of consecutive seeds.

    `stories` are those of histories that fail; only the first one's unless told to keep going.
    """

    stories: tuple[str, ...]
    histories: int
    faults: Counter[str]
    work: Counter[str]
    """What was published, and operations by how they ended."""
    fewest_steps: int

    @property
    def story(self) -> str:
        """That of the first history that fails, empty when all hold."""
        return self.stories[0] if self.stories else ""


def run_batch(first: int, count: int, *, keep_going: bool = False) -> BatchOutcome:
    """Run the histories of `count` seeds from `first` on, up to the first that fails."""
    faults: Counter[str] = Counter()
    work: Counter[str] = Counter()
    steps: list[int] = []
    stories: list[str] = []
    try:
        for seed in range(first, first + count):
            outcome = history(seed)
            faults += outcome.faults
            work += outcome.work + outcome.ops
            steps.append(outcome.steps)
            if outcome.problems:
                stories.append(story(outcome))
                if not keep_going:
                    break
        return BatchOutcome(tuple(stories), len(steps), faults, work, min(steps))
    finally:
        stop_workers()


@contextmanager
def running_batches(
    seed_start: int, seeds: int, batch: int, *, keep_going: bool = False, processes: int = 0
) -> Iterator[Mapping[int, Future[BatchOutcome]]]:
    """First seed → the batch that begins with it, on its way, on all cores unless told how many `processes`.

    What has not begun when the context ends never does.
    """
    end = seed_start + seeds
    firsts = range(seed_start, end, batch)
    pool = ProcessPoolExecutor(processes or os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    try:
        yield {first: pool.submit(run_batch, first, min(batch, end - first), keep_going=keep_going) for first in firsts}
    finally:
        pool.shutdown(cancel_futures=True)
