"""The process dies at each storage call of each operation, and a fresh one recovers: all scenarios, one harness (`crashes`)."""

from __future__ import annotations

import pytest
from tests.simulation import (
    crashes_of_resizes,
    crashes_of_rings,
    crashes_of_shared,
    test_archival_crashes,
    test_crash_points,
    test_crash_points_of_cancelling,
    test_crash_points_of_logs,
    test_crash_points_of_shared_metadata,
    test_log_compaction_crashes,
    test_metadata_crashes,
    test_record_index_crashes,
    test_savepoint_crashes,
)
from tests.simulation.crashes import Scenario, die_everywhere

TABLE = {
    "base files": test_crash_points.SCENARIOS,
    "logs": test_crash_points_of_logs.SCENARIOS,
    "cancelled plans": test_crash_points_of_cancelling.SCENARIOS,
    "hash rings": crashes_of_rings.SCENARIOS,
    "resizes": crashes_of_resizes.SCENARIOS,
    "shared": crashes_of_shared.SCENARIOS,
    "metadata of shared": test_crash_points_of_shared_metadata.SCENARIOS,
    "archival": test_archival_crashes.SCENARIOS,
    "savepoints": test_savepoint_crashes.SCENARIOS,
    "log compaction": test_log_compaction_crashes.SCENARIOS,
    "metadata": test_metadata_crashes.SCENARIOS,
    "record index": test_record_index_crashes.SCENARIOS,
}
ROWS = [
    pytest.param(scenario, when, id=f"{topic}: {scenario.name}, {when}")
    for topic, scenarios in TABLE.items()
    for scenario in scenarios
    for when in scenario.deaths
]


@pytest.mark.parametrize(("scenario", "when"), ROWS)
def test_the_process_dies_at_every_call(scenario: Scenario, when: str) -> None:
    die_everywhere(scenario, when)
