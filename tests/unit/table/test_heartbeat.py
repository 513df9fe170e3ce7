"""Who is dead, as of when the question was asked."""

import pytest
from tests.unit.table.tables import DEATH_S, QUIET

from tideline_table.clock import ManualClock
from tideline_table.config import Options
from tideline_table.file_group.action import ActionRecord
from tideline_table.storage import MemoryStorage
from tideline_table.timeline.instant import Action, State
from tideline_table.transaction.heartbeat import beats, heartbeat_path, is_alive

INSTANT = "20260101000000000"


class SlowStorage(MemoryStorage):
    """Answers with what was when it was asked, long after."""

    delay_s = 0.0

    def stat(self, path):
        found = super().stat(path)
        self.clock.advance(self.delay_s)
        return found


@pytest.fixture
def place():
    clock = ManualClock()
    storage = SlowStorage(clock=clock)
    storage.clock = clock
    record = ActionRecord(INSTANT, Action.COMMIT, State.INFLIGHT, "UPSERT", 1, 1, "w", clock.now().isoformat())
    storage.put(heartbeat_path(INSTANT), b"")
    return storage, record, clock


@pytest.mark.parametrize("delay_s", [0, 10 * DEATH_S])
@pytest.mark.parametrize(("silent_s", "alive"), [(DEATH_S / 2, True), (DEATH_S + 1, False)])
@pytest.mark.parametrize("by_file", [True, False])
def test_a_slow_answer_makes_nobody_dead(place, delay_s, silent_s, alive, by_file):
    storage, record, clock = place
    clock.advance(silent_s)
    storage.delay_s = delay_s
    found = beats(storage, INSTANT, clock, Options(QUIET)) if by_file else is_alive(storage, record, clock, Options(QUIET))
    assert found is alive
