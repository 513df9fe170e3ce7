"""Notifications of an object store from a subscription of Google's Pub/Sub, by its REST API."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import json
import os
import time
from typing import Any

import urllib3

from tideline_mirror.notification_port import NotificationsUnavailable

_MOST = 1000
"""Pub/Sub gives at most this many messages at once."""
_ANSWER_S = 10.0
_PAUSE_S = 0.5
"""Between two pulls of which the first found nothing. Pub/Sub charges 1 kB for each: 5 GB a month."""
_EARLY_S = 60.0
"""A token is replaced so long before it expires."""


class PubsubNotifications:
    """One reader of a subscription. By HTTPS with the token of the node's or pod's service account, from the metadata server."""

    def __init__(self, endpoint: str, project: str, subscription: str) -> None:
        self._url = f"{endpoint}/v1/projects/{project}/subscriptions/{subscription}"
        self._http = urllib3.PoolManager(retries=False)
        self._taken: list[str] = []
        self._token, self._token_until_s = "", 0.0

    def receive(self, timeout_s: float) -> list[bytes | str]:
        # Acknowledged one call after they were received: a mirror that dies in between gets them again.
        if self._taken:
            self._ask("acknowledge", {"ackIds": self._taken})
            self._taken = []
        # A pull that waits, and whose caller has gone, still takes messages: they would come again after their deadline only.
        found = self._ask("pull", {"maxMessages": _MOST, "returnImmediately": True})
        received = found.get("receivedMessages", [])
        self._taken = [one["ackId"] for one in received]
        if not received:
            time.sleep(min(_PAUSE_S, timeout_s))
        return [json.dumps(one["message"]) for one in received]

    def close(self) -> None:
        self._http.clear()

    def _ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._fresh_token()}"} if self._url.startswith("https:") else {}
        try:
            answer = self._http.request("POST", f"{self._url}:{what}", json=body, headers=headers, timeout=_ANSWER_S)
        except urllib3.exceptions.HTTPError as failure:
            raise _unavailable(str(failure)) from failure
        return _document(answer, what)

    def _fresh_token(self) -> str:
        if time.monotonic() >= self._token_until_s:
            host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
            url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
            try:
                answer = self._http.request("GET", url, headers={"Metadata-Flavor": "Google"}, timeout=_ANSWER_S)
            except urllib3.exceptions.HTTPError as failure:
                raise _unavailable(f"no token from the metadata server: {failure}") from failure
            found = _document(answer, "the metadata server")
            self._token, self._token_until_s = found["access_token"], time.monotonic() + found["expires_in"] - _EARLY_S
        return self._token


def _document(answer: urllib3.BaseHTTPResponse, what: str) -> dict[str, Any]:
    if answer.status != 200:
        raise _unavailable(f"{what} answered {answer.status}: {answer.data[:200].decode(errors='replace')}")
    found: dict[str, Any] = answer.json()
    return found


def _unavailable(why: str) -> NotificationsUnavailable:
    return NotificationsUnavailable(
        f"the subscription of notifications: {why}", expected="a subscription that this process may pull from", remedy="retry"
    )
