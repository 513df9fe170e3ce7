"""HudiTable resources on a real API server, and services that read them with tables in a folder."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import yaml
from tests.chart.tools import CHART
from tests.real.kubernetes_api import KubernetesApi, running_kubernetes_api
from tests.unit.services.conftest import fleet

__all__ = ["fleet"]

DEFINITION = yaml.safe_load((CHART / "crds/huditables.yaml").read_text())
API_VERSION = "tideline.dev/v1alpha1"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_NUMBERS = itertools.count(1)


def wait_until(condition: Callable[[], Any], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def kubernetes_api() -> Iterator[KubernetesApi]:
    """An API server that knows the custom resource definition of the chart."""
    with running_kubernetes_api({"weak-token": "weak"}) as server, server.client() as client:
        answer = client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=DEFINITION)
        assert answer.status_code == 201, answer.text
        assert "warning" not in answer.headers, answer.headers["warning"]
        wait_until(lambda: client.get(f"/apis/{API_VERSION}/huditables").status_code == 200)
        yield server


class Resources:
    """The HudiTable resources of one namespace, as a user sees them."""

    def __init__(self, client: httpx.Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.path = f"/apis/{API_VERSION}/namespaces/{namespace}/huditables"

    def create(self, name: str, base_path: str, **spec: Any) -> httpx.Response:
        made = {"apiVersion": API_VERSION, "kind": "HudiTable", "metadata": {"name": name}, "spec": {"basePath": base_path, **spec}}
        return self.client.post(self.path, json=made, params={"fieldValidation": "Strict"})

    def change(self, name: str, **spec: Any) -> httpx.Response:
        return self.client.patch(f"{self.path}/{name}", json={"spec": spec}, headers={"Content-Type": MERGE})

    def delete(self, name: str) -> None:
        self.client.delete(f"{self.path}/{name}").raise_for_status()

    def get(self, name: str) -> dict[str, Any]:
        return self.client.get(f"{self.path}/{name}").raise_for_status().json()

    def status(self, name: str) -> dict[str, Any]:
        return self.get(name).get("status") or {}

    def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        return {c["type"]: (c["status"], c["reason"]) for c in self.status(name).get("conditions", ())}


@pytest.fixture
def resources(kubernetes_api) -> Iterator[Resources]:
    name = f"tables-{os.getpid()}-{next(_NUMBERS)}"
    with kubernetes_api.client() as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
        yield Resources(client, name)


@pytest.fixture
def settings(kubernetes_api, resources) -> dict[str, Any]:
    """Settings of a service without patterns that reads the resources."""
    own = {
        "enabled": True,
        "namespace": resources.namespace,
        "kubeconfig": kubernetes_api.kubeconfig(),
        "request_timeout_s": 5,
        "watch_timeout_s": 5,
        "status_interval_s": 0.1,
    }
    return {"tables": (), "table_resources": own}
