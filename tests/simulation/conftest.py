"""What tests of this folder share."""

import pytest
from tests.simulation.scheduler import stop_workers


@pytest.fixture(scope="session", autouse=True)
def no_threads_left():
    yield
    stop_workers()
