"""The pods that the launcher makes from the chart's settings fit what else the chart makes: policies, accounts, configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from tests.chart.combinations import COMBINATIONS
from tests.chart.manifests import environment, matches, named, of_kind
from tests.chart.tools import object_schemas, rendered

from tideline_launcher.application import ApplicationSpec, PlanKey, PlanRequest
from tideline_launcher.kubernetes.pod_spec import driver_pod, executor_template
from tideline_launcher.resources import Resources
from tideline_launcher.settings import GIB, LauncherSettings
from tideline_table.action import TableService

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

ALONE = ApplicationSpec(
    "orders-1-1",
    (
        PlanRequest(
            "orders-1-1", PlanKey("20260101000000000", "uid-1"), 1, TableService.COMPACTION, "s3://lake/warehouse/orders", {}
        ),
    ),
    Resources(0, 2, GIB, 3 * GIB),
    60.0,
    "",
)
SPREAD = replace(ALONE, resources=Resources(3, 2, GIB, 2 * GIB, GIB, 1))
TOGETHER = replace(ALONE, name="shared-1", plans=(*ALONE.plans, replace(ALONE.plans[0], key=PlanKey("20260102000000000", "uid-2"))))
SECRETS = {"TIDELINE_LOCKS": "rediss://u:p@redis:6379/0", "TIDELINE_EVENT_LOG_OPTIONS": "{}", "TIDELINE_HTTP_TOKEN": "0123456789"}
WITH_LAUNCHER = ["least", "tls-sasl-acl", "placement", "pod-template-and-trust", "other-names", "trial"]


def application_pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A driver alone, a driver of several plans, a driver with executors and the template of its executors, as the rendered
    launcher would make them."""
    (deployment,) = (d for d in of_kind(manifests, "Deployment") if d["metadata"]["name"].endswith("-launcher-0"))
    variables = {
        name: SECRETS.get(name, "") if value is None else value for name, value in environment(manifests, deployment).items()
    }
    settings = LauncherSettings.load(environment=variables).kubernetes
    (mapped,) = (v["configMap"]["name"] for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "pod-template")
    template = yaml.safe_load(named(manifests, "ConfigMap", mapped)["data"]["pod.yaml"])
    made = {
        "alone": driver_pod(ALONE, settings, template, None),
        "shared": driver_pod(TOGETHER, settings, template, None),
        "driver": driver_pod(SPREAD, settings, template, None),
        "executor": executor_template(settings, template),
    }
    for pod in made.values():
        pod["metadata"]["namespace"] = settings.namespace
    return made


@pytest.mark.parametrize("name", WITH_LAUNCHER)
def test_pods_fit_the_schema_of_kubernetes(name):
    validator = jsonschema.Draft202012Validator(object_schemas()["v1", "Pod"])
    for kind, pod in application_pods(rendered(COMBINATIONS[name])).items():
        assert [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(pod)] == [], kind
        assert pod["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", WITH_LAUNCHER)
def test_policies_select_the_pods_and_only_drivers_reach_the_api_server(name):
    manifests = rendered(COMBINATIONS[name])
    for kind, pod in application_pods(manifests).items():
        policies = [p for p in of_kind(manifests, "NetworkPolicy") if p["metadata"]["namespace"] == pod["metadata"]["namespace"]]
        selecting = {
            p["metadata"]["name"].rpartition("-")[2]
            for p in policies
            if matches(p["spec"]["podSelector"], pod["metadata"]["labels"])
        }
        assert selecting == ({"applications"} if kind == "executor" else {"applications", "drivers"})
    for service in of_kind(manifests, "Service"):
        for pod in application_pods(manifests).values():
            assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("name", WITH_LAUNCHER)
def test_accounts_and_configuration_exist_where_the_pods_run(name):
    manifests = rendered(COMBINATIONS[name])
    made = {(m["kind"], m["metadata"]["namespace"], m["metadata"]["name"]) for m in manifests}
    bound = {s["name"] for b in of_kind(manifests, "RoleBinding") for s in b["subjects"]}
    for kind, pod in application_pods(manifests).items():
        namespace, account = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        assert ("ServiceAccount", namespace, account) in made or account == "existing-executor"
        assert (account in bound) is (kind != "executor")
        for source in pod["spec"]["containers"][0]["envFrom"]:
            if "configMapRef" in source:
                assert ("ConfigMap", namespace, source["configMapRef"]["name"]) in made


def test_credentials_and_authorities_reach_the_pods():
    for kind, pod in application_pods(rendered(COMBINATIONS["tls-sasl-acl"])).items():
        (container,) = pod["spec"]["containers"]
        assert {"secretRef": {"name": "object-store"}} in container["envFrom"]
        assert "/etc/tideline/trust" in {mount["mountPath"] for mount in container["volumeMounts"]}
        locks = [v for v in container["env"] if v["name"] == "TIDELINE_LOCKS"]
        reference = {"name": "TIDELINE_LOCKS", "valueFrom": {"secretKeyRef": {"name": "redis-url", "key": "url"}}}
        assert locks == ([] if kind == "executor" else [reference])
