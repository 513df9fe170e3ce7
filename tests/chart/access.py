"""What rendered roles and bindings allow, as a pure function, and what each account of a release needs and must never get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
TABLES = "tideline.dev"
OTHERS = ("changes", "webhooks", "console", "catalog", "ingest")
"""Services of which none starts or writes anything in the cluster."""
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
SPECIAL_VERBS = ("escalate", "bind", "impersonate", "use", "approve", "sign", "attest", "proxy")
RELEASE, ELSEWHERE, ALL = "data", "kube-system", ""
"""Namespaces: that of the release, one that it has nothing to do with, and all of them at once (or what is in none)."""


@dataclass(frozen=True, slots=True)
class Account:
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        """Its name as the API server knows it."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that every service account is in."""
        return "system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the API server. `resource` may have a subresource (`pods/log`); `name` is empty for requests without one."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""


def allows(manifests: list[Manifest], account: Account, request: Request) -> bool:
    """Whether the roles and bindings among `manifests` allow an account this, as the RBAC authorizer of Kubernetes decides."""
    return any(_matches(rule, request) for rule in rules_of(manifests, account, request.namespace))


def rules_of(manifests: list[Manifest], account: Account, namespace: str) -> Iterator[Manifest]:
    """The rules that hold for an account in a namespace; in `ALL` those of cluster-wide bindings only."""
    roles = {
        (m["kind"], m["metadata"].get("namespace", ALL), m["metadata"]["name"]): m
        for m in manifests
        if m["kind"] in ("Role", "ClusterRole")
    }
    for binding in manifests:
        is_wide = binding["kind"] == "ClusterRoleBinding"
        if not is_wide and (binding["kind"] != "RoleBinding" or binding["metadata"]["namespace"] != namespace or not namespace):
            continue
        if any(_is_subject(subject, account) for subject in binding.get("subjects") or ()):
            kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
            place = binding["metadata"]["namespace"] if kind == "Role" else ALL
            yield from roles[kind, place, name].get("rules") or ()


def _is_subject(subject: Manifest, account: Account) -> bool:
    if subject["kind"] == "ServiceAccount":
        return (subject["namespace"], subject["name"]) == (account.namespace, account.name)
    return subject["name"] in ((account.user,) if subject["kind"] == "User" else account.groups)


def _matches(rule: Manifest, request: Request) -> bool:
    _, slash, subresource = request.resource.partition("/")
    resources = {"*", request.resource} | ({f"*/{subresource}"} if slash else set())
    names = rule.get("resourceNames")
    return (
        bool({"*", request.verb} & set(rule.get("verbs", ())))
        and bool({"*", request.group} & set(rule.get("apiGroups", ())))
        and bool(resources & set(rule.get("resources", ())))
        # A rule with names holds for requests that name an object: neither for a list nor for a creation.
        and (not names or request.name in names)
    )


def accounts(applications: str = RELEASE) -> dict[str, Account]:
    """The accounts of a release `tideline` by component; drivers and executors are in the namespace of the applications."""
    services = (
        "mirror",
        "planner",
        "launcher",
        "cleaner",
        "lock-service",
        *OTHERS,
        "kafka",
        "redis",
    )
    made = {name: Account(RELEASE, f"tideline-{name}") for name in services}
    made |= {name: Account(applications, f"tideline-{name}") for name in ("driver", "executor")}
    # The pod of `helm test`.
    return made | {"test": Account(RELEASE, "default")}


def needed(component: str, applications: str, tables: str | None, launchers: int = 1) -> set[Request]:
    """Everything that a component may do. `tables` is the namespace of the HudiTable resources, None without them."""
    made: set[Request] = set()
    if component == "launcher":
        verbs = ("create", "get", "list", "watch", "patch", "delete")
        made |= {Request(verb, "", "pods", applications) for verb in verbs} | {Request("get", "", "pods/log", applications)}
        if applications == RELEASE:
            # Owner references do not cross namespaces.
            made |= {Request("get", "apps", "deployments", RELEASE, f"tideline-launcher-{n}") for n in range(launchers)}
    if component == "driver":
        verbs = ("create", "get", "list", "watch", "delete", "deletecollection")
        made |= {Request(verb, "", "pods", applications) for verb in verbs}
        made |= {Request("deletecollection", "", resource, applications) for resource in ("configmaps", "services")}
        made |= {Request(verb, "", "persistentvolumeclaims", applications) for verb in ("list", "deletecollection")}
    if tables is not None and component in ("mirror", "planner", "launcher", "cleaner", "lock-service", "changes"):
        made |= {Request(verb, TABLES, "huditables", tables) for verb in ("get", "list", "watch")}
        if component in ("mirror", "launcher"):
            made.add(Request("patch", TABLES, "huditables/status", tables))
    return made


def _everywhere(verb: str, group: str, resource: str, name: str = "") -> list[Request]:
    return [Request(verb, group, resource, namespace, name) for namespace in (RELEASE, "jobs", ELSEWHERE, ALL)]


FORBIDDEN: dict[str, tuple[tuple[str, ...], list[Request]]] = {
    "read Secrets: credentials reach pods as references": (
        ("every",),
        [r for verb in ("get", "list", "watch") for r in _everywhere(verb, "", "secrets")]
        + _everywhere("get", "", "secrets", "tideline-http")
        + _everywhere("get", "", "secrets", "object-store"),
    ),
    "make a token for an account, or act as another one": (
        ("every",),
        _everywhere("create", "", "serviceaccounts/token")
        + _everywhere("impersonate", "", "serviceaccounts")
        + _everywhere("impersonate", "", "users")
        + _everywhere("impersonate", "", "groups"),
    ),
    "give rights to anybody": (
        ("every",),
        [
            request
            for resource in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
            for verb in ("create", "update", "patch", "bind", "escalate")
            for request in _everywhere(verb, "rbac.authorization.k8s.io", resource)
        ],
    ),
    "run a command in a pod that is there": (
        ("every",),
        [
            request
            for resource in ("pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers")
            for verb in ("create", "get", "patch")
            for request in _everywhere(verb, "", resource)
        ],
    ),
    "start pods: only the launcher and drivers do": (
        (
            "mirror",
            "planner",
            "cleaner",
            "lock-service",
            *OTHERS,
            "kafka",
            "redis",
            "executor",
            "test",
        ),
        _everywhere("create", "", "pods")
        + [r for resource in ("deployments", "statefulsets", "daemonsets") for r in _everywhere("create", "apps", resource)]
        + [r for resource in ("jobs", "cronjobs") for r in _everywhere("create", "batch", resource)],
    ),
    "start workloads that outlive a driver": (
        ("launcher", "driver"),
        [r for resource in ("deployments", "statefulsets", "daemonsets") for r in _everywhere("create", "apps", resource)]
        + [r for resource in ("jobs", "cronjobs") for r in _everywhere("create", "batch", resource)],
    ),
    "touch pods outside of the namespace of the applications": (
        ("launcher", "driver"),
        [Request(verb, "", "pods", namespace) for verb in VERBS for namespace in (ELSEWHERE, ALL)],
    ),
    "read or change the configuration of others": (
        (
            "launcher",
            "mirror",
            "planner",
            "cleaner",
            "lock-service",
            *OTHERS,
            "executor",
            "test",
        ),
        [r for verb in VERBS for r in _everywhere(verb, "", "configmaps")],
    ),
    "change the launcher itself, whose Deployment it reads": (
        ("launcher",),
        [Request(verb, "apps", "deployments", RELEASE, "tideline-launcher-0") for verb in ("update", "patch", "delete")]
        + [Request("get", "apps", "deployments", RELEASE, "tideline-mirror-0"), Request("list", "apps", "deployments", RELEASE)],
    ),
    "decide which tables get services": (
        ("every",),
        [
            request
            for verb in ("create", "update", "patch", "delete", "deletecollection")
            for request in _everywhere(verb, TABLES, "huditables")
        ],
    ),
    "write the status of tables: only mirror and launcher do": (
        ("planner", "cleaner", "lock-service", *OTHERS, "driver", "executor", "test"),
        [r for verb in ("patch", "update") for r in _everywhere(verb, TABLES, "huditables/status")],
    ),
    "read logs of pods: only the launcher does": (
        ("mirror", "planner", "cleaner", "lock-service", *OTHERS, "driver", "executor", "test"),
        _everywhere("get", "", "pods/log"),
    ),
    "see nodes, namespaces or volumes of the cluster": (
        ("every",),
        [r for resource in ("nodes", "namespaces", "persistentvolumes") for r in _everywhere("list", "", resource)],
    ),
}
"""By what a component must not do: components (`every`: all of them), and requests that would be it."""


def forbidden() -> Iterator[tuple[str, str, Request]]:
    """Each line of `FORBIDDEN` for each of its components: what, component, request."""
    for what, (components, requests) in FORBIDDEN.items():
        for component in accounts() if components == ("every",) else components:
            for request in requests:
                yield what, component, request
