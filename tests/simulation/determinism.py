"""Everything that production code takes from outside during a history (random ids, jitter, threads), taken from the seed
instead."""

from __future__ import annotations

import functools
import gc
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest.mock import patch

import pyarrow as pa
import tenacity.wait
from tests.simulation.scheduler import Scheduler, SimulatedThreading
from tests.simulation.small_files import SmallFileScan

import tideline_locks.renewal
import tideline_table.coordination.heartbeat
import tideline_table.coordination.reservations
from tideline_table.action.restore import steps as restore
from tideline_table.hudi import version6
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.log import retention, statistics
from tideline_table.metadata_table import instant_files, record_index
from tideline_table.reader import base_file, read_plan

T = TypeVar("T")
_PARSED = functools.lru_cache(maxsize=4096)(parse_timeline_file_name)


class OneByOne:
    """An executor whose only thread is the caller's."""

    def __init__(self, workers: int, **_: object) -> None:
        self.workers = workers

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def map(self, do: Callable[..., T], *arguments: Iterable[object]) -> Iterator[T]:
        return map(do, *arguments)


@contextmanager
def deterministic(seed: int, scheduler: Scheduler) -> Iterator[None]:
    """Random uuids and the jitter of retries follow `seed`; heartbeats and lease renewals are tasks of `scheduler`.

    Logging is off.
    """
    ids = random.Random(f"ids {seed}")
    threads = SimulatedThreading(scheduler)
    disabled = logging.root.manager.disable
    with ExitStack() as stack:
        stack.enter_context(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)))
        stack.enter_context(patch.object(tenacity.wait, "random", random.Random(f"jitter {seed}")))
        stack.enter_context(patch.object(tideline_table.coordination.reservations, "random", random.Random(f"naps {seed}")))
        stack.enter_context(patch.object(tideline_table.coordination.heartbeat, "threading", threads))
        stack.enter_context(patch.object(tideline_locks.renewal, "threading", threads))
        # A pure function that every writer asks about every timeline file: remembered, for speed alone.
        stack.enter_context(patch.object(version6, "parse_timeline_file_name", _PARSED))
        for module in (retention, restore, statistics, instant_files, record_index):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", OneByOne))
        for module in (base_file, read_plan):
            stack.enter_context(patch.object(module, "BaseFileScan", SmallFileScan))
        # Short-lived objects by the hundred thousand, few of them in cycles.
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(100_000, 20, 50)
        logging.disable(logging.CRITICAL)
        # Arrow decodes these tiny files faster alone than with helpers that have to be woken up.
        stack.callback(pa.set_cpu_count, pa.cpu_count())
        pa.set_cpu_count(1)
        stack.callback(logging.disable, disabled)
        yield
