"""Requests for HudiTable resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tideline_runtime.api_server import NOT_FOUND, ApiServer, ApiServerRefused, Item, Listed
from tideline_runtime.kubernetes.resource import GROUP, KIND, PLURAL, VERSION

_APPLY = "application/apply-patch+yaml"
"""Server-side apply requires YAML; the JSON of a request is YAML, too."""


class HudiTableApi:
    """Requests for the HudiTable resources of one namespace. Thread-safe. Raises as `ApiServer` does."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server = server
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"

    def list(self) -> Listed:
        """Return the resources as they are now."""
        return self._server.list(self._path)

    def watch(self, resource_version: str, duration_s: int) -> Iterator[tuple[str, Item]]:
        """See `ApiServer.watch`."""
        return self._server.watch(self._path, resource_version, duration_s)

    def apply_status(self, name: str, status: Mapping[str, Any], manager: str) -> Item | None:
        """Replace the status fields of `manager` by `status`, by server-side apply; return the resource, None if there is none.

        A new resource of the same name gets the status, too, because the API server ignores the uid in a request for a status.
        """
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "status": dict(status)}
        # Forced, because a user may have written into these fields by hand.
        query = {"fieldManager": manager, "force": "true"}
        try:
            return self._server.request("PATCH", f"{self._path}/{name}/status", query=query, body=body, content_type=_APPLY)
        except ApiServerRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise
