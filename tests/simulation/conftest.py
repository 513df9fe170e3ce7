"""What tests of this folder share."""

import os

import pytest
from tests.simulation.batches import running_batches
from tests.simulation.hunt import running_hunts
from tests.simulation.scheduler import stop_workers

SEEDS = int(os.environ.get("TIDELINE_SIMULATION_SEEDS", "2000"))
SEED_START = int(os.environ.get("TIDELINE_SIMULATION_SEED_START", "1"))
BATCH = 50
_BESIDE = ("hunts", "batches")
"""Fixtures of what other processes do."""


@pytest.fixture(scope="session", autouse=True)
def no_threads_left():
    yield
    stop_workers()


def pytest_collection_modifyitems(items):
    """What waits for other processes comes last: the tests of other folders use the core that these leave."""
    items.sort(key=lambda item: any(name in _BESIDE for name in getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session")
def hunts(request):
    """Protection → the hunt for it, of those that are asked for."""
    with running_hunts(item.callspec.params["name"] for item in _asking(request, "hunts")) as running:
        yield running


@pytest.fixture(scope="session")
def batches():
    """First seed → the batch of histories that begins with it."""
    with running_batches(SEED_START, SEEDS, BATCH) as running:
        yield running


@pytest.fixture(scope="session")
def ahead(request):
    """Begins now what tests ask for later: the tests between use one core."""
    for fixture in _BESIDE:
        if _asking(request, fixture):
            request.getfixturevalue(fixture)


def _asking(request, fixture):
    return [item for item in request.session.items if fixture in item.fixturenames]
