"""Processor time of an engine's processes between two readings, of which some end in between."""

from __future__ import annotations

import pytest
from tests.benchmarks.link import Ticks, spent_ticks

DAEMON, WORKER = 10, 11


@pytest.mark.parametrize(
    ("after", "spent"),
    [
        pytest.param({DAEMON: Ticks(1, 7, 0), WORKER: Ticks(DAEMON, 140, 0)}, 2 + 40, id="both-live"),
        pytest.param({DAEMON: Ticks(1, 7, 0)}, 2, id="ended-unnoticed"),
        pytest.param({DAEMON: Ticks(1, 7, 130)}, 2 + 30, id="waited-for"),
        pytest.param({DAEMON: Ticks(1, 7, 0), 12: Ticks(DAEMON, 50, 0)}, 2 + 50, id="replaced"),
    ],
)
def test_time_of_ended_processes_is_not_subtracted(after: dict[int, Ticks], spent: int) -> None:
    before = {DAEMON: Ticks(1, 5, 0), WORKER: Ticks(DAEMON, 100, 0)}
    assert spent_ticks(before, after) == spent
