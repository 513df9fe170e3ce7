"""An appender that others keep outrunning: it lets them pass for a while, gets its turn, or says that it got none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.table.tables import contents, new_table, open_table, write

from tideline_table.clock import ManualClock
from tideline_table.coordination import exclusive as active_timeline
from tideline_table.errors import AppendOutrun, Recovery
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Bare
from tideline_table.log.entry import Entry
from tideline_table.log.table_log import Draft
from tideline_table.table import Table

WAIT_S = 120.0


class Naps(ManualClock):
    """Remembers how long was slept and does something meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def sleep(self, duration_s: float) -> None:
        self.naps.append(duration_s)
        self.meanwhile()
        super().sleep(duration_s)


def outrun(table: Table, rival: Table, times: int) -> list[Entry]:
    """The rival is faster so often in a row."""
    log, others = table.timeline.log, []
    original = log.append

    def append(draft: Draft, sequence: int) -> Entry | None:
        if len(others) < times:
            others.append(begin(rival))
        return original(draft, sequence)

    log.append = append  # type: ignore[method-assign]
    return others


def begin(table: Table) -> Entry:
    timeline = table.timeline
    return timeline.append(lambda state: Draft(timeline.mint(state), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()))


@pytest.fixture
def place() -> tuple[Table, Table, Naps]:
    clock = Naps()
    table, storage, _ = new_table(clock)
    return table, open_table(storage, clock, "rival"), clock


def test_who_loses_several_times_pauses_longer_and_longer(
    place: tuple[Table, Table, Naps], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rival, clock = place
    monkeypatch.setattr("tenacity.wait.random.uniform", lambda _low, high: high)
    others = outrun(table, rival, 12)
    entry = begin(table)
    assert (len(others), entry.sequence) == (12, 13)
    assert clock.naps[:3] == [0, 0, 0]
    assert clock.naps[3:] == [0.04, 0.08, 0.16, 0.32, 0.64, 1, 1, 1, 1]


def test_pauses_hold_up_no_other_thread(place: tuple[Table, Table, Naps]) -> None:
    table, rival, clock = place
    refreshed: list[bool] = []

    def refresh() -> None:
        thread = threading.Thread(target=table.refresh, daemon=True)
        thread.start()
        thread.join(WAIT_S)
        refreshed.append(not thread.is_alive())

    clock.meanwhile = refresh
    outrun(table, rival, 1)
    begin(table)
    assert refreshed == [True]


def test_who_never_gets_a_turn_has_appended_nothing(place: tuple[Table, Table, Naps], monkeypatch: pytest.MonkeyPatch) -> None:
    table, rival, _ = place
    monkeypatch.setattr(active_timeline, "MOST_LOSSES", 10)
    others: list[Any] = outrun(table, rival, 10)
    with pytest.raises(AppendOutrun, match="10 times") as caught:
        write(table, [("a", "p", 1, "x")])
    assert caught.value.recovery is Recovery.RETRY
    table.refresh()
    assert set(table.state.actions) == {other.instant for other in others}
    write(table, [("a", "p", 1, "again")])
    assert contents(table) == [("a", "p", 1, "again")]
