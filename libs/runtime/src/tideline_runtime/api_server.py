"""Requests to the API server of Kubernetes, with deadlines.

Objects are the JSON of its replies; errors say what the caller can do.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import urllib3.exceptions
from kubernetes.client import ApiClient, ApiException
from kubernetes.config import ConfigException

from tideline_runtime.errors import DependencyDown, InvalidSetting
from tideline_table.errors import TidelineError

NOT_FOUND, CONFLICT = 404, 409
JSON = "application/json"
Item = Mapping[str, Any]
"""An object as the API server describes it, in JSON."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_PAGE = 500
_LOG_LINES = 10_000
_CONNECT_S = 5.0
_TOO_MANY_REQUESTS, _REQUEST_TIMEOUT, _GONE = 429, 408, 410


class ApiServerDown(DependencyDown):
    """The API server did not answer, failed, or asked to wait. The request may have taken effect."""


class ApiServerRefused(TidelineError):
    """The API server refused a request with the HTTP status `status`. Nothing was changed."""

    def __init__(self, found: str, *, status: int, expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.status = status


class WatchExpired(ApiServerDown):
    """The API server no longer knows the resource version of a watch. The caller must list again, then watch from there."""


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects at one resource version, from which a watch can continue."""

    items: tuple[Item, ...]
    resource_version: str


def api_client(kubeconfig: Path | None, section: str) -> ApiClient:
    """Return a client with the credentials of `kubeconfig`, or of the pod's service account.

    Raises `InvalidSetting`, which names the setting `kubeconfig` in `section`, if there are no credentials.
    """
    configuration = kubernetes.client.Configuration()
    # Callers repeat requests themselves, because a request that failed may have taken effect.
    configuration.retries = False
    try:
        if kubeconfig is None:
            kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=configuration
            )
    except (ConfigException, OSError) as error:
        raise InvalidSetting(
            f"no access to Kubernetes: {error}",
            name=f"{section}.kubeconfig",
            origin="",
            expected="a kubeconfig file, or a pod with the token of its service account",
        ) from error
    return ApiClient(configuration)


def own_namespace(section: str) -> str:
    """Return the namespace of the pod that this process runs in. Raises `InvalidSetting` outside of a pod."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        raise InvalidSetting(
            f"setting '{section}.namespace' is empty outside of a pod",
            name=f"{section}.namespace",
            origin="default",
            expected="a namespace",
        ) from None


class ApiServer:
    """Requests by path. Thread-safe.

    Every call raises `ApiServerDown` if the API server does not answer, fails (status 5xx), or asks to wait, `WatchExpired` for
    status 410, and `ApiServerRefused` for any other answer than success. `timeout_s` bounds each request.
    """

    def __init__(self, client: ApiClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, content_type: str = JSON
    ) -> dict[str, Any]:
        """Send a request with the JSON `body`; return the object in the answer."""
        response = self._send(method, path, query=query, body=body, content_type=content_type)
        try:
            found = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError) as error:
            raise ApiServerDown(f"{method} {path}: {_text(error)}") from error
        finally:
            response.release_conn()
        assert isinstance(found, dict)
        return found

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Listed:
        """Return all objects at `path` as they are now, read in pages."""
        items: list[Item] = []
        asked = {**(query or {}), "limit": str(_PAGE)}
        while True:
            page = self.request("GET", path, query=asked)
            items += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listed(tuple(items), str(metadata.get("resourceVersion") or ""))
            asked["continue"] = metadata["continue"]

    def watch(
        self, path: str, resource_version: str, duration_s: int, query: Mapping[str, str] | None = None
    ) -> Iterator[tuple[str, Item]]:
        """Yield (ADDED, MODIFIED, DELETED or BOOKMARK, object) for each change after `resource_version`; end after `duration_s`.

        Raises `WatchExpired` if that version is too old.
        """
        asked = {
            **(query or {}),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(duration_s),
        }
        what = f"watch of {path.rpartition('/')[2]}"
        with self.stream(path, what, asked, read_s=duration_s + self._timeout_s) as chunks:
            for line in _lines(chunks):
                event = json.loads(line)
                kind, found = event["type"], event["object"]
                if kind == "ERROR":
                    text = f"{what}: {found.get('message')}"
                    raise WatchExpired(text) if found.get("code") == _GONE else ApiServerDown(text)
                yield kind, found

    @contextmanager
    def stream(
        self, path: str, what: str, query: Mapping[str, str], *, chunk_bytes: int | None = None, read_s: float | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Provide the answer to a GET in chunks. An error while the caller reads it becomes `ApiServerDown`, which names `what`."""
        response = self._send("GET", path, query=query, read_s=read_s)
        try:
            yield response.stream(chunk_bytes)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError) as error:
            raise ApiServerDown(f"{what}: {_text(error)}") from error
        finally:
            response.close()
            response.release_conn()

    def log_tail(self, namespace: str, pod: str, max_bytes: int) -> bytes:
        """Return the last `max_bytes` bytes of a pod's log, of at most its last `_LOG_LINES` lines."""
        chunks: deque[bytes] = deque()
        held = 0
        path, query = f"/api/v1/namespaces/{namespace}/pods/{pod}/log", {"tailLines": str(_LOG_LINES)}
        with self.stream(path, f"log of pod {pod}", query, chunk_bytes=64 * 1024) as found:
            for chunk in found:
                chunks.append(chunk)
                held += len(chunk)
                while held - len(chunks[0]) >= max_bytes:
                    held -= len(chunks.popleft())
        return b"".join(chunks)[-max_bytes:]

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        read_s: float | None = None,
    ) -> Any:
        """Send a request; return the response whose body is not read yet."""
        headers = {"Accept": f"{JSON}, */*", "Content-Type": content_type}
        arguments = self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        deadlines = (_CONNECT_S, read_s or self._timeout_s)
        try:
            response = self._client.call_api(*arguments, _request_timeout=deadlines).response
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerDown(
                f"{method} {path}: {_text(error)}", remedy="check that the API server is reachable, then retry"
            ) from error
        if not 200 <= response.status <= 299:
            raise _refusal(f"{method} {path}", response)
        return response


def _refusal(what: str, response: Any) -> TidelineError:
    status = int(response.status)
    try:
        content = response.read(64 * 1024)
    except (urllib3.exceptions.HTTPError, OSError):
        content = b""
    finally:
        response.release_conn()
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = content.decode(errors="replace")[:500] or "no message"
    found = f"{what}: the API server answered {status}: {message}"
    if status >= 500 or status in (_TOO_MANY_REQUESTS, _REQUEST_TIMEOUT):
        return ApiServerDown(found)
    return WatchExpired(found) if status == _GONE else ApiServerRefused(found, status=status)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
