"""What tests of an application share."""

import pytest
from tests.unit.ingest.topics import new_table

from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage


@pytest.fixture
def storage():
    made = MemoryStorage()
    new_table(made, SystemClock())
    return made
