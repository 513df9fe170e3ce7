"""What tests of this folder share."""

import os
from functools import cache

import pytest
from tests.simulation.batches import run_batch
from tests.simulation.determinism import OneByOne
from tests.simulation.faults import SAMPLE_STEP
from tests.simulation.scheduler import stop_workers

from tideline_table.metadata_table import instant_files, record_index

SEEDS = int(os.environ.get("TIDELINE_SIMULATION_SEEDS") or max(120, 600 // SAMPLE_STEP))
"""Histories: 600 nightly with SAMPLE_STEP=1, beside those of `make simulate`; so many in `.ci/run` that all kinds of work occur."""
SEED_START = int(os.environ.get("TIDELINE_SIMULATION_SEED_START", "1"))
BATCH = 50


@pytest.fixture(scope="session", autouse=True)
def no_threads_left():
    yield
    stop_workers()


@pytest.fixture(autouse=True)
def one_write_at_a_time(monkeypatch):
    """Calls of the storage come in the same order each time, so that a process can be stopped before each of them."""
    for module in (instant_files, record_index):
        monkeypatch.setattr(module, "ThreadPoolExecutor", OneByOne)


@pytest.fixture(scope="session")
def batches():
    """Runs the batch of histories that begins with a seed, once."""
    return cache(lambda first: run_batch(first, min(BATCH, SEED_START + SEEDS - first)))
