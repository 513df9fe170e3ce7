"""Questions to a list of manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (m for m in of_kind(manifests, kind) if m["metadata"]["name"] == name)
    return found


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Name and pod (metadata and spec) of every Deployment and pod."""
    for manifest in of_kind(manifests, "Deployment", "Pod"):
        yield manifest["metadata"]["name"], manifest["spec"]["template"] if manifest["kind"] == "Deployment" else manifest


def services(manifests: list[Manifest]) -> list[Manifest]:
    """The Deployments that run a service of Tideline."""
    return [m for m in of_kind(manifests, "Deployment") if module_of(m).startswith("tideline_")]


def module_of(deployment: Manifest) -> str:
    """The Python module that the first container of a Deployment runs; empty for other programs."""
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return command[2] if command[:2] == ["python", "-m"] else ""


def component_of(manifest: Manifest) -> str:
    return manifest["metadata"]["labels"]["app.kubernetes.io/component"]


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether a label selector with matchLabels and matchExpressions of operator In selects these labels."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ()))


def environment(manifests: list[Manifest], deployment: Manifest) -> dict[str, str | None]:
    """The variables of the first container as Kubernetes makes them, without those of Secrets that become variables by their keys.

    A value from a Secret's key is None. $(NAME) in a value is kept.
    """
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    found: dict[str, str | None] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            found |= named(manifests, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", ()):
        found[variable["name"]] = variable.get("value")
    return found
