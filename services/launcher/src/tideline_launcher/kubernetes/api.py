"""Requests for pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tideline_runtime.api_server import CONFLICT, NOT_FOUND, ApiServer, ApiServerRefused, Item, Listed

Pod = Item
"""A pod as the API server describes it, in JSON."""

_MERGE_PATCH = "application/merge-patch+json"


class PodApi:
    """Requests for the pods of one namespace. Thread-safe. Raises as `ApiServer` does."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server, self._namespace = server, namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._workloads = f"/apis/apps/v1/namespaces/{namespace}"

    def create(self, pod: Pod) -> Pod | None:
        """Create a pod and return it; return None if a pod of this name exists."""
        try:
            return self._server.request("POST", self._pods, body=pod)
        except ApiServerRefused as error:
            if error.status == CONFLICT:
                return None
            raise

    def get(self, name: str) -> Pod | None:
        """Return a pod as it is now, None if there is none of this name."""
        try:
            return self._server.request("GET", f"{self._pods}/{name}")
        except ApiServerRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def list(self, selector: str) -> Listed:
        """Return the pods whose labels match, as they are now."""
        return self._server.list(self._pods, {"labelSelector": selector})

    def watch(self, selector: str, resource_version: str, duration_s: int) -> Iterator[tuple[str, Pod]]:
        """See `ApiServer.watch`."""
        return self._server.watch(self._pods, resource_version, duration_s, {"labelSelector": selector})

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> Pod | None:
        """Add annotations to a pod and return it; return None if the pod is gone or another pod has its name."""
        metadata = {"uid": pod["metadata"]["uid"], "annotations": dict(annotations)}
        try:
            return self._server.request(
                "PATCH", f"{self._pods}/{_name(pod)}", body={"metadata": metadata}, content_type=_MERGE_PATCH
            )
        except ApiServerRefused as error:
            if error.status in (NOT_FOUND, CONFLICT):
                return None
            raise

    def delete(self, pod: Pod, *, unchanged: bool = False) -> None:
        """Delete the pod with the uid of `pod`, with its grace period; do nothing if it is gone.

        With `unchanged`, also do nothing if the pod has changed since `pod` was read.
        """
        metadata = pod["metadata"]
        preconditions = {"uid": metadata["uid"]}
        if unchanged:
            preconditions["resourceVersion"] = metadata["resourceVersion"]
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": preconditions}
        try:
            self._server.request("DELETE", f"{self._pods}/{_name(pod)}", body=options)
        except ApiServerRefused as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def log_tail(self, name: str, max_bytes: int) -> bytes:
        """See `ApiServer.log_tail`."""
        return self._server.log_tail(self._namespace, name, max_bytes)

    def workload_uid(self, kind: str, name: str) -> str:
        """Return the uid of a Deployment or StatefulSet."""
        found = self._server.request("GET", f"{self._workloads}/{kind.lower()}s/{name}")
        return str(found["metadata"]["uid"])


def _name(pod: Pod) -> str:
    return str(pod["metadata"]["name"])
