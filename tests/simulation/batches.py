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
from tests.simulation.simulate import simulate, story


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What came of consecutive seeds. `story` is that of the first history that fails, empty when all hold."""

    story: str
    faults: Counter[str]
    fewest_steps: int


def run_batch(first: int, count: int) -> BatchOutcome:
    """Run the histories of `count` seeds from `first` on, up to the first that fails."""
    faults: Counter[str] = Counter()
    steps: list[int] = []
    try:
        for seed in range(first, first + count):
            outcome = simulate(seed)
            faults.update(outcome.faults)
            steps.append(outcome.steps)
            if outcome.problems:
                return BatchOutcome(story(outcome), faults, min(steps))
        return BatchOutcome("", faults, min(steps))
    finally:
        stop_workers()


@contextmanager
def running_batches(seed_start: int, seeds: int, batch: int) -> Iterator[Mapping[int, Future[BatchOutcome]]]:
    """First seed → the batch that begins with it, on its way. What has not begun when the context ends never does."""
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    try:
        end = seed_start + seeds
        yield {first: pool.submit(run_batch, first, min(batch, end - first)) for first in range(seed_start, end, batch)}
    finally:
        pool.shutdown(cancel_futures=True)
