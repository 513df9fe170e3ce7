"""The console in the chart: where people reach it, how they sign in, and what the network lets through."""

from __future__ import annotations

import pytest
from tests.chart.access import ELSEWHERE, RELEASE, VERBS, Account, Request, allows
from tests.chart.combinations import BASE, COMBINATIONS
from tests.chart.manifests import environment, matches, named, of_kind
from tests.chart.test_manifests import SECRET_VALUES, _egress_ports, _expanded, changed, manifests_of
from tests.chart.tools import ChartToolFailed

from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_runtime.contract import ServiceContext
from tideline_runtime.health import Health
from tideline_runtime.metrics import Metrics
from tideline_table.clock import SystemClock

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
TOKEN = {"signIn": {"operatorTokenSecret": {"name": "console"}}}


def settings_of(name: str) -> ConsoleSettings:
    """The settings that the console of a combination reads; the service accepts them, or this raises."""
    manifests = manifests_of(name)
    found = environment(manifests, named(manifests, "Deployment", "tideline-console-0"))
    given = _expanded({**found, **{variable: SECRET_VALUES[variable] for variable, value in found.items() if value is None}})
    settings, clock = ConsoleSettings.load(environment=given), SystemClock()
    ConsoleService(settings, ServiceContext("console", clock, Metrics("console"), Health(clock, 300)))
    return settings


def test_it_is_off_by_default():
    assert not [m for m in manifests_of("least") if "console" in m["metadata"]["name"]]


def test_people_reach_it_through_the_ingress_under_its_prefix():
    settings = settings_of("console")
    assert (settings.listen_host, settings.listen_port) == ("0.0.0.0", 8380)
    assert (settings.host_names, settings.path_prefix, settings.actions) == (("console.example",), "/tideline", True)
    assert settings.sign_in.is_set
    manifests = manifests_of("console")
    ingress = named(manifests, "Ingress", "tideline-console")["spec"]
    assert ingress["ingressClassName"] == "nginx"
    assert ingress["tls"] == [{"secretName": "console-certificate", "hosts": ["console.example"]}]
    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"], path["pathType"]) == ("console.example", "/tideline", "Prefix")
    service = named(manifests, "Service", path["backend"]["service"]["name"])["spec"]
    (port,) = service["ports"]
    assert path["backend"]["service"]["port"] == {"name": port["name"]}
    pod = named(manifests, "Deployment", "tideline-console-0")["spec"]["template"]
    assert matches({"matchLabels": service["selector"]}, pod["metadata"]["labels"])
    ports = {one["name"]: one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
    assert ports == {"http": 8080, port["targetPort"]: settings.listen_port}


def test_it_judges_by_the_settings_of_planner_and_cleaner():
    manifests = manifests_of("console")
    variables = environment(manifests, named(manifests, "Deployment", "tideline-console-0"))
    planner = environment(manifests, named(manifests, "Deployment", "tideline-planner-0"))
    for name in ("TIDELINE_PLANNER__OPTIONS", "TIDELINE_CLEANER__CLEAN_MIN_COMMITS"):
        assert variables[name] == planner[name]


def test_the_network_lets_browsers_in_by_the_controller_alone():
    manifests = manifests_of("console")
    policy = named(manifests, "NetworkPolicy", "tideline-console")["spec"]
    assert policy["ingress"] == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
            "ports": [{"port": "pages", "protocol": "TCP"}],
        }
    ]
    assert "egress" not in policy
    for other in of_kind(manifests, "NetworkPolicy"):
        rules = [rule for rule in other["spec"].get("ingress", ()) if {"port": "pages", "protocol": "TCP"} in rule.get("ports", ())]
        assert not rules or other["metadata"]["name"] == "tideline-console"
    assert "ingress" not in named(manifests_of("console-openid"), "NetworkPolicy", "tideline-console")["spec"]


def test_the_provider_is_reached_by_the_console_alone():
    settings = settings_of("console-openid")
    assert settings.sign_in.issuer == "https://id.example:8443"
    assert settings.sign_in.client_secret is not None
    manifests = manifests_of("console-openid")
    assert not of_kind(manifests, "Ingress")
    reaching = {
        deployment["metadata"]["name"]
        for deployment in of_kind(manifests, "Deployment")
        if 8443 in _egress_ports(manifests, deployment["spec"]["template"])
    }
    assert reaching == {"tideline-console-0"}
    policy = named(manifests, "NetworkPolicy", "tideline-console")["spec"]
    assert [rule["to"] for rule in policy["egress"]] == [[{"ipBlock": {"cidr": "10.8.0.0/16"}}]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"enabled": True}, "console.signIn is empty"),
        ({"enabled": True, **TOKEN, "ingress": {"enabled": True, "tlsSecret": "c"}}, "console.settings.host_names is empty"),
        (
            {"enabled": True, **TOKEN, "ingress": {"enabled": True}, "settings": {"host_names": ["console.example"]}},
            "console.ingress.tlsSecret is empty",
        ),
        ({"enabled": True, **TOKEN, "settings": {"sign_in": {"operator_token": "operator-0123456789-abcdef"}}}, "operator_token"),
        ({"enabled": True, **TOKEN, "settings": {"listen_host": "127.0.0.1"}}, "listen_host"),
        ({"enabled": True, **TOKEN, "shards": 2}, "shards"),
    ],
)
def test_a_console_that_cannot_work_is_refused(values, message):
    with pytest.raises(ChartToolFailed, match=message):
        changed(BASE, console=values)


def test_it_reads_hudi_table_resources_and_writes_none():
    manifests = changed({**COMBINATIONS["table-resources"], "console": {"enabled": True, **TOKEN}})
    deployment = named(manifests, "Deployment", "tideline-console-0")
    variables = environment(manifests, deployment)
    assert variables["TIDELINE_TABLE_RESOURCES__ENABLED"] == "true"
    assert variables["TIDELINE_TABLE_RESOURCES__NAMESPACE"] == "jobs"
    pod = deployment["spec"]["template"]
    assert pod["spec"]["automountServiceAccountToken"] is True
    role = next(role for role in of_kind(manifests, "Role") if role["metadata"]["name"] == "tideline-console-tables")
    assert role["metadata"]["namespace"] == "jobs"
    assert role["rules"] == [{"apiGroups": ["tideline.dev"], "resources": ["huditables"], "verbs": ["get", "list", "watch"]}]
    assert _egress_ports(manifests, pod) >= _egress_ports(
        manifests, named(manifests, "Deployment", "tideline-planner-0")["spec"]["template"]
    )
    assert (
        named(manifests_of("console"), "Deployment", "tideline-console-0")["spec"]["template"]["spec"][
            "automountServiceAccountToken"
        ]
        is False
    )


def test_with_pod_logs_it_may_read_logs_where_applications_run_and_nothing_else():
    own = {**COMBINATIONS["console"]["console"], "podLogs": True}
    manifests = changed({**COMBINATIONS["console"], "applications": {"namespace": "jobs"}, "console": own})
    deployment = named(manifests, "Deployment", "tideline-console-0")
    assert environment(manifests, deployment)["TIDELINE_CONSOLE__POD_LOGS__NAMESPACE"] == "jobs"
    pod = deployment["spec"]["template"]
    assert pod["spec"]["automountServiceAccountToken"] is True
    account = Account(RELEASE, "tideline-console")
    rules = of_kind(manifests, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    asked = [
        Request(verb, group, resource, place)
        for group, resource in (("", "pods"), ("", "pods/log"), ("", "secrets"), ("", "pods/exec"), ("tideline.dev", "huditables"))
        for verb in VERBS
        for place in ("jobs", RELEASE, ELSEWHERE)
    ]
    assert [one for one in asked if allows(rules, account, one)] == [Request("get", "", "pods/log", "jobs")]
    launcher = named(manifests, "Deployment", "tideline-launcher-0")["spec"]["template"]
    more = _egress_ports(manifests, pod) - _egress_ports(manifests_of("console"), pod)
    assert more
    assert more <= _egress_ports(manifests, launcher), "it reaches the API server, as the launcher does"
    deployment = named(manifests_of("console"), "Deployment", "tideline-console-0")
    assert "POD_LOGS" not in str(environment(manifests_of("console"), deployment))
