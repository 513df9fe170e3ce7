"""What an idle table costs: the requests to storage of one tick of each service, once it knows the table."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.unit.services.fleet import Fleet, known_sequence, write
from tests.unit.services.test_launcher import HeldPlatform, running

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_events import MIRRORS, TABLES, EventLogUnavailable, Heartbeat, decode, encode
from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_lock_service.service import LockService
from tideline_lock_service.settings import LockServiceSettings
from tideline_mirror import positions
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.notices import ALIVE_S
from tideline_mirror.pace import FRESHNESS_S, QUIET_FRACTION
from tideline_mirror.settings import MirrorSettings
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime import open_tables
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.looks import REST_AFTER_S, UNSEEN_REST_AFTER_S
from tideline_runtime.metrics import STORAGE_REQUESTS
from tideline_runtime.news import MISSED_BEATS, News
from tideline_runtime.registry import RESTING_S
from tideline_runtime.resting import SWEEP_S
from tideline_runtime.search_health import SearchHealth
from tideline_runtime.shards import StaticShards
from tideline_table.action import Outcome, TableService, request_clustering, run_clustering
from tideline_table.coordination.exclusive import ExclusiveTimeline
from tideline_table.errors import StorageError
from tideline_table.storage import Folder, LocalStorage

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


SERVICES = [
    (MirrorService, MirrorSettings, "mirror"),
    (PlannerService, PlannerSettings, "planner"),
    (LauncherService, LauncherSettings, "launcher"),
    (CleanerService, CleanerSettings, "cleaner"),
    (LockService, LockServiceSettings, "locks"),
]


class Together:
    """All services of a fleet in this process: each ticks every five seconds of a clock that the test moves."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.notified = False
        settings: dict[str, object] = {"locks": "storage:"}
        self.running = [
            fleet.service(kind, of, name, **settings, **({"freshness_s": FRESHNESS_S} if name == "mirror" else {}))[0]
            for kind, of, name in SERVICES
        ]
        self.log = fleet.event_log.tail([TABLES.name, MIRRORS.name])
        self.news: list[News] = [found for service in self.running[1:] if (found := service._tables.looks._news) is not None]
        for news in self.news:
            news.stop()  # the thread goes by the machine's time; this test reads what is there before each tick

    def tick(self, seconds: float, *, mirror: bool = True, every_s: int = 5) -> None:
        for _ in range(int(seconds // every_s)):
            self.fleet.clock.advance(every_s)
            if self.notified:
                self.told()
            for service in self.running if mirror else self.running[1:]:
                if service is not self.running[0]:
                    self.read()
                service.tick()

    def told(self, *objects: str) -> None:
        """The queue of notifications answers, from now on at each tick, with these objects."""
        self.notified = True
        self.running[0]._notices.take(objects)

    def read(self) -> None:
        told = self.log.poll(0)
        for news in self.news:
            news.take(told, is_at_end=self.log.is_at_end())


def test_a_quiet_table_costs_sixty_requests_an_hour_over_all_services_together(fleet: Fleet, asked: Counter[str]) -> None:
    tables = [fleet.create(f"idle{number}") for number in range(3)]
    for table in tables:
        write(table, 0)
    together = Together(fleet)
    together.tick(FRESHNESS_S / QUIET_FRACTION)
    asked.clear()
    together.tick(3600)
    assert asked.total() <= 3 * 60
    # A commit wakes all of them, and nothing of it waits longer than the freshness.
    write(tables[0], 100)
    head = tables[0].state.sequence
    together.tick(FRESHNESS_S)
    for service in together.running:
        assert known_sequence(service, tables[0]) >= head


def test_without_a_living_mirror_the_services_ask_storage_themselves(fleet: Fleet) -> None:
    table = fleet.create("trips")
    write(table, 0)
    together = Together(fleet)
    together.tick(600)
    write(table, 100)
    together.tick(MISSED_BEATS * 60 + 5, mirror=False)
    for service in together.running[1:]:
        found = service._tables.by_uid(table.uid)
        assert found is not None
        assert found.state.sequence == table.state.sequence


def test_a_mirror_that_is_behind_what_a_service_knows_is_not_believed(fleet: Fleet) -> None:
    table = fleet.create("trips")
    write(table, 0)
    together = Together(fleet)
    together.tick(600)
    write(table, 100)
    together.tick(MISSED_BEATS * 60 + 5, mirror=False)
    write(table, 200)
    now = fleet.clock.now()
    # It was started again, and has not published yet what was written meanwhile.
    beat = Heartbeat("", 0, 1, now, now, interval_s=60.0, tables=1, behind=1)
    for news in together.news:
        news.take([encode(beat)], is_at_end=True)
    together.tick(5, mirror=False)
    for service in together.running[1:]:
        found = service._tables.by_uid(table.uid)
        assert found is not None
        assert found.state.sequence == table.state.sequence


def test_a_table_of_which_the_mirror_tells_soon_after_a_search_is_found_by_the_next_one(fleet: Fleet) -> None:
    fleet.create("trips")
    together = Together(fleet)
    together.tick(600)
    for service in together.running[1:]:
        service._tables.registry.rescan()
    fleet.create("later")
    together.tick(65)
    assert len(together.running[0]._tables.known()) == 2
    together.tick(60)
    assert [len(service._tables.known()) for service in together.running] == [2] * len(together.running)


def test_a_search_that_failed_is_repeated_although_the_mirror_lives(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    table = fleet.create("trips")
    together = Together(fleet)
    together.tick(600)
    list_folder, root = LocalStorage.list_folder, table.storage.root.rpartition("/")[0]

    def away(self: LocalStorage, path: str) -> Folder:
        if self.root == root:
            raise StorageError("away")
        return list_folder(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "list_folder", away)
        fleet.clock.advance(RESTING_S)
        together.tick(65)
    registries = [service._tables.registry for service in together.running[1:]]
    assert all(registry.search_failure() for registry in registries)
    together.tick(65)
    assert not [failure for registry in registries if (failure := registry.search_failure())]


def test_what_the_mirror_saw_while_the_event_log_was_away_is_published_by_the_next_tick(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fleet.create("trips")
    write(table, 0)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", freshness_s=FRESHNESS_S)
    service.tick()
    fleet.clock.advance(FRESHNESS_S / QUIET_FRACTION)
    service.tick()
    fleet.clock.advance(FRESHNESS_S)
    write(table, 10)

    def away(shard: int) -> int:
        raise EventLogUnavailable(f"away: {shard}")

    with monkeypatch.context() as patched:
        patched.setattr(service._publishers, "settle", away)
        with pytest.raises(EventLogUnavailable):
            service.tick()
    service.tick()
    table.refresh()
    assert [event.sequence for event in fleet.events("tideline.timeline")][-1] == table.state.sequence


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


def test_with_notifications_a_quiet_table_costs_a_few_requests_an_hour_over_all_services_together(
    fleet: Fleet, asked: Counter[str]
) -> None:
    tables = [fleet.create(f"idle{number}") for number in range(3)]
    for table in tables:
        write(table, 0)
    together = Together(fleet)
    together.tick(5)
    # The store tells of one of them, and of nothing else for half a day.
    together.told(f"{tables[0].storage.root}/.hoodie/.tideline/log/{1:020d}.json")
    together.tick(12 * 3600, every_s=50)
    asked.clear()
    together.tick(6 * 3600, every_s=50)
    assert 0 < asked.total() <= 3 * 6 * 2
    # A step of which the store tells is published by the next tick.
    write(tables[1], 100)
    together.told(f"{tables[1].storage.root}/.hoodie/.tideline/log/{tables[1].state.sequence:020d}.json")
    together.tick(5)
    assert fleet.event_log.cursor(tables[1].uid).sequence == tables[1].state.sequence
    # One whose notification was lost waits for the next look at a resting table, and not longer.
    write(tables[2], 100)
    together.tick(MirrorSettings.model_fields["notified_freshness_s"].default, every_s=50)
    assert fleet.event_log.cursor(tables[2].uid).sequence == tables[2].state.sequence


def test_when_the_queue_dies_the_mirror_polls_within_the_freshness(fleet: Fleet) -> None:
    table = fleet.create("trips")
    write(table, 0)
    together = Together(fleet)
    together.tick(5)
    together.told(f"{table.storage.root}/.hoodie/.tideline/log/{1:020d}.json")
    together.tick(3600, every_s=50)
    write(table, 100)
    together.tick(FRESHNESS_S, every_s=50)
    cursor = fleet.event_log.cursor(table.uid)
    assert cursor is not None
    assert cursor.sequence < table.state.sequence, "the table rests: the test means something"
    together.notified = False
    together.tick(ALIVE_S + FRESHNESS_S)
    assert fleet.event_log.cursor(table.uid).sequence == table.state.sequence


def test_a_table_that_rests_is_not_open_and_what_happens_to_it_is_seen_with_and_without_a_mirror(fleet: Fleet) -> None:
    table = fleet.create("trips")
    write(table, 0)
    together = Together(fleet)
    together.tick(5)
    together.told(f"{table.storage.root}/.hoodie/.tideline/log/{1:020d}.json")
    rests_s = REST_AFTER_S + MirrorSettings.model_fields["notified_freshness_s"].default
    together.tick(rests_s, every_s=200)
    closing = together.running[:-1]  # the lock service asks for leases, of which the mirror does not tell
    for service in closing:
        assert service._tables.resting().keys() == {table.uid}
        assert service._tables.by_uid(table.uid) is None
    watch = together.running[1]._watch
    assert watch.document(table.uid)["sequence"] == table.state.sequence
    _, (verdict,) = watch.verdicts(table.uid, [TableService.CLUSTERING])
    assert verdict.outcome is Outcome.NOT_DUE
    # What a notification names is opened at once, and the mirror tells the others.
    write(table, 100)
    together.told(f"{table.storage.root}/.hoodie/.tideline/log/{table.state.sequence:020d}.json")
    together.tick(5)
    assert all(known_sequence(service, table) == table.state.sequence for service in together.running)
    assert not any(service._tables.resting() for service in closing)
    # A step of which nobody tells, because no mirror lives.
    together.tick(rests_s, every_s=200)
    assert all(service._tables.resting() for service in closing)
    write(table, 200)
    together.tick(MISSED_BEATS * 60 + 5, mirror=False)
    assert all(known_sequence(service, table) == table.state.sequence for service in together.running[1:])


def test_a_policy_about_a_table_that_rests_is_followed(fleet: Fleet) -> None:
    table = fleet.create("trips")
    for first in range(3):
        write(table, 10 * first)
    policies = fleet.folder / "policies.yaml"
    policies.write_text("version: 1\n")
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    planner, _ = fleet.service(PlannerService, PlannerSettings, "planner", policy_file=policies)
    for _ in range(4):
        mirror.tick()
        fleet.clock.advance(REST_AFTER_S)
    mirror.tick()
    heard = planner._tables.looks._news
    heard.take(fleet.event_log.tail([TABLES.name, MIRRORS.name]).poll(0), is_at_end=True)
    heard.stop()
    planner.tick()
    assert planner._tables.resting()
    policies.write_text("version: 1\ndefaults: {settings: {planner: {clustering_min_files: 2, clustering_min_commits: 2}}}\n")
    for _ in range(3):
        fleet.clock.advance(5)
        planner.tick()
    assert table.refresh().pending_clusterings()


def test_a_service_that_starts_opens_tables_that_rest_in_turns(
    fleet: Fleet, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [fleet.create(f"idle{number}") for number in range(3)]
    for table in tables:
        write(table, 0)
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    mirror.tick()
    fleet.clock.advance(UNSEEN_REST_AFTER_S)
    mirror.tick()
    write(tables[0], 100)
    mirror.tick()
    monkeypatch.setattr(open_tables, "OPENING_S", 0.0)
    planner, _ = fleet.service(PlannerService, PlannerSettings, "planner")
    assert planner.tick() == 0.0, "the others follow at once"
    assert planner._tables.known().keys() == {table.uid for table in tables}
    assert planner._tables.resting().keys() == {table.uid for table in tables[1:]}
    locks, _ = fleet.service(LockService, LockServiceSettings, "locks", locks="storage:")
    locks.tick()
    assert all(locks._tables.by_uid(table.uid) is not None for table in tables), "it grants the lease of each at once"
    monkeypatch.undo()
    pause_s = planner.tick()
    assert all(planner._watch.document(table.uid) is not None for table in tables)
    assert pause_s is None or pause_s > 1, "all have a document"


def let_rest(fleet: Fleet, kind: type, settings: type, name: str, *more: object, **explicit: object) -> Any:
    """A service in which all tables rest, because a mirror told it that they are quiet; the mirror is then not heard any more."""
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    service, _ = fleet.service(kind, settings, name, *more, **explicit)
    for _ in range(4):
        mirror.tick()
        fleet.clock.advance(REST_AFTER_S)
    mirror.tick()
    heard = service._tables.looks._news
    heard.take(fleet.event_log.tail([TABLES.name, MIRRORS.name]).poll(0), is_at_end=True)
    heard.stop()
    service.tick()
    assert service._tables.resting()
    return service


def test_a_visit_of_all_tables_passes_over_those_that_rest_and_have_no_news(fleet: Fleet) -> None:
    tables = [fleet.create(f"idle{number}") for number in range(3)]
    for table in tables:
        write(table, 0)
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner")
    planner._visits._hinted = HintedTables()  # no event of the timeline names a table
    asked: list[str] = []
    rests = planner._tables.waits
    planner._tables.waits = lambda base_path: asked.append(base_path) or rests(base_path)

    def tick(seconds: float) -> list[str]:
        asked.clear()
        fleet.clock.advance(seconds)
        planner.tick()
        return sorted(asked)

    assert [tick(5), tick(5), tick(5)] == [[], [], []]
    # One has news, of which no event of the timeline told this service.
    write(tables[1], 100)
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    mirror.tick()
    planner._tables.looks._news.take(fleet.event_log.tail([TABLES.name]).poll(0)[-1:], is_at_end=True)
    assert tick(5) == [tables[1].storage.root]
    assert known_sequence(planner, tables[1]) == tables[1].state.sequence
    assert tick(5) == [], "that one is open now"
    assert len(tick(SWEEP_S)) == 2, "each of the others is asked at times"
    assert tick(5) == []
    assert len(tick(MISSED_BEATS * 60)) == 2, "no mirror lives any more"
    assert len(tick(5)) == 2


@pytest.mark.parametrize(
    ("kind", "settings", "name"), [(PlannerService, PlannerSettings, "planner"), (LauncherService, LauncherSettings, "launcher")]
)
def test_another_table_at_the_place_of_one_that_rests_is_served(fleet: Fleet, kind: type, settings: type, name: str) -> None:
    """The log of the new table is shorter: an entry after the last one of the old table was never there."""
    table = fleet.create("trips")
    for first in range(3):
        write(table, 10 * first)
    service = let_rest(fleet, kind, settings, name)
    shutil.rmtree(fleet.path("trips"))
    other = fleet.create("trips")
    for _ in range(2):
        fleet.clock.advance(MISSED_BEATS * 60 + 20)
        service.tick()
    assert service._tables.known() == {other.uid: other.storage.root}


def test_an_application_of_a_table_that_rests_is_adopted(fleet: Fleet) -> None:
    """Nobody counted it, or ended it at its deadline."""
    table = fleet.create("trips")
    write(table, 0)
    platform = HeldPlatform()
    launcher = let_rest(fleet, LauncherService, LauncherSettings, "launcher", platform)
    found = running("20260101000000000", table.uid)
    platform.by_name[found.driver] = (found,)
    launcher.tick()
    assert launcher._tables.by_uid(table.uid) is not None
    assert (found.driver, found.key) in launcher._seen


def test_a_table_that_cannot_be_opened_does_not_rest(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one that rests as soon as opening others took long: its finding ended, and began again with the next visit."""
    write(fleet.create("trips"), 0)
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner")
    fleet.clock.advance(UNSEEN_REST_AFTER_S)
    monkeypatch.setattr(open_tables, "read_identity", unreachable)
    for opening_s in (open_tables.OPENING_S, 0.0):
        monkeypatch.setattr(open_tables, "OPENING_S", opening_s)
        monkeypatch.setattr(News, "at_rest", lambda _, base_path, __: (uid_of(fleet), 9))
        fleet.clock.advance(10)
        planner.tick()
        assert len(planner._tables.refusals()) == 1


def test_a_budget_of_the_fleet_counts_what_was_rewritten_of_tables_that_rest(fleet: Fleet) -> None:
    table = fleet.create("trips")
    for first in range(3):
        write(table, 10 * first)
    assert run_clustering(table, request_clustering(table))
    policies = fleet.folder / "policies.yaml"
    policies.write_text("version: 1\n")
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner", policy_file=policies)
    policies.write_text("version: 1\nfleet: {bytes_per_day: 1000000}\n")
    for _ in range(3):
        fleet.clock.advance(5)
        planner.tick()
    assert planner._tables.resting()
    assert planner._ledgers.total(fleet.clock.now()) > 0


def unreachable(_: object) -> None:
    raise StorageError("the store is away", remedy="retry")


def uid_of(fleet: Fleet) -> str:
    return fleet.open().uid


def test_the_mirror_goes_on_with_a_table_that_it_does_not_close(fleet: Fleet) -> None:
    """Close to an audit a table stays open: its cursor was read again, and its files put in order again, at each look."""
    table = fleet.create("trips")
    write(table, 0)
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror", audit_interval_s=600.0)
    for _ in range(4):
        mirror.tick()
        fleet.clock.advance(REST_AFTER_S)
    for _ in range(3):
        mirror.tick()
    assert mirror._tables.by_uid(table.uid) is not None
    assert table.uid in mirror._cursors
    assert mirror._in_order == {table.uid: table.state.sequence}


def test_a_table_that_rests_and_whose_check_fails_is_asked_again_by_the_next_visit(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as one that rests: visits passed over it, and its error stayed, until all tables were asked again."""
    tables = [fleet.create(f"idle{number}") for number in range(2)]
    for table in tables:
        write(table, 0)
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner")
    found, away, exists = planner._tables, tables[0].storage.root, open_tables.exists
    shown: list[tuple[int, set[str]]] = []
    monkeypatch.setattr(SearchHealth, "opened", lambda _, count, failures: shown.append((count, set(failures))))
    with monkeypatch.context() as patched:
        patched.setattr(open_tables, "exists", lambda at, path: unreachable(at) if at.root == away else exists(at, path))
        patched.setattr(News, "at_rest", lambda *_: None)  # the mirror tells nothing of these tables
        fleet.clock.advance(SWEEP_S)
        planner.tick()
    assert shown[-1] == (1, {away})
    assert found.resting().keys() == {tables[1].uid}
    fleet.clock.advance(5)
    planner.tick()
    assert not found.refusals()
    assert shown[-1] == (2, set())


def test_news_of_other_tables_are_not_kept(fleet: Fleet) -> None:
    """Names of tables that come and go elsewhere gathered for as long as the service ran."""
    table = fleet.create("idle0")
    write(table, 0)
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner")
    record = decode(fleet.event_log.tail([TABLES.name]).poll(0)[-1])
    for number in range(3):
        place = replace(record.table, uid=str(uuid4()), base_path=f"s3://b/{number}")
        elsewhere = replace(record, table=place, fleet="other")
        planner._tables.looks._news.take([encode(elsewhere)], is_at_end=True)
        fleet.clock.advance(5)
        planner.tick()
    assert planner._tables._resting._moved <= {table.storage.root}


def test_a_table_that_was_passed_over_while_its_shard_was_lost_is_looked_at_by_the_next_visit(fleet: Fleet) -> None:
    table = fleet.create("idle0")
    write(table, 0)
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner")
    write(table, 100)
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    mirror.tick()
    planner._tables.looks._news.take(fleet.event_log.tail([TABLES.name, MIRRORS.name]).poll(0), is_at_end=True)
    held, planner._tables.shards = planner._tables.shards, Lapsed()
    fleet.clock.advance(SWEEP_S)
    planner.tick()
    planner._tables.shards = held
    fleet.clock.advance(5)
    planner.tick()
    assert known_sequence(planner, table) == table.state.sequence


class Lapsed(StaticShards):
    """The lease of the one shard ends when the visit has just begun."""

    def term(self, shard: int) -> str | None:
        return None


def test_a_table_that_rests_and_that_the_mirror_leaves_is_asked_by_each_visit(fleet: Fleet) -> None:
    """As is one of which nothing is told since the event log was opened again."""
    table = fleet.create("idle0")
    write(table, 0)
    planner = let_rest(fleet, PlannerService, PlannerSettings, "planner")
    told = decode(fleet.event_log.tail([TABLES.name]).poll(0)[-1])
    planner._tables.looks._news.take([encode(replace(told, health="unmanaged"))], is_at_end=True)
    for _ in range(3):
        fleet.clock.advance(5)
        planner.tick()
    assert planner._tables.resting()
    write(table, 100)
    fleet.clock.advance(5)
    planner.tick()
    assert known_sequence(planner, table) == table.state.sequence


def test_a_step_told_during_the_first_visit_of_a_mirror_does_not_wait_for_the_look_at_a_resting_table(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first visit of many tables is long, and the mirror knows its tables only when it has ended."""
    tables = [fleet.create(f"idle{number}") for number in range(2)]
    for table in tables:
        write(table, 0)
    before, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    before.tick()
    fleet.stop(before)
    fleet.clock.advance(REST_AFTER_S)
    monkeypatch.setattr(positions, "OPENING_S", 0.0)  # others have their turn for many visits
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    notices, log = mirror._notices, "/.hoodie/.tideline/log/"
    notices.take([f"{tables[1].storage.root}{log}{1:020d}.json"])
    know = notices.know

    def beside(known: dict[str, str]) -> None:
        if not notices._uids:
            write(tables[0], 100)
            notices.take([f"{tables[0].storage.root}{log}{tables[0].state.sequence:020d}.json"])
        know(known)

    monkeypatch.setattr(notices, "know", beside)
    for _ in range(3):
        mirror.tick()
        fleet.clock.advance(5)
        notices.take(())
    assert fleet.event_log.cursor(tables[0].uid).sequence == tables[0].state.sequence
