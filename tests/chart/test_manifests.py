"""Every combination of values that matters, rendered by helm, held against Kubernetes' own schemas and the chart's rules."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
from typing import Any

import jsonschema
import pytest
import yaml
from tests.chart.combinations import BASE, COMBINATIONS, EVERY_CONNECTION, ORDERS, PLACEMENT, POLICY, SERVICES, SUBSCRIPTIONS
from tests.chart.manifests import component_of, environment, matches, module_of, named, of_kind, pods, services
from tests.chart.tools import CHART, ChartToolFailed, linted, object_schemas, rendered

from tideline_runtime.members import import_all_declarations
from tideline_runtime.policy import read_policies
from tideline_runtime.settings import declared_settings
from tideline_webhooks.subscriptions import read_subscriptions

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

SECRET_VALUES = {
    "TIDELINE_HTTP_TOKEN": "0123456789abcdef",
    "TIDELINE_LOCKS": "rediss://tideline:pass%40word@redis:6379/2",
    "TIDELINE_EVENT_LOG_OPTIONS": '{"sasl.password": "secret"}',
    "TIDELINE_INGEST__KAFKA_OPTIONS": '{"sasl.password": "secret"}',
    "TIDELINE_INGEST__SCHEMA_REGISTRY_OPTIONS": '{"basic.auth.user.info": "user:secret"}',
    "TIDELINE_CONSOLE__SIGN_IN__OPERATOR_TOKEN": "operator-0123456789-abcdef",
    "TIDELINE_CONSOLE__SIGN_IN__VIEWER_TOKEN": "viewer-0123456789-abcdefgh",
    "TIDELINE_CONSOLE__SIGN_IN__CLIENT_SECRET": "secret-of-the-console",
    "KAFKA_USERNAME": "tideline",
    "KAFKA_PASSWORD": "secret",
}
"""What the Secrets hold that COMBINATIONS names."""
GIVEN = {"authorities", "click-schemas", "existing-mirror", "existing-executor", "default", "policies"}
"""Objects that COMBINATIONS names and the chart does not make."""
COMPONENTS_OF_TABLES = ("mirror", "planner", "launcher", "cleaner", "lock-service", "changes")
"""Those that search for tables, also by HudiTable resources."""
PATCHES = {
    *((f"{fullname}-launcher", "pods") for fullname in ("tideline", "tideline-tables")),
    *((f"tideline-{component}-tables", "huditables/status") for component in ("mirror", "launcher")),
}
"""Roles, and what each may patch."""
PORT_NAMES = {"http", "kafka", "redis", "pages"}

combinations = pytest.mark.parametrize("name", COMBINATIONS)


@functools.cache
def _rendered(name: str) -> str:
    return json.dumps(rendered(COMBINATIONS[name]))


def manifests_of(name: str) -> list[dict[str, Any]]:
    return json.loads(_rendered(name))


def changed(values: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """What helm renders with `more` on top of `values`."""
    return rendered({**copy.deepcopy(values), **more})


@pytest.fixture(scope="module")
def schemas() -> dict[tuple[str, str], Any]:
    return {kind: jsonschema.Draft202012Validator(schema) for kind, schema in object_schemas().items()}


@pytest.fixture(scope="module")
def settings_classes() -> dict[str, Any]:
    import_all_declarations()
    return {f"tideline_{c.section}": c for c in declared_settings() if c.section and c.__module__.startswith("tideline_")}


@combinations
def test_manifests_fit_the_schemas_of_kubernetes(name, schemas):
    for manifest in manifests_of(name):
        validator = schemas[manifest["apiVersion"], manifest["kind"]]
        found = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(manifest)]
        assert found == [], f"{manifest['kind']} {manifest['metadata']['name']}"


def test_the_schemas_refuse_unknown_fields_and_wrong_types(schemas):
    deployment = of_kind(manifests_of("least"), "Deployment")[0]
    validator = schemas["apps/v1", "Deployment"]
    assert not list(validator.iter_errors(deployment))
    for path, value in (("replica", 1), ("replicas", "1"), ("template", None)):
        wrong = copy.deepcopy(deployment)
        wrong["spec"][path] = value
        assert list(validator.iter_errors(wrong)), path
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    assert list(validator.iter_errors(wrong))


@combinations
def test_lint_finds_nothing(name):
    assert "0 chart(s) failed" in linted(COMBINATIONS[name])


@combinations
def test_objects_are_in_a_namespace_under_names_of_their_own(name):
    seen = set()
    for manifest in manifests_of(name):
        metadata = manifest["metadata"]
        identity = (manifest["kind"], metadata["namespace"], metadata["name"])
        assert identity not in seen
        seen.add(identity)
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"]), identity
        assert metadata["labels"]["app.kubernetes.io/instance"] == "tideline"


@combinations
def test_pods_keep_to_restricted_pod_security(name):
    for pod_name, pod in pods(manifests_of(name)):
        spec = pod["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod_name
        assert context.get("runAsUser") != 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC", "initContainers"))
        allowed = {"emptyDir", "configMap", "secret"}
        assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not {"privileged", "runAsUser", "procMount"} & set(own)
            assert not any("hostPort" in port for port in container.get("ports", ()))


@combinations
def test_containers_have_bounds_and_a_place_to_write(name):
    for pod_name, pod in pods(manifests_of(name)):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(container["resources"][kind]), pod_name
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert "emptyDir" in volumes[mounts["/tmp"]["name"]]
            assert all(mount["name"] in volumes for mount in mounts.values())
            writable = [m for m in mounts.values() if not m.get("readOnly")]
            assert all("emptyDir" in volumes[mount["name"]] for mount in writable)


@combinations
def test_no_pod_gets_variables_of_services_and_only_those_with_a_role_a_token(name):
    callers = set(COMPONENTS_OF_TABLES) if name == "table-resources" else {"launcher"}
    for pod_name, pod in pods(manifests_of(name)):
        assert pod["spec"]["enableServiceLinks"] is False, pod_name
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        assert pod["spec"]["automountServiceAccountToken"] is (component in callers), pod_name
    for account in of_kind(manifests_of(name), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@combinations
def test_roles_name_what_they_allow(name):
    manifests = manifests_of(name)
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
    roles = {(r["metadata"]["namespace"], r["metadata"]["name"]): r for r in of_kind(manifests, "Role")}
    for role in roles.values():
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "secrets" not in rule["resources"]
            assert not {"escalate", "bind", "impersonate", "update"} & set(rule["verbs"])
            assert "patch" not in rule["verbs"] or (role["metadata"]["name"], *rule["resources"]) in PATCHES
            assert not {"pods/exec", "pods/attach", "serviceaccounts/token"} & set(rule["resources"])
    holders: dict[str, set[str]] = {}
    for binding in of_kind(manifests, "RoleBinding"):
        assert (binding["metadata"]["namespace"], binding["roleRef"]["name"]) in roles
        (subject,) = binding["subjects"]
        holders.setdefault(subject["name"], set()).add(binding["roleRef"]["name"])
    launchers = [d for d in services(manifests) if component_of(d) == "launcher"]
    accounts = {d["spec"]["template"]["spec"]["serviceAccountName"] for d in launchers}
    wanted = {"launcher", "driver"} if launchers else set()
    wanted |= {component.rpartition("-")[2] for component in COMPONENTS_OF_TABLES if name == "table-resources"}
    assert {holder.rpartition("-")[2] for holder in holders} == wanted
    assert accounts <= set(holders)


def test_services_read_resources_and_two_write_their_status(settings_classes):
    manifests = manifests_of("table-resources")
    roles = {r["metadata"]["name"]: r for r in of_kind(manifests, "Role") if r["metadata"]["name"].endswith("-tables")}
    assert roles.keys() == {f"tideline-{component}-tables" for component in COMPONENTS_OF_TABLES}
    read = {"apiGroups": ["tideline.dev"], "resources": ["huditables"], "verbs": ["get", "list", "watch"]}
    write = {"apiGroups": ["tideline.dev"], "resources": ["huditables/status"], "verbs": ["patch"]}
    for name, role in roles.items():
        assert role["metadata"]["namespace"] == "jobs"
        assert role["rules"] == ([read, write] if "mirror" in name or "launcher" in name else [read])
    for module, component in (("tideline_mirror", "mirror"), ("tideline_lock_service", "lock-service")):
        variables = environment(manifests, named(manifests, "Deployment", f"tideline-{component}-0"))
        own = settings_classes[module].load(environment=_expanded({**SECRET_VALUES, **{k: v for k, v in variables.items() if v}}))
        assert (own.table_resources.namespace, own.table_resources.status_interval_s) == ("jobs", 5)


@combinations
def test_each_component_has_an_account_of_its_own(name):
    manifests = manifests_of(name)
    made = {(a["metadata"]["namespace"], a["metadata"]["name"]) for a in of_kind(manifests, "ServiceAccount")}
    by_component: dict[str, set[str]] = {}
    for deployment in of_kind(manifests, "Deployment"):
        account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
        by_component.setdefault(component_of(deployment), set()).add(account)
        assert (deployment["metadata"]["namespace"], account) in made or account in GIVEN
    names = [account for accounts in by_component.values() for account in accounts]
    assert len(names) == len(set(names)) == len(by_component)


@combinations
def test_secrets_are_references(name):
    manifests = manifests_of(name)
    assert not of_kind(manifests, "Secret")
    for deployment in of_kind(manifests, "Deployment"):
        for variable, value in environment(manifests, deployment).items():
            if re.search(r"PASSWORD|TOKEN|SECRET_ACCESS|USERNAME", variable):
                assert value is None, variable
            if value and "password" in value:
                assert '"sasl.password":"$(KAFKA_PASSWORD)"' in value


def _expanded(variables: dict[str, str]) -> dict[str, str]:
    return {name: re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text) for name, text in variables.items()}


@combinations
def test_settings_are_declared_complete_and_valid(name, settings_classes):
    """The settings class of the service itself reads the environment: it refuses unknown names, wrong values and missing ones."""
    manifests = manifests_of(name)
    assert services(manifests)
    for deployment in services(manifests):
        found = environment(manifests, deployment)
        secrets = {variable: SECRET_VALUES[variable] for variable, value in found.items() if value is None}
        settings = settings_classes[module_of(deployment)].load(environment=_expanded({**found, **secrets}))
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert settings.http_host in ("0.0.0.0", "::")
        assert settings.http_port == container["ports"][0]["containerPort"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert str(settings.state_folder) in mounts
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > math.ceil(settings.stop_grace_s)
        if component_of(deployment) in ("lock-service", "planner"):
            # They answer more than probes and metrics, and refuse to start for other machines without a token.
            assert settings.http_token is not None
        if component_of(deployment) != "ingest":
            assert settings.event_log.startswith("kafka://")
        if component_of(deployment) in COMPONENTS_OF_TABLES:
            assert settings.tables or settings.table_resources.enabled
            assert settings.table_resources.enabled is (name == "table-resources")
        options = settings.kafka_options if component_of(deployment) == "ingest" else settings.event_log_options
        assert not any("$(" in option.get_secret_value() for option in options.values())
        for option in options.values():
            text = option.get_secret_value()
            assert not text.startswith("/") or any(text.startswith(f"{mount}/") for mount in mounts), text


def test_connections_reach_the_settings(settings_classes):
    manifests = manifests_of("tls-sasl-acl")
    variables = environment(manifests, named(manifests, "Deployment", "tideline-mirror-0"))
    assert json.loads(variables["TIDELINE_EVENT_LOG_OPTIONS"]) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "$(KAFKA_USERNAME)",
        "sasl.password": "$(KAFKA_PASSWORD)",
        "ssl.ca.location": "/etc/tideline/trust/ca.crt",
        "ssl.certificate.location": "/etc/tideline/kafka/tls.crt",
        "ssl.key.location": "/etc/tideline/kafka/tls.key",
        "socket.keepalive.enable": "true",
        "message.max.bytes": "4000000",
    }
    assert variables["AWS_ENDPOINT_URL"] == "https://objects.example:9000"
    assert variables["AWS_REGION"] == "eu-central-1"
    assert variables["SSL_CERT_FILE"] == "/etc/tideline/trust/ca.crt"
    order = [
        v["name"] for v in named(manifests, "Deployment", "tideline-mirror-0")["spec"]["template"]["spec"]["containers"][0]["env"]
    ]
    # Kubernetes replaces $(NAME) by variables that stand before it only.
    assert order.index("KAFKA_PASSWORD") < order.index("TIDELINE_EVENT_LOG_OPTIONS")
    for name, url in (
        ("redis-address", "rediss://redis:6380/3"),
        ("least", ""),
        ("trial", "redis://tideline-redis.data.svc:6379/0"),
    ):
        others = manifests_of(name)
        assert environment(others, named(others, "Deployment", "tideline-cleaner-0"))["TIDELINE_LOCKS"] == url


def test_values_for_applications_reach_the_launcher(settings_classes):
    manifests = manifests_of("placement")
    deployment = named(manifests, "Deployment", "tideline-launcher-0")
    variables = environment(manifests, deployment)
    kubernetes = (
        settings_classes["tideline_launcher"].load(environment={**variables, "TIDELINE_HTTP_TOKEN": "0123456789"}).kubernetes
    )
    assert kubernetes.namespace == "jobs"
    assert kubernetes.image == "registry.example.com/tideline-spark:1.0"
    assert kubernetes.image_pull_secrets == ("registry",)
    assert (kubernetes.driver_service_account, kubernetes.executor_service_account) == ("tideline-driver", "existing-executor")
    assert kubernetes.node_selector == {"pool": "spark"}
    assert kubernetes.tolerations == ({"key": "spot", "operator": "Exists"},)
    assert kubernetes.priority_class == "low"
    assert kubernetes.owner == "", "owner references do not cross namespaces"
    assert str(kubernetes.pod_template) == "/etc/tideline/pod-template/pod.yaml"
    near = manifests_of("tls-sasl-acl")
    variables = environment(near, named(near, "Deployment", "tideline-launcher-0"))
    settings = settings_classes["tideline_launcher"].load(environment={**variables, **SECRET_VALUES})
    assert settings.kubernetes.owner == "Deployment/tideline-launcher-0"
    assert settings.kubernetes.locks_secret == "redis-url/url"
    assert settings.kubernetes.environment_secrets == ("object-store",)
    (own,) = settings.kubernetes.environment_config_maps
    assert named(near, "ConfigMap", own)["data"]["AWS_REGION"] == "eu-central-1"


def test_by_default_small_plans_run_in_resident_workers_and_no_lock_service_runs(settings_classes):
    manifests = manifests_of("least")
    assert {component_of(found) for found in services(manifests)} == {"mirror", "planner", "launcher", "cleaner"}
    launcher = named(manifests, "Deployment", "tideline-launcher-0")
    workers = settings_classes["tideline_launcher"].load(environment=environment(manifests, launcher)).workers
    limit = launcher["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert (workers.count, limit) == (2, f"{1 + workers.count * workers.memory_bytes // 2**30}Gi")


def test_the_planner_judges_cleans_by_the_settings_of_the_cleaner(settings_classes):
    retained = {"hoodie.cleaner.commits.retained": "3"}
    own = {"options": retained, "clean_min_commits": 2, "poll_interval_s": 9}
    manifests = changed(BASE, cleaner={"settings": own})
    found = environment(manifests, named(manifests, "Deployment", "tideline-planner-0"))
    cleaner = settings_classes["tideline_cleaner"].load(environment=found)
    assert (cleaner.options, cleaner.clean_min_commits) == (retained, 2)
    assert settings_classes["tideline_planner"].load(environment=found).poll_interval_s == 5
    assert "TIDELINE_CLEANER__POLL_INTERVAL_S" not in found


def test_own_settings_of_the_launcher_join_those_of_the_chart(settings_classes):
    manifests = manifests_of("settings")
    variables = environment(manifests, named(manifests, "Deployment", "tideline-launcher-0"))
    settings = settings_classes["tideline_launcher"].load(environment=variables)
    assert settings.kubernetes.spark == {"spark.sql.shuffle.partitions": "8"}
    assert settings.kubernetes.finished_ttl_s == 600
    assert settings.kubernetes.image == "tideline-spark:0.1.0"
    assert settings.resources.max_executors == 64
    assert settings.resources.bytes_per_core == 1 << 30


def test_pod_template_holds_what_is_given_and_the_authorities(schemas):
    template = yaml.safe_load(
        named(manifests_of("pod-template-and-trust"), "ConfigMap", "tideline-pod-template")["data"]["pod.yaml"]
    )
    (container,) = template["spec"]["containers"]
    assert container["name"] == "main"
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/disk", "/etc/tideline/trust"}
    assert {volume["name"] for volume in template["spec"]["volumes"]} == {"disk", "trust"}
    assert template["spec"]["enableServiceLinks"] is False
    assert not list(schemas["v1", "Pod"].iter_errors(template))
    least = yaml.safe_load(named(manifests_of("least"), "ConfigMap", "tideline-pod-template")["data"]["pod.yaml"])
    assert least == {"apiVersion": "v1", "kind": "Pod", "spec": {"enableServiceLinks": False}}


@combinations
def test_shards_cover_the_tables_once(name):
    manifests = manifests_of(name)
    by_component: dict[str, list[tuple[int, int]]] = {}
    for deployment in services(manifests):
        variables = environment(manifests, deployment)
        if variables.get("TIDELINE_SHARD_LEASES__ENABLED") == "true":
            # Any number of pods divide the shards.
            assert "TIDELINE_SHARD_INDEX" not in variables
            continue
        assert deployment["spec"]["replicas"] == 1
        if component_of(deployment) != "ingest":
            index, count = int(variables["TIDELINE_SHARD_INDEX"]), int(variables["TIDELINE_SHARD_COUNT"])
            by_component.setdefault(component_of(deployment), []).append((index, count))
    for shards in by_component.values():
        assert sorted(shards) == [(index, len(shards)) for index in range(len(shards))]


def test_instances_that_divide_shards_by_leases_are_pods_of_one_deployment():
    manifests = manifests_of("shard leases")
    for name in ("mirror", "planner", "cleaner"):
        (deployment,) = (d for d in services(manifests) if component_of(d) == name)
        variables = environment(manifests, deployment)
        assert (deployment["spec"]["replicas"], variables["TIDELINE_SHARD_COUNT"]) == (2, "8")
        assert variables["TIDELINE_SHARD_LEASES__GROUP"] == f"tideline.{deployment['metadata']['namespace']}"
    manifests_without = manifests_of("shard leases without redis")
    (mirror,) = (d for d in services(manifests_without) if component_of(d) == "mirror")
    variables = environment(manifests_without, mirror)
    assert (variables["TIDELINE_SHARD_LEASES__STORE"], variables["TIDELINE_LOCKS"]) == ("storage:s3://lake/tideline-leases", "")
    pod = named(manifests, "Pod", "tideline-test")
    assert "tideline-mirror-pods=2" in pod["spec"]["containers"][0]["args"]


@combinations
def test_selectors_select_pods_and_workloads_do_not_share_them(name):
    manifests = manifests_of(name)
    labels = {pod_name: pod["metadata"]["labels"] for pod_name, pod in pods(manifests)}
    for deployment in of_kind(manifests, "Deployment"):
        selected = [pod for pod, own in labels.items() if matches(deployment["spec"]["selector"], own)]
        assert selected == [deployment["metadata"]["name"]]
    for service in of_kind(manifests, "Service"):
        selected = [pod for pod, own in labels.items() if service["spec"]["selector"].items() <= own.items()]
        assert {component_of(service)} == {labels[pod]["app.kubernetes.io/component"] for pod in selected}
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in PORT_NAMES
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        assert any(matches(budget["spec"]["selector"], own) for own in labels.values())
    covered = {
        pod for b in of_kind(manifests, "PodDisruptionBudget") for pod, own in labels.items() if matches(b["spec"]["selector"], own)
    }
    if of_kind(manifests, "PodDisruptionBudget"):
        assert covered == {d["metadata"]["name"] for d in services(manifests)}


def test_pods_get_variables_volumes_and_sidecars_beside_those_of_the_chart():
    more = {name: PLACEMENT[name] for name in ("extraEnv", "extraVolumes", "extraVolumeMounts", "sidecars")}
    more["extraEnv"] = [*more["extraEnv"], {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]
    plain, given = changed(BASE), changed(BASE, **{key: {**more, "enabled": True} for key in SERVICES})
    for before, after in zip(services(plain), services(given), strict=True):
        assert before["metadata"]["name"] == after["metadata"]["name"]
        was, now = (found["spec"]["template"]["spec"] for found in (before, after))
        own = {**now["containers"][0]}
        assert own.pop("env") == [*was["containers"][0]["env"], *more["extraEnv"]]
        assert own.pop("volumeMounts") == [*was["containers"][0]["volumeMounts"], *more["extraVolumeMounts"]]
        assert own.items() <= was["containers"][0].items(), "nothing else of the service changes"
        assert now["containers"][1:] == more["sidecars"]
        assert now["volumes"] == [*was["volumes"], *more["extraVolumes"]]


@combinations
def test_references_name_objects_that_exist(name):
    manifests = manifests_of(name)
    config_maps = {(m["metadata"]["namespace"], m["metadata"]["name"]) for m in of_kind(manifests, "ConfigMap")}
    for manifest in of_kind(manifests, "Deployment", "Pod"):
        spec = manifest["spec"]["template"]["spec"] if manifest["kind"] == "Deployment" else manifest["spec"]
        used = {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
        used |= {s["configMapRef"]["name"] for s in spec["containers"][0].get("envFrom", ()) if "configMapRef" in s}
        for one in used - GIVEN:
            assert (manifest["metadata"]["namespace"], one) in config_maps, one


def _checksums(manifests: list[dict[str, Any]]) -> dict[str, str]:
    return {
        d["metadata"]["name"]: d["spec"]["template"]["metadata"]["annotations"]["checksum/settings"] for d in services(manifests)
    }


def test_a_changed_setting_rolls_the_pods_that_read_it_and_no_others():
    before = _checksums(changed(BASE))
    own = _checksums(changed(BASE, mirror={"settings": {"batch_entries": 7}}))
    assert {name for name in before if own[name] != before[name]} == {"tideline-mirror-0"}
    shared = _checksums(changed(BASE, settings={"poll_interval_s": 1}))
    assert all(shared[name] != before[name] for name in before)
    assert _checksums(changed(BASE, monitoring={"dashboard": {"enabled": True}})) == before


def test_every_service_reads_the_policy_file_which_no_pod_is_replaced_for(tmp_path):
    manifests = manifests_of("policy")
    file = tmp_path / "policies.yaml"
    file.write_text(named(manifests, "ConfigMap", "tideline-policy")["data"]["policies.yaml"])
    assert file.read_text() == POLICY
    assert len(read_policies(file).rules) == 1
    for name, key in (("policy", "policies.yaml"), ("own-policy", "fleet.yaml")):
        manifests = manifests_of(name)
        for deployment in services(manifests):
            spec = deployment["spec"]["template"]["spec"]
            (volume,) = (v for v in spec["volumes"] if v["name"] == "policy")
            (item,) = volume["configMap"]["items"]
            (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "policy")
            assert item["key"] == key
            assert "subPath" not in mount, "a file that is mounted by itself does not follow its ConfigMap"
            assert environment(manifests, deployment)["TIDELINE_POLICY_FILE"] == f"{mount['mountPath']}/{item['path']}"
    changed_text = changed(BASE, policy={"content": POLICY + "# changed\n"}, ingest={"applications": [ORDERS]})
    assert _checksums(changed_text) == _checksums(manifests_of("policy"))


def test_a_changed_pod_template_rolls_the_launcher():
    def annotations(manifests):
        return named(manifests, "Deployment", "tideline-launcher-0")["spec"]["template"]["metadata"]["annotations"]

    one = changed(BASE, applications={"podTemplate": {"metadata": {"labels": {"a": "b"}}}})
    other = changed(BASE, applications={"podTemplate": {"metadata": {"labels": {"a": "c"}}}})
    assert annotations(one)["checksum/pod-template"] != annotations(other)["checksum/pod-template"]


@combinations
def test_policies_deny_by_default_and_open_only_named_ports(name):
    manifests = manifests_of(name)
    policies = of_kind(manifests, "NetworkPolicy")
    if not policies:
        assert name == "no-policies"
        return
    (deny,) = (policy["spec"] for policy in policies if policy["metadata"]["name"].endswith("-deny"))
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert not deny.get("ingress")
    assert not deny.get("egress")
    for _, pod in pods(manifests):
        assert matches(deny["podSelector"], pod["metadata"]["labels"])
    for policy in policies:
        for direction in ("ingress", "egress"):
            for rule in policy["spec"].get(direction, ()):
                is_among_applications = policy["metadata"]["name"].endswith("-applications")
                assert rule.get("ports") or is_among_applications, policy["metadata"]["name"]
                assert direction == "egress" or rule["from"], policy["metadata"]["name"]
        if policy["metadata"]["name"].endswith("-applications"):
            (rule,) = policy["spec"]["ingress"]
            assert rule == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}


def _egress_ports(manifests: list[dict[str, Any]], pod: dict[str, Any]) -> set[int]:
    """The TCP ports that policies let a pod of the release reach."""
    labels = pod["metadata"]["labels"]
    selecting = [p for p in of_kind(manifests, "NetworkPolicy") if matches(p["spec"]["podSelector"], labels)]
    rules = [rule for policy in selecting for rule in policy["spec"].get("egress", ())]
    return {port["port"] for rule in rules for port in rule["ports"] if port["protocol"] == "TCP"}


@pytest.mark.parametrize(
    ("name", "ports"),
    [
        ("least", {53, 443, 9092, 9093}),
        ("tls-sasl-acl", {53, 9000, 9094, 6379}),
        ("redis-address", {53, 443, 9092, 9093, 6380}),
        ("http-store", {53, 9000, 9092, 9093}),
        ("policy-peers", {53, 443, 9092, 9093, 6379, 80}),
        ("table-resources", {53, 443, 9092, 9093}),
        ("changes-and-webhooks", {53, 9000, 9094, 6379}),
        ("catalog", {53, 9000, 9094, 6379}),
    ],
)
def test_services_reach_their_stores_and_only_those_with_a_role_the_api_server(name, ports):
    manifests = manifests_of(name)
    for pod_name, pod in pods(manifests):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        callers = COMPONENTS_OF_TABLES if name == "table-resources" else ("launcher",)
        endpoints = {443, 8443} if name == "changes-and-webhooks" else {443}
        others = {"test": {53, 8080}, "webhooks": ports | endpoints, "catalog": ports | {9083}}
        wanted = {**dict.fromkeys(callers, ports | {443, 6443}), **others}.get(component, ports)
        assert _egress_ports(manifests, pod) == wanted, pod_name


def test_monitoring_is_what_the_values_say():
    manifests = manifests_of("monitoring")
    monitor = named(manifests, "ServiceMonitor", "tideline")
    selected = [s for s in of_kind(manifests, "Service") if matches(monitor["spec"]["selector"], s["metadata"]["labels"])]
    assert {component_of(s) for s in selected} == {"mirror", "planner", "launcher", "cleaner", "lock-service", "ingest"}
    assert all(s["spec"]["clusterIP"] == "None" for s in selected)
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"] == {"name": "tideline-http", "key": "token"}
    json.loads(named(manifests, "ConfigMap", "tideline-dashboard")["data"]["tideline.json"])
    (group,) = named(manifests, "PrometheusRule", "tideline")["spec"]["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert "TidelineTicksSlow" not in alerts
    assert alerts.count("TidelineServiceAbsent") == len(SERVICES)
    absent = [rule["expr"] for rule in group["rules"] if rule["alert"] == "TidelineServiceAbsent"]
    assert 'absent(tideline_runtime_ready{namespace="data", container="lock-service"})' in absent
    containers = {d["spec"]["template"]["spec"]["containers"][0]["name"] for d in services(manifests)}
    assert all(re.search(r'container="([a-z-]+)"', expression)[1] in containers for expression in absent)
    (reach,) = (rule for rule in group["rules"] if rule["alert"] == "TidelineTablesOutOfReach")
    assert "tideline_runtime_table_trouble" in reach["expr"]
    assert reach["labels"] == {"severity": "critical"}
    assert (
        group["rules"][0]["annotations"]["runbook_url"] == "https://runbooks.example/kubernetes-operations.md#tidelineserviceabsent"
    )
    for _, pod in pods(manifests):
        assert "prometheus.io/scrape" not in pod["metadata"].get("annotations", {})
    for deployment in services(manifests):
        assert environment(manifests, deployment)["TIDELINE_HTTP_TOKEN"] is None


def test_the_probe_test_asks_every_shard():
    pod = named(manifests_of("shards"), "Pod", "tideline-test")
    targets = [argument for argument in pod["spec"]["containers"][0]["args"] if "=" in argument and not argument.startswith("--")]
    services_named = {s["metadata"]["name"] for s in of_kind(manifests_of("shards"), "Service")}
    assert dict(target.split("=") for target in targets) == {
        "tideline-mirror-pods": "3",
        "tideline-planner-pods": "3",
        "tideline-launcher-pods": "2",
        "tideline-cleaner-pods": "3",
        "tideline-lock-service-pods": "3",
    }
    assert {target.partition("=")[0] for target in targets} <= services_named
    # The script that tests/chart/test_probe_script.py tries is the one that runs.
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "script")
    data = named(manifests_of("shards"), "ConfigMap", volume["configMap"]["name"])["data"]
    assert data == {"probes.py": (CHART / "files/probes.py").read_text()}
    assert "/etc/tideline/test/probes.py" in pod["spec"]["containers"][0]["args"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tables": []}, "tables is empty"),
        ({"kafka": {"brokers": ""}}, "kafka.brokers is empty"),
        ({"trial": {"kafka": {"enabled": True}}}, "kafka.brokers is set and trial.kafka.enabled is true"),
        ({"redis": {"address": "redis:6379"}, "trial": {"redis": {"enabled": True}}}, "trial.redis.enabled is true"),
        ({"redis": {"address": "redis:6379", "urlSecret": {"name": "url"}}}, "redis.address and redis.urlSecret are both set"),
        ({"kafka": {**BASE["kafka"], "security": {"protocol": "SASL_SSL"}}}, "without kafka.security.credentialsSecret.name"),
        ({"http": {"tokenSecret": {"name": ""}}}, "http.tokenSecret.name is empty"),
        ({"lockService": {"enabled": True, "shards": 2}}, "lockService.shards is 2"),
        ({"mirror": {"instances": 2}}, "mirror.instances is 2 and there is no Redis"),
        ({"ingest": {"applications": [ORDERS, ORDERS]}}, 'two applications have the name "orders"'),
        ({"webhooks": {"enabled": True}}, "webhooks.subscriptions is empty"),
        (
            {"webhooks": {"subscriptions": {"content": SUBSCRIPTIONS, "contentSecret": {"name": "subscriptions"}}}},
            "webhooks.subscriptions.content and webhooks.subscriptions.contentSecret.name are both set",
        ),
        ({"changes": {"instances": 2}}, "additional properties 'instances' not allowed"),
        ({"mirror": {"settings": {"batch_entrys": 3}}}, "additional properties 'batch_entrys' not allowed"),
        ({"settings": {"poll_interval_s": -1}}, "/settings/poll_interval_s"),
        (
            {"policy": {"content": POLICY, "configMap": {"name": "policies"}}},
            "policy.content and policy.configMap.name are both set",
        ),
        (
            {"policy": {"content": POLICY}, "settings": {"policy_file": "/p.yaml"}},
            "settings.policy_file is set beside policy.content",
        ),
    ],
)
def test_values_that_cannot_work_are_refused_with_a_remedy(values, message):
    with pytest.raises(ChartToolFailed, match=re.escape(message)):
        changed(BASE, **values)


def test_names_stay_valid_for_long_releases():
    for manifest in rendered(BASE, release="a-release-with-a-name-of-fifty-three-characters-12345", namespace="n" * 63):
        assert len(manifest["metadata"]["name"]) <= 63
        assert not manifest["metadata"]["name"].endswith("-")


def test_row_changes_webhooks_and_the_catalog_service_are_off_by_default():
    text = _rendered("least")
    assert not re.search("changes|webhooks|subscriptions|catalog", text), text


def test_the_catalog_service_is_told_the_catalog_and_reaches_it_alone(settings_classes):
    manifests = manifests_of("catalog")
    variables = environment(manifests, named(manifests, "Deployment", "tideline-catalog-1"))
    assert "TIDELINE_TABLES" not in variables, "events name the tables"
    given = {name: SECRET_VALUES.get(name) if value is None else value for name, value in variables.items()}
    settings = settings_classes["tideline_catalog"].load(environment=_expanded(given))
    assert (settings.url, settings.database, settings.shard_index) == ("hms://metastore:9083", "lake", 1)
    policy = named(manifests, "NetworkPolicy", "tideline-catalog")
    selected = {name for name, pod in pods(manifests) if matches(policy["spec"]["podSelector"], pod["metadata"]["labels"])}
    assert selected == {"tideline-catalog-0", "tideline-catalog-1"}
    assert policy["spec"]["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.8.0.0/16"}}]


def test_the_webhooks_read_the_subscriptions_of_the_values_and_their_secrets(settings_classes, tmp_path):
    manifests = manifests_of("changes-and-webhooks")
    deployment = named(manifests, "Deployment", "tideline-webhooks-1")
    spec = deployment["spec"]["template"]["spec"]
    variables = environment(manifests, deployment)
    assert "TIDELINE_TABLES" not in variables, "it searches for no tables"
    given = {name: SECRET_VALUES.get(name) if value is None else value for name, value in variables.items()}
    settings = settings_classes["tideline_webhooks"].load(environment=_expanded(given))
    assert (settings.shard_index, settings.shard_count) == (1, 2)
    folders = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    sources = {v["name"]: v for v in spec["volumes"]}
    assert str(settings.subscriptions) == f"{folders['subscriptions']}/subscriptions.yaml"
    assert sources["signing"]["secret"]["secretName"] == "signing"
    # The pod's folders, in one of this machine.
    (tmp_path / "reports").write_text("0123456789abcdef0123456789abcdef")
    text = named(manifests, "ConfigMap", sources["subscriptions"]["configMap"]["name"])["data"]["subscriptions.yaml"]
    assert text == SUBSCRIPTIONS
    file = tmp_path / "subscriptions.yaml"
    file.write_text(text.replace(folders["signing"], str(tmp_path)))
    (subscription,) = read_subscriptions(file)
    assert subscription.secret.startswith("0123")


def test_subscriptions_may_be_a_secret_and_a_changed_text_rolls_the_pods():
    manifests = manifests_of("webhooks-alone")
    (deployment,) = services(manifests)
    (volume,) = (v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "subscriptions")
    assert volume["secret"]["secretName"] == "subscriptions"
    assert volume["secret"]["items"] == [{"key": "file", "path": "subscriptions.yaml"}]
    own = copy.deepcopy(COMBINATIONS["changes-and-webhooks"])
    before = _checksums(manifests_of("changes-and-webhooks"))
    own["webhooks"]["subscriptions"]["content"] += "# changed\n"
    after = _checksums(rendered(own))
    assert {name for name in before if after[name] != before[name]} == {"tideline-webhooks-0", "tideline-webhooks-1"}


def test_only_the_webhooks_reach_endpoints():
    manifests = manifests_of("changes-and-webhooks")
    policy = named(manifests, "NetworkPolicy", "tideline-webhooks")
    selected = {name for name, pod in pods(manifests) if matches(policy["spec"]["podSelector"], pod["metadata"]["labels"])}
    assert selected == {"tideline-webhooks-0", "tideline-webhooks-1"}
    (rule,) = policy["spec"]["egress"]
    assert rule["to"] == [{"ipBlock": {"cidr": "10.7.0.0/16"}}]


def test_connections_of_ingestion_are_those_of_the_chart():
    manifests = manifests_of("ingest")
    variables = environment(manifests, named(manifests, "Deployment", "tideline-ingest-clicks"))
    assert variables["TIDELINE_INGEST__BROKERS"] == EVERY_CONNECTION["kafka"]["brokers"]
    assert json.loads(variables["TIDELINE_INGEST__PARTITIONS"]) == [0, 2]
    assert variables["TIDELINE_INGEST__BATCH_BYTES"] == "268435456"
    assert variables["TIDELINE_INGEST__SCHEMA_REGISTRY_OPTIONS"] is None
    assert json.loads(variables["TIDELINE_INGEST__KAFKA_OPTIONS"])["security.protocol"] == "SASL_SSL"
