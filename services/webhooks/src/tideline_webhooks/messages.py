"""The body and the headers of a delivery, in the format of its subscription."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from tideline_events import Transition
from tideline_events.envelope import STRUCTURED, structured
from tideline_events.transitions import TableLogs
from tideline_runtime.loop import may_be_cured
from tideline_table.errors import TidelineError
from tideline_webhooks.signing import signature_headers
from tideline_webhooks.subscriptions import Subscription, TableEvent

HUDI_KEY_HEADER = "HUDI-CALLBACK-KEY"
HUDI_DEFAULT_KEY = "hudi_write_commit_http_callback"
"""What Apache Hudi sends if no key is set."""
_CALLED_FOR = frozenset({"commit", "deltacommit", "replacecommit"})
_NOT_CALLED_FOR = frozenset({"compact", "cluster", "log_compact"})
_OPTION = {"present": True, "empty": False}
"""What Apache Hudi's JSON says of a value that it has: not the value."""
_UNKNOWN_STATS: dict[str, Any] = {
    "numUpdates": 0,
    "totalLogReadTimeMs": 0,
    "totalValidLogBlocks": 0,
    "totalLogBlocksSize": 0,
    "totalLogBlocksScanTimeMs": 0,
    "prevBaseFile": None,
    "runtimeStats": {"totalScanTime": 0, "totalUpsertTime": 0, "totalCreateTime": 0},
    "columnStats": {"present": False, "empty": True},
}
"""What the callback adds to a write stat of the timeline, or says in another form. Table logs know none of it."""
_NOT_OF_CALLBACK = ("recordsStats", "tidelineRecord")


@dataclass(frozen=True, slots=True)
class Message:
    """A request as it is sent, without the signature, which has the time of the attempt. Attempts have the same id and bytes."""

    id: str
    content_type: str
    body: bytes

    def headers(self, subscription: Subscription, seconds: int) -> dict[str, str]:
        """Return the headers of an attempt at the time `seconds`."""
        found = {"content-type": self.content_type, "user-agent": "tideline-webhooks"}
        if subscription.format == "hudi":
            return {**found, HUDI_KEY_HEADER: subscription.secret or HUDI_DEFAULT_KEY, "webhook-id": self.id}
        if not subscription.secret:
            return {**found, "webhook-id": self.id, "webhook-timestamp": str(seconds)}
        return found | signature_headers(subscription.secret, self.id, seconds, self.body)


class Messages:
    """Makes messages of events. Thread-safe."""

    def __init__(self, subscription: Subscription, logs: TableLogs) -> None:
        self._subscription = subscription
        self._logs = logs
        self._turn = threading.Lock()

    def wants(self, event: TableEvent) -> bool:
        """Return whether the subscription asks for this event of a table that is among its tables."""
        is_one = self._subscription.wants(event)
        return is_one and (self._subscription.format != "hudi" or (isinstance(event, Transition) and _is_called_for(event)))

    def of(self, event: TableEvent) -> Message:
        """Return the message of an event. Raises `InvalidEvent`, and errors of the table whose commit is read."""
        identity, body = structured(event)
        if self._subscription.format == "cloudevents":
            return Message(identity, STRUCTURED, body)
        assert isinstance(event, Transition), "checked with the file"
        with self._turn:
            stats = _write_stats(event, self._logs.write_stats)
        return Message(identity, "application/json; charset=UTF-8", json.dumps(hudi_message(event, stats)).encode())


def _is_called_for(event: Transition) -> bool:
    """Return whether Apache Hudi would call back: it does for completed writes, not for table services."""
    return event.to_state == "completed" and event.action in _CALLED_FOR and event.operation not in _NOT_CALLED_FOR


def _write_stats(event: Transition, read: Callable[[Transition], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    try:
        return read(event)
    except TidelineError as error:
        if may_be_cured(error):
            raise
        return []  # The table is gone.


def hudi_message(event: Transition, stats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON object that Apache Hudi posts for a commit with these write stats."""
    base_path = event.table.base_path
    return {
        "commitTime": event.instant,
        "tableName": event.table.name,
        "basePath": unquote(urlsplit(base_path).path) if base_path.startswith("file:") else base_path,
        "hoodieWriteStat": [{n: v for n, v in stat.items() if n not in _NOT_OF_CALLBACK} | _UNKNOWN_STATS for stat in stats],
        "commitActionType": _OPTION,
        "extraMetadata": _OPTION,
    }
