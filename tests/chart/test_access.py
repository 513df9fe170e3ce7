"""The evaluation of roles and bindings, on roles that are wrong in every way that matters."""

from __future__ import annotations

import copy

import pytest
from tests.chart.access import ALL, ELSEWHERE, RELEASE, Account, Request, accounts, allows, forbidden, needed

WHO = Account(RELEASE, "tideline-mirror")
ROLE = {
    "kind": "Role",
    "metadata": {"name": "r", "namespace": RELEASE},
    "rules": [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "create"]}],
}
BINDING = {
    "kind": "RoleBinding",
    "metadata": {"name": "b", "namespace": RELEASE},
    "roleRef": {"kind": "Role", "name": "r"},
    "subjects": [{"kind": "ServiceAccount", "name": WHO.name, "namespace": WHO.namespace}],
}


def changed(rule=None, subject=None, kind=None):
    """The role and its binding with another rule, another subject, or cluster-wide."""
    role, binding = copy.deepcopy(ROLE), copy.deepcopy(BINDING)
    role["rules"][0] |= rule or {}
    if subject:
        binding["subjects"] = [subject]
    if kind in ("ClusterRole", "ClusterRoleBinding"):
        role["kind"] = binding["roleRef"]["kind"] = "ClusterRole"
        del role["metadata"]["namespace"]
    if kind == "ClusterRoleBinding":
        binding["kind"] = kind
        del binding["metadata"]["namespace"]
    return [role, binding]


def may(manifests, verb="get", group="", resource="pods", namespace=RELEASE, name="", who=WHO):
    return allows(manifests, who, Request(verb, group, resource, namespace, name))


def test_a_rule_allows_what_it_names_in_its_namespace():
    manifests = [ROLE, BINDING]
    assert may(manifests)
    assert may(manifests, resource="pods/log")
    assert may(manifests, name="any")
    for other in (
        {"verb": "delete"},
        {"group": "apps"},
        {"resource": "secrets"},
        {"resource": "pods/exec"},
        {"namespace": ELSEWHERE},
        {"namespace": ALL},
        {"who": Account(RELEASE, "tideline-planner")},
        {"who": Account(ELSEWHERE, WHO.name)},
    ):
        assert not may(manifests, **other), other
    assert not may([ROLE])
    assert not may([BINDING | {"subjects": []}, ROLE])


@pytest.mark.parametrize(
    ("rule", "request_"),
    [
        ({"verbs": ["*"]}, {"verb": "escalate"}),
        ({"apiGroups": ["*"]}, {"group": "apps"}),
        ({"resources": ["*"]}, {"resource": "secrets"}),
        ({"resources": ["*"]}, {"resource": "pods/exec"}),
        ({"resources": ["*/exec"]}, {"resource": "pods/exec"}),
    ],
)
def test_wildcards_allow_everything(rule, request_):
    assert may(changed(rule), **request_)
    assert not may(changed(), **request_)


def test_names_hold_for_requests_with_a_name_only():
    manifests = changed({"resourceNames": ["mine"]})
    assert may(manifests, name="mine")
    assert not may(manifests, name="other")
    assert not may(manifests, verb="create")


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "Group", "name": "system:serviceaccounts"},
        {"kind": "Group", "name": f"system:serviceaccounts:{RELEASE}"},
        {"kind": "Group", "name": "system:authenticated"},
        {"kind": "User", "name": f"system:serviceaccount:{RELEASE}:tideline-mirror"},
    ],
)
def test_groups_and_users_are_subjects(subject):
    assert may(changed(subject=subject))
    assert not may(changed(subject={**subject, "name": "system:masters"}))


def test_a_cluster_role_holds_where_it_is_bound():
    assert may(changed(kind="ClusterRole"))
    assert not may(changed(kind="ClusterRole"), namespace=ELSEWHERE)
    for namespace in (RELEASE, ELSEWHERE, ALL):
        assert may(changed(kind="ClusterRoleBinding"), namespace=namespace)


def test_a_binding_to_a_role_that_is_not_there_is_an_error():
    with pytest.raises(KeyError):
        may([BINDING])


def test_what_is_forbidden_is_not_needed_and_names_accounts():
    known = accounts()
    for what, component, request in forbidden():
        assert component in known, what
        for applications in (RELEASE, "jobs"):
            assert request not in needed(component, applications, "jobs"), f"{component} must not {what}"
