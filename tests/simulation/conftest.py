"""What tests of this folder share."""

import os
from functools import cache

import pytest
from tests.simulation.batches import run_batch
from tests.simulation.scheduler import stop_workers

SEEDS = int(os.environ.get("TIDELINE_SIMULATION_SEEDS", "500"))
SEED_START = int(os.environ.get("TIDELINE_SIMULATION_SEED_START", "1"))
BATCH = 50


@pytest.fixture(scope="session", autouse=True)
def no_threads_left():
    yield
    stop_workers()


@pytest.fixture(scope="session")
def batches():
    """Runs the batch of histories that begins with a seed, once."""
    return cache(lambda first: run_batch(first, min(BATCH, SEED_START + SEEDS - first)))
