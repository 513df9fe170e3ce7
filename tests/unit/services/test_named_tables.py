"""What services do with tables that a source of tables names, beside those of patterns."""

import sys
from dataclasses import replace

import pytest
from tests.unit.services.fleet import update, write
from tests.unit.services.test_launcher import EPOCH, HeldPlatform, launcher, name_of, planned
from tests.unit.services.test_planner import SORT, planner, sorted_by

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.metrics import FILES_DELETED
from tideline_cleaner.settings import CleanerSettings
from tideline_launcher.application import End, EndKind
from tideline_launcher.log_files import read_job_log
from tideline_launcher.settings import GIB, MIB
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime import open_tables as open_tables_module
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.open_tables import open_tables
from tideline_runtime.table_source import NamedTable, TableFacts, Trouble
from tideline_table.config import CLEANER_COMMITS_RETAINED
from tideline_table.errors import MissingExtra
from tideline_table.storage import root_uri

RETAINED = CLEANER_COMMITS_RETAINED.key


class FakeSource:
    """Says what the test sets, and keeps what services show."""

    def __init__(self):
        self.revision = 1
        self.tables = {}
        self.shown = {}
        self.jobs = []
        self.is_closed = False

    def say(self, base_path, **more):
        self.revision += 1
        self.tables = {**self.tables, root_uri(base_path): NamedTable(**more)}

    def named(self):
        return self.tables

    def show_tables(self, found):
        self.shown = dict(found)

    def show_job(self, base_path, job):
        self.jobs.append((base_path, job))

    def close(self):
        self.is_closed = True


@pytest.fixture
def source(monkeypatch):
    made = FakeSource()
    monkeypatch.setattr(open_tables_module, "open_table_source", lambda *_: made)
    return made


def opened(fleet, **more):
    context = fleet.context("cleaner")
    settings = fleet.settings(CleanerSettings, tables=(), **more)
    return open_tables(settings, context, {RETAINED: "3"})


def retained(tables):
    return {t.definition.name: t.options[CLEANER_COMMITS_RETAINED] for t in tables.each()}


def test_options_of_the_source_win_and_take_effect_at_once(fleet, source):
    for name in ("a", "b"):
        fleet.create(name)
        source.say(fleet.path(name))
    tables = opened(fleet)
    assert retained(tables) == {"a": 3, "b": 3}
    source.say(fleet.path("a"), options={RETAINED: "20"})
    assert retained(tables) == {"a": 20, "b": 3}
    source.say(fleet.path("a"))
    assert retained(tables) == {"a": 3, "b": 3}


def test_a_table_stays_open_while_nothing_changes_for_it(fleet, source):
    fleet.create("a")
    source.say(fleet.path("a"), options={RETAINED: "20"})
    tables = opened(fleet)
    (first,) = tables.each()
    source.say(fleet.path("b"))
    (second,) = tables.each()
    assert second is first


def test_a_table_that_is_no_longer_named_is_left_and_its_files_stay(fleet, source):
    table = fleet.create("a")
    source.say(fleet.path("a"))
    tables = opened(fleet)
    assert [t.uid for t in tables.each()] == [table.uid]
    source.tables, source.revision = {}, 99
    assert list(tables.each()) == []
    assert tables.by_uid(table.uid) is None
    assert fleet.open("a").uid == table.uid


def test_the_mirror_shows_tables_and_troubles(fleet, source):
    table = fleet.create("good")
    write(table, 0)
    table.refresh()
    (fleet.folder / "tables/hudi/.hoodie").mkdir(parents=True)
    (fleet.folder / "tables/hudi/.hoodie/hoodie.properties").write_text("hoodie.table.name=t\n")
    for name in ("good", "hudi", "none"):
        source.say(fleet.path(name))
    source.say(fleet.path("unwanted"), is_wanted=False)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", tables=())
    service.tick()
    shown = {base.rpartition("/")[2]: state for base, state in source.shown.items()}
    assert shown.keys() == {"good", "hudi", "none"}
    assert shown["good"] == TableFacts(table.state.sequence, table.state.last_instant, ())
    assert isinstance(shown["hudi"], Trouble)
    assert shown["hudi"].reason == "Refused"
    assert shown["none"] == Trouble("NoTable", "no table is at this base path")
    fleet.stop(service)
    assert source.is_closed


def test_pending_plans_are_shown(fleet, source):
    _, instant = planned(fleet)
    source.say(fleet.path("trips"))
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", tables=())
    service.tick()
    (facts,) = source.shown.values()
    assert [(p.instant, p.action, p.state) for p in facts.pending] == [(instant, "clustering", "requested")]


def test_the_launcher_hands_on_options_and_shows_the_last_application(fleet, source):
    table, instant = planned(fleet)
    source.say(fleet.path("trips"), options={"tideline.clustering.yields": "7"})
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, tables=(), options={"tideline.clustering.yields": "5", RETAINED: "4"})
    service.tick()
    assert platform.plan.options == {"tideline.clustering.yields": "7", RETAINED: "4"}
    platform.end(EndKind.FAILED, "out of luck")
    service.tick()
    assert {base for base, _ in source.jobs} == {table.storage.root}
    states = [(job.state, job.attempt) for _, job in source.jobs]
    assert states[:3] == [("submitted", 1), ("running", 1), ("failed", 1)]
    failed = source.jobs[2][1]
    assert (failed.application, failed.instant, failed.service) == (name_of(table, instant, 1), instant, "clustering")
    assert failed.reason == "out of luck"


def test_sort_columns_of_the_source_win_over_those_by_table_name(fleet, source):
    tables = [fleet.create(name) for name in ("a", "b")]
    for table in tables:
        for n in range(3):
            write(table, 10 * n)
        source.say(table.base_path)
    source.say(tables[0].base_path, options={SORT: "fare"})
    service, _ = planner(fleet, tables=(), clustering_sort_columns={"a": "id", "b": "id"})
    service.tick()
    assert [sorted_by(table) for table in tables] == ["fare", "id"]


def test_thresholds_of_the_planner_are_those_of_the_table_and_take_effect_at_once(fleet, source):
    tables = {name: fleet.create(name) for name in "abc"}
    for table in tables.values():
        for n in range(3):
            write(table, 10 * n)
        source.say(table.base_path)

    def plans():
        return {name: len(table.refresh().pending_clusterings()) for name, table in tables.items()}

    source.say(fleet.path("a"), settings={"clustering_min_files": 4})
    source.say(fleet.path("b"), settings={"clustering_min_commits": 4})
    service, _ = planner(fleet, tables=())
    service.tick()
    assert plans() == {"a": 0, "b": 0, "c": 1}
    source.say(fleet.path("a"), settings={"clustering_min_files": 3})
    source.say(fleet.path("b"))
    service.tick()
    assert plans() == {"a": 1, "b": 1, "c": 1}, "without another commit"


def test_wrong_settings_stop_their_table_only(fleet, source):
    tables = [fleet.create(name) for name in "ab"]
    for table in tables:
        for n in range(3):
            write(table, 10 * n)
        source.say(table.base_path)
    source.say(fleet.path("a"), settings={"clustering_min_files": 0})
    service, _ = planner(fleet, tables=())
    service.tick()
    assert [len(table.refresh().pending_clusterings()) for table in tables] == [0, 1]


def test_the_cleaner_looks_at_a_table_as_often_as_it_says(fleet, source):
    tables = [fleet.create(name) for name in "ab"]
    source.say(fleet.path("a"), settings={"clean_min_commits": 3})
    source.say(fleet.path("b"))
    service, context = fleet.service(
        CleanerService, CleanerSettings, "cleaner", tables=(), clean_min_commits=5, options={RETAINED: "1"}
    )

    def has_deleted():
        service.tick()
        return [context.metrics.value(FILES_DELETED, table=table.uid) > 0 for table in tables]

    for updates, expected in ((3, [True, False]), (2, [True, True])):
        for table in tables:
            for _ in range(updates):
                update(table, 0)
        assert has_deleted() == expected


def test_the_mirror_publishes_as_many_entries_at_once_as_the_table_says(fleet, source):
    table = fleet.create("a")
    for n in range(2):
        write(table, 10 * n)
    source.say(fleet.path("a"), settings={"batch_entries": 2})
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", tables=())
    assert [service.tick(), service.tick(), service.tick()] == [0.0, 0.0, None]


def test_an_application_gets_the_caps_of_its_table(fleet, source):
    made = {name: planned(fleet, name)[0] for name in "ab"}
    source.say(
        fleet.path("a"),
        settings={
            "application_timeout_s": 60,
            "max_attempts": 1,
            "job_log_bytes": 1024,
            "resources": {"driver_cores": 1, "heap_bytes": 600 * MIB},
        },
    )
    source.say(fleet.path("b"))
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, tables=(), max_applications=2, job_log_bytes=4096)
    service.tick()
    specs = {spec.plans[0].base_path.rpartition("/")[2]: spec for spec in platform.specs}
    assert {name: (s.timeout_s, s.resources.heap_bytes) for name, s in specs.items()} == {"a": (60, 600 * MIB), "b": (3600.0, GIB)}
    for spec in platform.specs:
        platform.logs[spec.name] = b"x" * 3000
        (application,) = platform.by_name[spec.name]
        platform.by_name[spec.name] = (replace(application, end=End(EndKind.FAILED, "no luck", EPOCH)),)
    service.tick()
    kept = {name: len(read_job_log(made[name].storage, spec.name)) for name, spec in specs.items()}
    assert kept == {"a": 1024, "b": 3000}
    fleet.clock.advance(600)
    service.tick()
    assert {name: len(table.refresh().pending_clusterings()) for name, table in made.items()} == {"a": 0, "b": 1}, "one is given up"
    assert [spec.plans[0].base_path.rpartition("/")[2] for spec in platform.specs[2:]] == ["b"]


def test_the_client_of_kubernetes_is_needed_only_where_the_setting_asks_for_it(fleet, monkeypatch):
    importing = ("tideline_runtime.kubernetes", "tideline_runtime.api_server")
    for name in [name for name in sys.modules if name.startswith(importing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    open_tables(fleet.settings(MirrorSettings), fleet.context("mirror")).close()
    with pytest.raises(MissingExtra, match=r"'kubernetes' is not installed.*tideline-hudi\[kubernetes\]"):
        open_tables(fleet.settings(MirrorSettings, table_resources={"enabled": True}), fleet.context("mirror"))


def test_without_credentials_the_setting_is_refused(fleet, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidSetting, match="no access to Kubernetes"):
        open_tables(fleet.settings(MirrorSettings, table_resources={"enabled": True}), fleet.context("mirror"))
