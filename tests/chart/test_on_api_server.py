"""A real API server admits what the chart renders, without a warning, in a namespace with restricted Pod Security."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.chart.access import FORBIDDEN, RELEASE, VERBS, Account, Request, accounts, allows, forbidden, needed
from tests.chart.combinations import COMBINATIONS
from tests.chart.manifests import of_kind, pods
from tests.chart.tools import api_resources, rendered
from tests.real.kubernetes_api import KubernetesApi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

NAMESPACES = ("data", "jobs")
ADMITTED = ("least", "trial", "ingest", "pod-template-and-trust", "policy-peers", "policy", "table-resources")
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


def may(api: httpx.Client, account: Account, request: Request) -> bool:
    """What the API server itself decides about an account."""
    name, _, subresource = request.resource.partition("/")
    attributes = {
        "namespace": request.namespace,
        "verb": request.verb,
        "group": request.group,
        "resource": name,
        "subresource": subresource,
        "name": request.name,
    }
    review = {"user": account.user, "groups": list(account.groups), "resourceAttributes": attributes}
    answer = api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json={"spec": review}).raise_for_status()
    return bool(answer.json()["status"]["allowed"])


@pytest.mark.parametrize("component", accounts())
def test_accounts_may_do_what_they_need(api, granted, component):
    refused = [r for r in needed(component, RELEASE, "jobs") if not may(api, accounts()[component], r)]
    assert refused == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_accounts_may_not_do_what_is_forbidden(api, granted, what):
    known = accounts()
    asked = [(component, request) for reason, component, request in forbidden() if reason == what]
    assert asked
    assert [(component, request) for component, request in asked if may(api, known[component], request)] == []


@pytest.mark.parametrize("component", ["launcher", "driver", "mirror", "planner"])
@pytest.mark.parametrize("namespace", ["data", "jobs"])
def test_the_evaluation_without_a_cluster_decides_as_the_api_server_does(api, granted, component, namespace):
    account = accounts()[component]
    for group, resource in api_resources():
        # What Kubernetes itself lets every account ask about itself.
        if resource.startswith("selfsubject") or resource == "clustertrustbundles":
            continue
        for verb in VERBS:
            request = Request(verb, group, resource, namespace)
            assert may(api, account, request) is allows(granted, account, request), request


ATTEMPTS = [
    ("mirror", "GET", "/api/v1/namespaces/data/secrets"),
    ("mirror", "POST", "/api/v1/namespaces/data/pods"),
    ("planner", "GET", "/api/v1/namespaces/data/pods"),
    ("planner", "PATCH", "/apis/tideline.dev/v1alpha1/namespaces/jobs/huditables/orders/status"),
    ("cleaner", "DELETE", "/apis/tideline.dev/v1alpha1/namespaces/jobs/huditables/orders"),
    ("lock-service", "GET", "/api/v1/namespaces/data/configmaps"),
    ("launcher", "GET", "/api/v1/namespaces/data/secrets/object-store"),
    ("launcher", "GET", "/api/v1/namespaces/kube-system/pods"),
    ("launcher", "POST", "/api/v1/namespaces/data/pods/any/exec?command=id"),
    ("launcher", "POST", "/api/v1/namespaces/data/serviceaccounts/tideline-mirror/token"),
    ("launcher", "PATCH", "/apis/apps/v1/namespaces/data/deployments/tideline-launcher-0"),
    ("launcher", "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/data/rolebindings"),
    ("driver", "GET", "/api/v1/namespaces/data/secrets"),
    ("driver", "GET", "/api/v1/namespaces/data/pods/any/log"),
    ("executor", "GET", "/api/v1/namespaces/data/pods"),
    ("ingest", "GET", "/api/v1/namespaces/data/secrets"),
    ("test", "GET", "/api/v1/namespaces/data/secrets"),
]


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """A pod that the namespace admits."""
    (pod,) = (pod for name, pod in pods(rendered(COMBINATIONS["least"])) if name == "tideline-test")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried", "namespace": "data"}, "spec": pod["spec"]}


def tried(api: httpx.Client, component: str, method: str, path: str, body: dict[str, Any], **query: str) -> httpx.Response:
    """A request in the name of an account."""
    account = accounts()[component]
    headers = [("Impersonate-User", account.user), *(("Impersonate-Group", group) for group in account.groups)]
    if method == "PATCH":
        headers.append(("Content-Type", "application/merge-patch+json"))
    content = {"content": json.dumps(body)} if method == "PATCH" else {"json": body} if method == "POST" else {}
    url, _, more = path.partition("?")
    return api.request(
        method, url, params={**dict(p.split("=") for p in more.split("&") if p), **query}, headers=headers, **content
    )


@pytest.mark.parametrize(("component", "method", "path"), ATTEMPTS)
def test_attempts_in_the_name_of_an_account_are_refused(api, granted, manifest, component, method, path):
    answer = tried(api, component, method, path, manifest, dryRun="All")
    assert answer.status_code == 403, answer.text
    assert accounts()[component].user in answer.json()["message"], "refused for the account, not for the one who impersonates it"


@pytest.mark.parametrize(
    ("component", "method", "path", "status"),
    [
        ("launcher", "POST", "/api/v1/namespaces/data/pods", 201),
        ("launcher", "GET", "/api/v1/namespaces/data/pods", 200),
        ("driver", "POST", "/api/v1/namespaces/data/pods", 201),
        ("driver", "DELETE", "/api/v1/namespaces/data/configmaps", 200),
    ],
)
def test_what_an_account_needs_is_done_in_its_name(api, granted, manifest, component, method, path, status):
    query = {} if method == "GET" else {"dryRun": "All"}
    answer = tried(api, component, method, path, manifest, **query)
    assert answer.status_code == status, answer.text


@pytest.fixture(scope="module")
def granted(api) -> list[dict[str, Any]]:
    """The roles and bindings of a release with HudiTable resources in another namespace, in effect."""
    manifests = of_kind(rendered(COMBINATIONS["table-resources"]), "Role", "RoleBinding")
    for manifest in manifests:
        created(api, manifest, {})
    return manifests
