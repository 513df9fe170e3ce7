"""What the accounts of a rendered release may do: what they need, and nothing else of all that an API server serves."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from tests.chart.access import (
    ALL,
    ELSEWHERE,
    RELEASE,
    SPECIAL_VERBS,
    TABLES,
    VERBS,
    Account,
    Request,
    accounts,
    allows,
    forbidden,
    needed,
)
from tests.chart.combinations import BASE, COMBINATIONS
from tests.chart.manifests import of_kind, pods
from tests.chart.tools import api_resources, rendered

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

BOTH_ELSEWHERE = {**COMBINATIONS["table-resources"], "applications": {"namespace": "jobs"}}
RELEASES: dict[str, tuple[dict[str, Any], str, str | None, int]] = {
    "applications beside the services": (BASE, RELEASE, None, 1),
    "applications in a namespace of their own, trial": (COMBINATIONS["trial"], "jobs", None, 1),
    "resources in another namespace": (COMBINATIONS["table-resources"], RELEASE, "jobs", 1),
    "applications and resources in another namespace": (BOTH_ELSEWHERE, "jobs", "jobs", 1),
    "shards": (COMBINATIONS["shards"], RELEASE, None, 2),
}
"""Values, namespace of the applications, that of the HudiTable resources, shards of the launcher."""
releases = pytest.mark.parametrize("release", RELEASES)


@functools.cache
def _rendered(release: str) -> tuple[dict[str, Any], ...]:
    return tuple(rendered(RELEASES[release][0]))


def manifests_of(release: str) -> list[dict[str, Any]]:
    return list(copy.deepcopy(_rendered(release)))


@functools.cache
def universe() -> tuple[tuple[str, str], ...]:
    """Every resource that an API server serves, and those of the chart."""
    return (*api_resources(), (TABLES, "huditables"), (TABLES, "huditables/status"))


def test_the_universe_has_what_matters():
    found = set(universe())
    assert len(found) > 100
    assert {
        ("", "secrets"),
        ("", "pods/exec"),
        ("", "serviceaccounts/token"),
        ("apps", "deployments/scale"),
        ("", "nodes/proxy"),
    } <= found
    assert ("rbac.authorization.k8s.io", "clusterrolebindings") in found


@releases
def test_each_account_may_do_what_it_needs_and_nothing_else(release):
    _, applications, tables, launchers = RELEASES[release]
    rules = of_kind(manifests_of(release), "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    for component, account in accounts(applications).items():
        wanted = needed(component, applications, tables, launchers)
        for request in wanted:
            assert allows(rules, account, request), (component, request)
        names = {"", "any", *(request.name for request in wanted)}
        # A right without a name holds for every name.
        unnamed = {request for request in wanted if not request.name}
        for namespace in (RELEASE, "jobs", ELSEWHERE, ALL):
            asked = (
                Request(verb, group, resource, namespace, name)
                for group, resource in universe()
                for verb in (*VERBS, *SPECIAL_VERBS)
                for name in names
            )
            more = [
                request
                for request in asked
                if allows(rules, account, request)
                and request not in wanted
                and Request(request.verb, request.group, request.resource, namespace) not in unnamed
            ]
            assert more == [], component


@releases
def test_nobody_may_do_what_is_forbidden(release):
    _, applications, _, _ = RELEASES[release]
    rules = of_kind(manifests_of(release), "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    known = accounts(applications)
    assert [(what, component, r) for what, component, r in forbidden() if allows(rules, known[component], r)] == []


@releases
def test_no_rule_has_a_wildcard_and_no_binding_reaches_beyond_one_account(release):
    manifests = manifests_of(release)
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
    made = {Account(a["metadata"]["namespace"], a["metadata"]["name"]) for a in of_kind(manifests, "ServiceAccount")}
    for role in of_kind(manifests, "Role"):
        for rule in role["rules"]:
            assert not any("*" in text for field in ("apiGroups", "resources", "verbs") for text in rule[field]), role
            assert "nonResourceURLs" not in rule
    bound: dict[str, Account] = {}
    for binding in of_kind(manifests, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["kind"] == "ServiceAccount"
        account = Account(subject["namespace"], subject["name"])
        assert account in made, "an account of this release"
        role = f"{binding['metadata']['namespace']}/{binding['roleRef']['name']}"
        assert bound.setdefault(role, account) == account, "each role has one holder"
    assert bound.keys() == {f"{r['metadata']['namespace']}/{r['metadata']['name']}" for r in of_kind(manifests, "Role")}


@releases
def test_every_pod_runs_under_an_account_that_was_judged(release):
    known = {account.name for account in accounts(RELEASES[release][1]).values()}
    for name, pod in pods(manifests_of(release)):
        assert pod["spec"].get("serviceAccountName", "default") in known, name


def _stretched(manifests: list[dict[str, Any]], role: str, rule: dict[str, list[str]]) -> list[dict[str, Any]]:
    (found,) = (m for m in of_kind(manifests, "Role") if m["metadata"]["name"] == role)
    found["rules"].append(rule)
    return manifests


@pytest.mark.parametrize(
    ("role", "rule", "what"),
    [
        ("launcher", {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}, "read Secrets"),
        ("launcher", {"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}, "read Secrets"),
        ("driver", {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}, "run a command in a pod"),
        ("mirror-tables", {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}, "start pods"),
        ("planner-tables", {"apiGroups": [TABLES], "resources": ["huditables/status"], "verbs": ["patch"]}, "write the status"),
        ("launcher", {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}, "change the launcher itself"),
        ("launcher", {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["*"]}, "give rights"),
    ],
)
def test_a_role_that_is_too_wide_is_found(role, rule, what):
    """The check above can fail: each of these was added to a rendered role."""
    release = "applications and resources in another namespace"
    if "deployments" in rule["resources"]:
        release = "resources in another namespace"
    manifests = _stretched(manifests_of(release), f"tideline-{role}", rule)
    known = accounts(RELEASES[release][1])
    found = {reason for reason, component, request in forbidden() if allows(manifests, known[component], request)}
    assert any(reason.startswith(what) for reason in found), found
