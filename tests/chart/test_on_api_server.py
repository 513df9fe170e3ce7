"""A real API server admits what the chart renders, without a warning, in a namespace with restricted Pod Security."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.chart.combinations import COMBINATIONS
from tests.chart.manifests import of_kind, pods
from tests.chart.tools import rendered
from tests.real.kubernetes_api import KubernetesApi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

NAMESPACES = ("data", "jobs")
ADMITTED = ("least", "trial", "ingest", "pod-template-and-trust", "policy-peers", "table-resources")
PLURALS = {"NetworkPolicy": "networkpolicies"}
DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}


@pytest.fixture(scope="module")
def api() -> Iterator[httpx.Client]:
    server = KubernetesApi()
    try:
        with server.client() as client:
            for name in NAMESPACES:
                labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
                created(client, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}, {})
                # No controller runs here that would make it.
                default = {"name": "default", "namespace": name}
                created(client, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": default}, {})
            yield client
    finally:
        server.close()


def created(client: httpx.Client, manifest: dict[str, Any], query: dict[str, str]) -> None:
    version, kind = manifest["apiVersion"], manifest["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    answer = client.post(f"{root}{place}/{PLURALS.get(kind, kind.lower() + 's')}", params=query, json=manifest)
    assert answer.status_code == 201, answer.text
    assert "warning" not in answer.headers, answer.headers["warning"]


@pytest.mark.parametrize("name", ADMITTED)
def test_objects_and_their_pods_are_admitted(api, name):
    manifests = rendered(COMBINATIONS[name])
    for manifest in of_kind(manifests, "ServiceAccount"):
        # A pod is admitted only if its account exists.
        created(api, manifest, {})
    try:
        for manifest in manifests:
            if manifest["kind"] != "ServiceAccount":
                created(api, manifest, DRY_RUN)
        for pod_name, pod in pods(manifests):
            metadata = {**pod["metadata"], "name": f"{pod_name}-admitted", "namespace": "data"}
            created(api, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}, DRY_RUN)
    finally:
        for manifest in of_kind(manifests, "ServiceAccount"):
            metadata = manifest["metadata"]
            api.delete(f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{metadata['name']}").raise_for_status()


def test_a_pod_that_breaks_the_rules_is_refused(api):
    (spec,) = (pod["spec"] for name, pod in pods(rendered(COMBINATIONS["least"])) if name == "tideline-test")
    spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        created(api, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong", "namespace": "data"}, "spec": spec}, DRY_RUN)


@pytest.mark.parametrize(
    ("account", "verb", "resource", "allowed"),
    [
        ("launcher", "create", "pods", True),
        ("launcher", "watch", "pods", True),
        ("launcher", "patch", "pods", True),
        ("launcher", "delete", "pods", True),
        ("launcher", "get", "pods/log", True),
        ("launcher", "create", "pods/exec", False),
        ("launcher", "update", "pods", False),
        ("launcher", "get", "secrets", False),
        ("launcher", "list", "configmaps", False),
        ("driver", "create", "pods", True),
        ("driver", "deletecollection", "pods", True),
        ("driver", "deletecollection", "configmaps", True),
        ("driver", "list", "persistentvolumeclaims", True),
        ("driver", "get", "pods/log", False),
        ("driver", "create", "pods/exec", False),
        ("driver", "get", "secrets", False),
        ("executor", "get", "pods", False),
        ("mirror", "get", "pods", False),
        ("planner", "get", "secrets", False),
    ],
)
def test_accounts_may_do_what_they_need_and_no_more(api, granted, account, verb, resource, allowed):
    name, _, subresource = resource.partition("/")
    attributes = {"namespace": "data", "verb": verb, "resource": name, "subresource": subresource}
    review = {"user": f"system:serviceaccount:data:tideline-{account}", "resourceAttributes": attributes}
    answer = api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json={"spec": review}).raise_for_status()
    assert answer.json()["status"]["allowed"] is allowed


@pytest.mark.parametrize("account", ["mirror", "planner", "launcher", "cleaner", "lock-service"])
def test_accounts_read_hudi_tables_and_two_write_their_status(api, granted, account):
    def may(verb: str, subresource: str = "") -> bool:
        asked = {"namespace": "jobs", "verb": verb, "group": "tideline.dev", "resource": "huditables", "subresource": subresource}
        spec = {"user": f"system:serviceaccount:data:tideline-{account}", "resourceAttributes": asked}
        answer = api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json={"spec": spec}).raise_for_status()
        return answer.json()["status"]["allowed"]

    assert all(may(verb) for verb in ("get", "list", "watch"))
    assert may("patch", "status") is (account in ("mirror", "launcher"))
    assert not any(may(verb) for verb in ("create", "update", "patch", "delete"))


@pytest.fixture(scope="module")
def granted(api) -> None:
    """The roles and bindings of a release, in effect, and those for HudiTable resources."""
    more = [m for m in rendered(COMBINATIONS["table-resources"]) if m["metadata"]["name"].endswith("-tables")]
    for manifest in of_kind([*rendered(COMBINATIONS["least"]), *more], "Role", "RoleBinding"):
        created(api, manifest, {})
