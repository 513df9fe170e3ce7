"""What a kubelet and a scheduler do to pods, done by a test through the API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
ACCOUNTS = ("default", "tideline-spark-driver", "tideline-spark-executor")
_MERGE = {"Content-Type": "application/merge-patch+json"}


class Namespace:
    """A namespace that enforces the restricted Pod Security standard."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self.name = name
        self._client = client
        self._pods = f"/api/v1/namespaces/{name}/pods"
        self.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
        for account in ACCOUNTS:
            self.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": account}})

    def post(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        answer = self._client.post(path, json=body, params=query)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def create(self, pod: dict[str, Any], **query: str) -> dict[str, Any]:
        return self.post(self._pods, pod, **query)

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self._client.get(self._pods).json()["items"]}

    def bind(self, name: str) -> None:
        """The scheduler gives the pod a node: from now on only a kubelet can end it."""
        self.post(f"{self._pods}/{name}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}})

    def status(self, name: str, status: dict[str, Any]) -> None:
        answer = self._client.patch(f"{self._pods}/{name}/status", json={"status": status}, headers=_MERGE)
        assert answer.status_code < 300, answer.text

    def run(self, name: str) -> None:
        self.bind(name)
        state = {"running": {"startedAt": _now()}}
        self.status(name, {"phase": "Running", "startTime": _now(), "containerStatuses": [_container(state)]})

    def wait(self, name: str, reason: str) -> None:
        """The container does not start."""
        self.status(
            name, {"phase": "Pending", "containerStatuses": [_container({"waiting": {"reason": reason, "message": "why"}})]}
        )

    def finish(self, name: str, exit_code: int, *, reason: str = "", message: str = "", **status: Any) -> None:
        why = reason or ("Completed" if exit_code == 0 else "Error")
        state = {
            "terminated": {"exitCode": exit_code, "reason": why, "message": message, "startedAt": _now(), "finishedAt": _now()}
        }
        phase = "Failed" if exit_code else "Succeeded"
        self.status(name, {"phase": phase, "containerStatuses": [_container(state)], **status})

    def delete(self, name: str) -> None:
        """kubectl delete --force."""
        answer = self._client.delete(f"{self._pods}/{name}", params={"gracePeriodSeconds": "0"})
        assert answer.status_code < 300, answer.text


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "driver", "image": "spark:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
