"""What an idle table costs: the requests to storage of one tick of each service, once it knows the table."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.services.fleet import Fleet, write

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime.metrics import STORAGE_REQUESTS
from tideline_table.coordination.exclusive import ExclusiveTimeline
from tideline_table.storage import LocalStorage

REQUESTS = (
    "read",
    "read_range",
    "stat",
    "put",
    "put_if_absent",
    "delete",
    "list_folder",
    "list_objects",
    "open_input",
    "open_output",
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to any table by their kind."""
    found: Counter[str] = Counter()

    def counted(kind: str) -> None:
        inner = getattr(LocalStorage, kind)

        def call(self: LocalStorage, path: str, *rest: object) -> object:
            if self.root.rpartition("/")[2].startswith("idle"):
                found[kind] += 1
            return inner(self, path, *rest)

        monkeypatch.setattr(LocalStorage, kind, call)

    for kind in REQUESTS:
        counted(kind)
    return found


@pytest.mark.parametrize(
    ("kind", "settings", "name", "per_tick", "per_minute"),
    [
        (MirrorService, MirrorSettings, "mirror", 2, 7),
        (PlannerService, PlannerSettings, "planner", 1, 6),
        (CleanerService, CleanerSettings, "cleaner", 1, 3),
    ],
)
def test_an_idle_table_has_a_bounded_number_of_requests(
    fleet: Fleet, asked: Counter[str], kind: type, settings: type, name: str, per_tick: int, per_minute: int
) -> None:
    for number in range(3):
        table = fleet.create(f"idle{number}")
        for first in range(2):
            write(table, first * 10)
    service, context = fleet.service(kind, settings, name)
    for _ in range(4):
        service.tick()
    asked.clear()
    before = context.metrics.value(STORAGE_REQUESTS, kind="read")
    for _ in range(10):
        service.tick()
    assert set(asked) == {"read"}
    assert asked.total() == 3 * 10 * per_tick
    assert context.metrics.value(STORAGE_REQUESTS, kind="read") - before == asked.total()
    asked.clear()
    fleet.clock.advance(61)
    service.tick()
    assert asked.total() <= 3 * per_minute
    assert not asked.keys() & {"put", "put_if_absent", "delete", "open_output"}


def test_a_commit_during_the_tick_of_the_mirror_is_published_in_the_next_one_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fleet.create("trips")
    write(table, 0)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    while service.tick() == 0.0:
        pass
    heal = ExclusiveTimeline.heal

    def beside(self: ExclusiveTimeline, min_age_s: float) -> bool:
        monkeypatch.undo()
        write(table, 10)
        return heal(self, min_age_s)

    monkeypatch.setattr(ExclusiveTimeline, "heal", beside)
    assert service.tick() == 0.0
    service.tick()
    table.refresh()
    assert [event.sequence for event in fleet.events("tideline.timeline")][-1] == table.state.sequence
