import json
from contextlib import contextmanager

import pytest
from tests.contract.launcher.api_proxy import ApiProxy
from tests.contract.table_resources.conftest import API_VERSION, APPLY, wait_until
from tests.unit.services.fleet import write
from tests.unit.services.test_launcher import HeldPlatform, name_of, planned

from tideline_cleaner.settings import CleanerSettings
from tideline_launcher.application import EndKind
from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.errors import DependencyDown
from tideline_runtime.kubernetes import open_hudi_tables
from tideline_runtime.open_tables import open_tables
from tideline_runtime.shards import StaticShards, shard_of
from tideline_runtime.table_source import NamedTable, TableFacts
from tideline_table.config import CLEANER_COMMITS_RETAINED
from tideline_table.storage import root_uri

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RETAINED = CLEANER_COMMITS_RETAINED.key


@pytest.fixture
def opened(fleet, settings):
    """Opens sources and tables of services; closes them at the end."""
    made = []

    def tables(service="cleaner", **more):
        made.append(open_tables(fleet.settings(CleanerSettings, **{**settings, **more}), fleet.context(service)))
        return made[-1]

    def source(service="cleaner", **more):
        made.append(
            open_hudi_tables(fleet.settings(CleanerSettings, **{**settings, **more}), fleet.context(service), StaticShards())
        )
        return made[-1]

    tables.source = source
    yield tables
    for one in made:
        one.close()


@pytest.fixture
def mirror(fleet, settings):
    return fleet.service(MirrorService, MirrorSettings, "mirror", **settings)[0]


def names(tables):
    return [table.definition.name for table in tables.each()]


def ready(mirror, resources, name, *, status="True", reason="Mirrored"):
    """Let the mirror tick until the resource shows this."""

    def shows():
        mirror.tick()
        return resources.conditions(name).get("Ready") == (status, reason)

    wait_until(shows)


@pytest.mark.parametrize(
    ("base_path", "spec", "message"),
    [
        ("", {}, "spec.basePath"),
        ("lake/trips", {}, "spec.basePath"),
        ("gs://lake/trips", {}, "spec.basePath"),
        ("s3://user:password@lake/trips", {}, "spec.basePath"),
        ("s3://lake/*", {}, "without * and ?"),
        ("s3://lake/trips?", {}, "without * and ?"),
        ("s3://lake/" + "x" * 1100, {}, "Too long"),
        ("s3://lake/trips", {"services": ["sweeper"]}, "Unsupported value"),
        ("s3://lake/trips", {"services": ["mirror", "mirror"]}, "Duplicate value"),
        ("s3://lake/trips", {"options": {"spark.sql": "x"}}, "begin with hoodie. or tideline."),
        ("s3://lake/trips", {"options": {"tideline.lock.ttl": "9"}}, "hold for a whole fleet"),
        ("s3://lake/trips", {"options": {RETAINED: 3}}, "must be of type string"),
        ("s3://lake/trips", {"service": ["mirror"]}, "unknown field"),
        ("s3://lake/trips", {"settings": {"planner": {"clustering_min_files": 1}}}, "spec.settings.planner.clustering_min_files"),
        (
            "s3://lake/trips",
            {"settings": {"launcher": {"application_timeout_s": 0}}},
            "spec.settings.launcher.application_timeout_s",
        ),
        ("s3://lake/trips", {"settings": {"cleaner": {"clean_min_commits": "3"}}}, "must be of type integer"),
        ("s3://lake/trips", {"settings": {"planner": {"poll_interval_s": 3}}}, "unknown field"),
        ("s3://lake/trips", {"settings": {"lock-service": {}}}, "unknown field"),
    ],
)
def test_the_schema_refuses_wrong_resources(resources, base_path, spec, message):
    answer = resources.create("wrong", base_path, **spec)
    assert answer.status_code in (400, 422), answer.text
    assert message in answer.json()["message"]


def test_the_base_path_cannot_be_changed(resources):
    assert resources.create("trips", "s3://lake/trips").status_code == 201
    answer = resources.change("trips", basePath="s3://lake/other")
    assert answer.status_code == 422
    assert "cannot be changed" in answer.json()["message"]
    assert resources.change("trips", services=[]).status_code == 200


@pytest.mark.parametrize("base_path", ["s3://lake/trips", "s3a://lake/a b/ü", "file:/data/trips", "/data/trips", "s3://lake"])
def test_base_paths_that_the_engine_opens_pass_the_schema(resources, base_path):
    assert resources.create("trips", base_path).status_code == 201
    root_uri(base_path)


def test_resources_name_tables_for_the_services_that_they_want(resources, opened):
    options = {RETAINED: "20"}
    resources.create("a", "s3://lake/a/", options=options)
    resources.create("b", "s3://lake/b", services=["mirror", "lock-service"])
    source = opened.source("cleaner")
    assert source.named() == {"s3://lake/a": NamedTable(options=options), "s3://lake/b": NamedTable(is_wanted=False)}
    assert opened.source("lock_service").named()["s3://lake/b"] == NamedTable()
    before = source.revision
    resources.change("b", services=["cleaner"])
    wait_until(lambda: source.named()["s3://lake/b"].is_wanted)
    assert source.revision > before
    resources.delete("a")
    wait_until(lambda: list(source.named()) == ["s3://lake/b"])


def test_settings_reach_the_service_that_they_name(resources, opened):
    settings = {"cleaner": {"clean_min_commits": 3}, "launcher": {"application_timeout_s": 60.5, "resources": {"driver_cores": 1}}}
    resources.create("a", "s3://lake/a", settings=settings)
    for service in ("cleaner", "launcher", "mirror"):
        assert opened.source(service).named() == {"s3://lake/a": NamedTable(settings=settings.get(service, {}))}


def test_settings_that_an_older_schema_let_pass_are_a_condition(kubernetes_api, resources, fleet, mirror):
    """The definition is installed once: services may know bounds that it does not have yet."""
    table = fleet.create("trips")
    resources.create("trips", table.base_path)
    with _definition_without_bounds(kubernetes_api):
        wait_until(
            lambda: resources.create("wrong", "s3://lake/a", settings={"cleaner": {"clean_min_commits": 0}}).status_code == 201
        )
        ready(mirror, resources, "wrong", status="False", reason="NotAccepted")
        (accepted,) = (c for c in resources.status("wrong")["conditions"] if c["type"] == "Accepted")
        assert accepted["reason"] == "InvalidSettings"
        assert accepted["message"] == "spec.settings.cleaner.clean_min_commits is 0; expected greater than or equal to 1"
        ready(mirror, resources, "trips")
        resources.delete("wrong")


@contextmanager
def _definition_without_bounds(server):
    """The definition of HudiTable without the lowest value of one setting, for a while."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/huditables.tideline.dev"
    place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/settings/properties/cleaner/properties"
    place += "/clean_min_commits/minimum"
    headers = {"Content-Type": "application/json-patch+json"}

    def patch(client, **operation):
        client.patch(path, content=json.dumps([{"path": place, **operation}]), headers=headers).raise_for_status()

    with server.client() as client:
        patch(client, op="remove")
        try:
            yield
        finally:
            patch(client, op="add", value=1)


def test_a_status_wakes_nothing(resources, opened, fleet, settings):
    resources.create("a", "s3://lake/a")
    source = opened.source()
    source.named()
    before = source.revision
    mirror = opened.source("mirror")
    mirror.named()
    mirror.show_tables({"s3://lake/a": TableFacts(1, None, ())})
    wait_until(lambda: resources.status("a").get("sequence") == 1)
    resources.create("b", "s3://lake/b")
    wait_until(lambda: "s3://lake/b" in source.named())
    assert source.revision == before + 1


def test_deleting_the_resource_stops_services_and_deletes_no_data(resources, opened, fleet):
    table = fleet.create("trips")
    write(table, 0)
    files = sorted(str(path) for path in fleet.folder.joinpath("tables").rglob("*"))
    resources.create("trips", table.base_path, options={RETAINED: "20"})
    tables = opened()
    assert [t.options[CLEANER_COMMITS_RETAINED] for t in tables.each()] == [20]
    resources.change("trips", options={RETAINED: "30"})
    wait_until(lambda: [t.options[CLEANER_COMMITS_RETAINED] for t in tables.each()] == [30])
    resources.delete("trips")
    wait_until(lambda: names(tables) == [])
    assert tables.by_uid(table.uid) is None
    assert sorted(str(path) for path in fleet.folder.joinpath("tables").rglob("*")) == files
    resources.create("trips", table.base_path)
    wait_until(lambda: names(tables) == ["trips"])


def test_the_mirror_and_the_launcher_write_fields_of_their_own(resources, fleet, settings, mirror):
    table, instant = planned(fleet)
    resources.create("trips", table.base_path, options={"tideline.clustering.yields": "7"})
    platform = HeldPlatform()
    launcher, _ = fleet.service(LauncherService, LauncherSettings, "launcher", platform, **settings)
    ready(mirror, resources, "trips")
    launcher.tick()
    assert platform.plan.options == {"tideline.clustering.yields": "7"}
    wait_until(lambda: resources.status("trips").get("lastJob", {}).get("state") == "running")
    platform.end(EndKind.FAILED, "out of luck")
    launcher.tick()
    # The launcher tried again at once or waits; either way the mirror goes on beside it.
    write(table, 100)
    wait_until(lambda: mirror.tick() is None and resources.status("trips")["sequence"] == table.state.sequence)
    wait_until(lambda: resources.status("trips")["lastJob"]["name"] == name_of(table, instant, platform.plan.attempt))
    status = resources.status("trips")
    assert status["lastJob"]["instant"] == instant
    assert (status["pendingPlanCount"], [p["instant"] for p in status["pendingPlans"]]) == (1, [instant])
    assert status["lastInstant"] == table.state.last_instant
    assert status["observedGeneration"] == 1
    owned = {
        field["manager"]: {name for name in field["fieldsV1"]["f:status"] if name != "."}
        for field in resources.get("trips")["metadata"]["managedFields"]
        if field.get("subresource") == "status"
    }
    assert owned == {
        "tideline-launcher": {"f:lastJob"},
        "tideline-mirror": {
            "f:conditions",
            "f:lastInstant",
            "f:observedGeneration",
            "f:pendingPlanCount",
            "f:pendingPlans",
            "f:sequence",
        },
    }


def test_another_manager_meets_a_conflict_and_a_spec_in_a_status_is_dropped(resources, fleet, mirror):
    table = fleet.create("trips")
    resources.create("trips", table.base_path)
    ready(mirror, resources, "trips")
    body = {"apiVersion": API_VERSION, "kind": "HudiTable", "status": {"sequence": 99}, "spec": {"basePath": "/other"}}
    headers = {"Content-Type": APPLY}
    answer = resources.client.patch(
        f"{resources.path}/trips/status", params={"fieldManager": "user"}, content=json.dumps(body), headers=headers
    )
    assert answer.status_code == 409
    assert "tideline-mirror" in answer.json()["message"]
    forced = {"fieldManager": "user", "force": "true"}
    resources.client.patch(
        f"{resources.path}/trips/status", params=forced, content=json.dumps(body), headers=headers
    ).raise_for_status()
    assert resources.get("trips")["spec"] == {"basePath": table.base_path}
    wait_until(lambda: mirror.tick() is None and resources.status("trips")["sequence"] == table.refresh().sequence)


def test_bad_resources_get_a_condition_and_stop_nothing(resources, fleet, mirror):
    table = fleet.create("trips")
    resources.create("trips", table.base_path)
    ready(mirror, resources, "trips")
    # Creation times count in whole seconds, and equal ones by name.
    resources.create("trips-again", f"file:{table.base_path}/")
    resources.create("unknown-option", "s3://lake/a", options={"hoodie.no.such.option": "1"})
    resources.create("no-table", fleet.path("none"))
    resources.create("paused", fleet.path("paused"), services=[])
    ready(mirror, resources, "trips-again", status="False", reason="NotAccepted")
    assert resources.conditions("trips-again")["Accepted"] == ("False", "DuplicateBasePath")
    ready(mirror, resources, "unknown-option", status="False", reason="NotAccepted")
    assert resources.conditions("unknown-option")["Accepted"] == ("False", "InvalidOptions")
    ready(mirror, resources, "no-table", status="False", reason="NoTable")
    ready(mirror, resources, "paused", status="Unknown", reason="NotMirrored")
    ready(mirror, resources, "trips")
    resources.delete("trips")
    ready(mirror, resources, "trips-again")
    fleet.create("none")
    fleet.clock.advance(61)
    ready(mirror, resources, "no-table")


def test_a_place_that_cannot_be_read_is_a_condition(resources, fleet, mirror):
    table = fleet.create("trips")
    resources.create("away", "/" + "x" * 300)  # longer than a file system takes
    resources.create("trips", table.base_path)
    ready(mirror, resources, "away", status="False", reason="Unreachable")
    ready(mirror, resources, "trips")


def test_shards_share_the_resources(resources, fleet, settings):
    tables = [fleet.create(f"t{n}") for n in range(6)]
    for table in tables:
        resources.create(table.definition.name, table.base_path)
    shards = [
        fleet.service(MirrorService, MirrorSettings, "mirror", **settings, shard_index=index, shard_count=2)[0] for index in (0, 1)
    ]
    mine = {index: [t.definition.name for t in tables if shard_of(t.storage.root, 2) == index] for index in (0, 1)}
    assert all(mine.values())
    for name in mine[0]:
        ready(shards[0], resources, name)
    assert not any(resources.status(name) for name in mine[1])
    for name in mine[1]:
        ready(shards[1], resources, name)


def test_a_new_resource_of_the_same_name_gets_its_own_status(resources, fleet, mirror, opened):
    old, new = fleet.create("old"), fleet.create("new")
    write(old, 0)
    resources.create("trips", old.base_path)
    ready(mirror, resources, "trips")
    resources.delete("trips")
    resources.create("trips", new.base_path)
    ready(mirror, resources, "trips")
    wait_until(lambda: mirror.tick() is None and resources.status("trips")["sequence"] == new.refresh().sequence)
    assert "lastInstant" not in resources.status("trips")
    assert opened.source("mirror")._watch._api.apply_status("gone", {"sequence": 7}, "tideline-mirror") is None
    assert resources.client.get(f"{resources.path}/gone").status_code == 404


def test_tables_stay_while_the_api_server_is_away_and_changes_follow(kubernetes_api, resources, opened, fleet, mirror):
    kept = fleet.create("kept")
    resources.create("kept", kept.base_path)
    tables = opened()
    assert names(tables) == ["kept"]
    ready(mirror, resources, "kept")
    kubernetes_api.stop()
    try:
        fleet.clock.advance(61)
        write(kept, 0)
        mirror.tick()
        assert names(tables) == ["kept"]
        late = opened(table_resources={**_own(resources, kubernetes_api), "request_timeout_s": 1})
        with pytest.raises(DependencyDown, match="cannot be listed"):
            names(late)
    finally:
        kubernetes_api.start()
    later = fleet.create("later")
    wait_until(lambda: resources.create("later", later.base_path).status_code == 201)
    wait_until(lambda: names(tables) == ["kept", "later"])
    wait_until(lambda: resources.status("kept")["sequence"] == kept.refresh().sequence)

    def is_listed():
        try:
            return names(late) == ["kept", "later"]
        except DependencyDown:
            return False

    wait_until(is_listed)


def _own(resources, kubernetes_api):
    return {"enabled": True, "namespace": resources.namespace, "kubeconfig": kubernetes_api.kubeconfig()}


def test_lost_and_late_answers_end_in_the_right_status(kubernetes_api, resources, fleet, settings):
    proxy = ApiProxy(kubernetes_api, lost=0.4, late=0.2, late_s=2.0)
    own = {**settings["table_resources"], "kubeconfig": kubernetes_api.kubeconfig(url=proxy.url), "request_timeout_s": 1}
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror", tables=(), table_resources=own)
    tables = [fleet.create(f"t{n}") for n in range(4)]
    for table in tables:
        write(table, 0)
        resources.create(table.definition.name, table.base_path)
    for table in tables:
        ready(mirror, resources, table.definition.name)
        assert resources.status(table.definition.name)["sequence"] == table.refresh().sequence
    assert proxy.lost + proxy.late > 0
    proxy.close()


def test_missing_rights_are_named(kubernetes_api, resources, opened):
    own = {**_own(resources, kubernetes_api), "kubeconfig": kubernetes_api.kubeconfig("weak-token")}
    with pytest.raises(DependencyDown, match=r"403.*let this service account list and watch huditables"):
        names(opened(table_resources=own))


def test_printer_columns(resources, fleet, mirror):
    table = fleet.create("trips")
    write(table, 0)
    resources.create("trips", table.base_path)
    ready(mirror, resources, "trips")
    wanted = "application/json;as=Table;v=v1;g=meta.k8s.io"
    shown = resources.client.get(resources.path, headers={"Accept": wanted}).raise_for_status().json()
    (row,) = shown["rows"]
    columns = dict(zip([c["name"] for c in shown["columnDefinitions"]], row["cells"], strict=True))
    assert {name: value for name, value in columns.items() if name != "Age"} == {
        "Name": "trips",
        "Base path": table.base_path,
        "Accepted": "True",
        "Ready": "True",
        "Reason": "Mirrored",
        "Sequence": table.refresh().sequence,
        "Plans": 0,
        "Last job": None,
    }
