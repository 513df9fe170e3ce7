"""values.schema.json, values.yaml, the dashboard and the alerts, without helm."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import tomllib
from typing import Any

import jsonschema
import pytest
import yaml
from tests.artifacts import REPOSITORY_ROOT
from tests.chart.combinations import COMBINATIONS
from tests.chart.tools import CHART

from tideline_runtime.annotations import field_types, leaf_paths
from tideline_runtime.members import SERVICES, import_all_declarations
from tideline_runtime.metrics import declared_metrics
from tideline_runtime.settings import declared_settings

SCRIPT = REPOSITORY_ROOT / "scripts/generate_chart.py"
RUNBOOK = REPOSITORY_ROOT / "docs/kubernetes-operations.md"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
ALERTS = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["alerts"]
METRIC = re.compile(r"tideline_[a-z_]+")
SERIES = ("_bucket", "_count", "_sum", "")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("generate_chart", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def metrics() -> dict[str, Any]:
    import_all_declarations()
    # Other tests declare metrics of their own.
    members = ("runtime", *SERVICES)
    return {m.name: m for m in declared_metrics() if m.name.startswith(tuple(f"tideline_{member}_" for member in members))}


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both, as helm merges them: mappings into each other, everything else replaced."""
    made = copy.deepcopy(values)
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(made.get(name), dict)
        made[name] = merged(made[name], value) if both else value
    return made


def complaints(values: dict[str, Any]) -> list[str]:
    found = jsonschema.Draft7Validator(SCHEMA).iter_errors(merged(DEFAULTS, values))
    return [f"{error.json_path}: {error.message}" for error in found]


def test_schema_is_one_and_the_defaults_fit_it():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert complaints({}) == []


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_fit_the_schema(name):
    assert complaints(COMBINATIONS[name]) == []


def test_values_of_the_end_to_end_run_fit_the_schema():
    assert complaints(yaml.safe_load((REPOSITORY_ROOT / "e2e/fleet/values.yaml").read_text())) == []


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"tabels": []}, "$"),
        ({"tables": ["s3://lake/a b"]}, "$.tables[0]"),
        ({"mirror": {"shards": 0}}, "$.mirror.shards"),
        ({"mirror": {"replicas": 2}}, "$.mirror"),
        ({"mirror": {"strategy": "OnDelete"}}, "$.mirror.strategy"),
        ({"mirror": {"settings": {"batch_entries": 0}}}, "$.mirror.settings.batch_entries"),
        ({"mirror": {"settings": {"batch_entries": "many"}}}, "$.mirror.settings.batch_entries"),
        ({"mirror": {"settings": {"batch_entry": 5}}}, "$.mirror.settings"),
        ({"mirror": {"settings": {"max_applications": 5}}}, "$.mirror.settings"),
        ({"changes": {"settings": {"batch_rows": 0}}}, "$.changes.settings.batch_rows"),
        ({"webhooks": {"settings": {"subscriptions": "/f.yaml"}}}, "$.webhooks.settings"),
        ({"webhooks": {"subscriptions": {"signingSecret": "Not_A_Name"}}}, "$.webhooks.subscriptions.signingSecret"),
        ({"networkPolicy": {"webhookPorts": []}}, "$.networkPolicy.webhookPorts"),
        ({"planner": {"settings": {"options": {"hoodie.x": 5}}}}, "$.planner.settings.options['hoodie.x']"),
        ({"launcher": {"settings": {"kubernetes": {"image": "x"}}}}, "$.launcher.settings.kubernetes"),
        ({"launcher": {"settings": {"runner": "local"}}}, "$.launcher.settings"),
        ({"settings": {"http_token": "secret-token"}}, "$.settings"),
        ({"settings": {"shard_count": 2}}, "$.settings"),
        ({"settings": {"poll_interval_s": 0}}, "$.settings.poll_interval_s"),
        ({"settings": {"log_level": "loud"}}, "$.settings.log_level"),
        ({"http": {"port": 80}}, "$.http.port"),
        ({"http": {"host": "127.0.0.1"}}, "$.http.host"),
        ({"http": {"tokenSecret": {"name": "Not_A_Name"}}}, "$.http.tokenSecret.name"),
        ({"kafka": {"brokers": "kafka"}}, "$.kafka.brokers"),
        ({"kafka": {"brokers": "user:password@kafka:9092"}}, "$.kafka.brokers"),
        ({"kafka": {"security": {"protocol": "TLS"}}}, "$.kafka.security.protocol"),
        ({"kafka": {"security": {"mechanism": "GSSAPI"}}}, "$.kafka.security.mechanism"),
        ({"kafka": {"options": {"sasl.password": "secret"}}}, "$.kafka.options"),
        ({"kafka": {"options": {"ssl.key.pem": "secret"}}}, "$.kafka.options"),
        ({"redis": {"address": "redis://redis:6379"}}, "$.redis.address"),
        ({"redis": {"address": "u:p@redis:6379"}}, "$.redis.address"),
        ({"objectStore": {"environment": {"AWS_SECRET_ACCESS_KEY": "secret"}}}, "$.objectStore.environment"),
        ({"objectStore": {"environment": {"TIDELINE_TABLES": "x"}}}, "$.objectStore.environment"),
        ({"objectStore": {"endpoint": "minio:9000"}}, "$.objectStore.endpoint"),
        ({"image": {"digest": "sha256:12"}}, "$.image.digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "$.image.pullPolicy"),
        ({"mirror": {"resources": {"requests": {"cpu": "lots", "memory": "1Gi"}}}}, "$.mirror.resources.requests.cpu"),
        ({"mirror": {"resources": {"limits": None}}}, "$.mirror.resources.limits"),
        ({"mirror": {"extraEnv": [{"value": "x"}]}}, "$.mirror.extraEnv[0]"),
        ({"mirror": {"extraVolumeMounts": [{"name": "a", "path": "/a"}]}}, "$.mirror.extraVolumeMounts[0]"),
        ({"mirror": {"sidecars": [{"name": "a"}]}}, "$.mirror.sidecars[0]"),
        ({"ingest": {"applications": [{"name": "a"}]}}, "$.ingest.applications[0]"),
        ({"ingest": {"applications": [{"name": "a", "settings": {"table": "s3://a"}}]}}, "$.ingest.applications[0].settings"),
        ({"podSecurity": {"runAsUser": 0}}, "$.podSecurity.runAsUser"),
        ({"disruptionBudget": {"maxUnavailable": 0}}, "$.disruptionBudget.maxUnavailable"),
        ({"topologySpread": {"whenUnsatisfiable": "Never"}}, "$.topologySpread.whenUnsatisfiable"),
        ({"networkPolicy": {"kafkaPeers": [{}]}}, "$.networkPolicy.kafkaPeers[0]"),
        ({"monitoring": {"alerts": {"disabled": ["Other"]}}}, "$.monitoring.alerts.disabled[0]"),
        ({"trial": {"kafka": {"enabled": "yes"}}}, "$.trial.kafka.enabled"),
    ],
)
def test_wrong_values_are_refused(values, place):
    assert [found for found in complaints(values) if found.startswith(f"{place}: ")], complaints(values)


def test_every_object_of_the_schema_that_lists_names_refuses_others():
    def walk(schema: Any, place: str) -> None:
        if isinstance(schema, dict):
            if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
                assert schema.get("additionalProperties") is False, place
            for name, value in schema.items():
                walk(value, f"{place}/{name}")

    walk(SCHEMA, "")


def test_no_value_is_a_secret():
    """Passwords, tokens and keys are names of Secrets and their keys."""

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, (*path, name))
        elif re.search(r"password|token|secret|credential", ".".join(path), re.IGNORECASE) and isinstance(value, str):
            in_reference = any(part.endswith("Secret") for part in path)
            assert in_reference, path

    walk(DEFAULTS, ())


def test_generated_files_are_current_and_check_finds_a_difference(script, tmp_path, capsys):
    for folder in ("files", "crds"):
        (tmp_path / folder).mkdir()
    for name in (script.SCHEMA, script.DASHBOARD, script.DEFINITION, script.DESCRIPTION):
        (tmp_path / name).write_text((CHART / name).read_text())
    schema = json.loads((tmp_path / script.SCHEMA).read_text())
    del schema["definitions"]["mirrorSettings"]["properties"]["batch_entries"]
    schema["definitions"]["name"]["description"] = "Written by hand."
    (tmp_path / script.SCHEMA).write_text(json.dumps(schema))
    defined = (tmp_path / script.DEFINITION).read_text()
    (tmp_path / script.DEFINITION).write_text(defined.replace("clean_min_commits", "clean_commits"))
    chart = (tmp_path / script.DESCRIPTION).read_text()
    (tmp_path / script.DESCRIPTION).write_text(re.sub(r"(?m)^appVersion: .*$", "appVersion: 0.0.9", chart))
    assert script.main(["--chart", str(tmp_path), "--check"]) == 1
    assert '"batch_entries"' in (error := capsys.readouterr().err)
    assert re.search(r"^-\s+clean_commits:$", error, re.MULTILINE)
    assert re.search(r"^-appVersion: 0.0.9$", error, re.MULTILINE)
    assert script.main(["--chart", str(tmp_path)]) == 0
    written = json.loads((tmp_path / script.SCHEMA).read_text())
    assert written["definitions"]["mirrorSettings"]["properties"]["batch_entries"]["maximum"] == 5000
    assert written["definitions"]["name"]["description"] == "Written by hand."
    assert (tmp_path / script.DEFINITION).read_text() == defined
    version = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (
        yaml.safe_load((tmp_path / script.DESCRIPTION).read_text()).items() >= {"version": version, "appVersion": version}.items()
    )
    assert script.main(["--chart", str(tmp_path), "--check"]) == 0


def test_settings_that_the_chart_owns_are_declared(script):
    import_all_declarations()
    by_section = {c.section: c for c in declared_settings() if c.__module__.startswith("tideline_")}
    for section, names in script.OWNED.items():
        declared = {".".join(path) for path in leaf_paths(field_types(by_section[section]))}
        assert names <= declared, sorted(names - declared)


def test_dashboard_has_a_panel_for_every_metric_and_no_other(metrics):
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    shown = {re.search(r"`(tideline_\w+)`$", panel["description"])[1] for panel in panels}
    assert shown == set(metrics)
    for panel in panels:
        (metric,) = (m for m in metrics.values() if panel["description"].endswith(f"`{m.name}`"))
        assert panel["description"].startswith(metric.doc)
        for target in panel["targets"]:
            assert metric.name in target["expr"]
            assert all(label in target["expr"] for label in metric.labels)
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)


def test_panels_do_not_overlap():
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_use_declared_metrics_and_have_a_runbook(alert, metrics):
    names = METRIC.findall(alert["expr"])
    assert names
    for name in names:
        assert any(name.removesuffix(suffix) in metrics for suffix in SERIES if name.endswith(suffix)), name
    for label, values in re.findall(r'(\w+)=~?"([a-z_|]+)"', alert["expr"]):
        if label in ("outcome", "kind"):
            (metric,) = {metrics[name] for name in names if name in metrics and label in metrics[name].labels}
            for value in values.split("|"):
                assert re.search(rf"\b{value}\b", metric.doc), f"{metric.name} has no {label} {value}"
    assert f"\n### {alert['alert']}\n" in RUNBOOK.read_text()


def test_runbooks_are_those_of_the_alerts():
    described = re.findall(r"^### (Tideline\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert described == [alert["alert"] for alert in ALERTS]


def test_the_memory_of_the_launcher_holds_its_workers():
    (settings,) = [s for s in declared_settings() if s.section == "launcher" and s.__module__.startswith("tideline_launcher.")]
    workers = settings.model_fields["workers"].default
    limit = DEFAULTS["launcher"]["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert int(limit.removesuffix("Gi")) * 2**30 >= 2**30 + workers.count * workers.memory_bytes
