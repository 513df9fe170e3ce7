"""Notifications of an object store from a queue with the API of SQS."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from tideline_mirror.notification_port import NotificationsUnavailable
from tideline_table.extras import extra

with extra("aws"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

_MOST = 10
"""SQS gives at most this many messages at once."""
_WAIT_S = 20
"""The longest wait that SQS allows: an idle queue costs three requests a minute."""
_CONNECT_S, _READ_BEYOND_S = 5, 10


class SqsNotifications:
    """One reader of a queue. Credentials come from the places that AWS's clients know: environment, profile, role of the pod."""

    def __init__(self, endpoint: str, path: str, region: str | None) -> None:
        """`path`: the queue, as /account/name."""
        self._queue_url = endpoint + path
        limits = Config(
            connect_timeout=_CONNECT_S, read_timeout=_WAIT_S + _READ_BEYOND_S, retries={"total_max_attempts": 2, "mode": "standard"}
        )
        try:
            self._client = boto3.client("sqs", region_name=region, endpoint_url=endpoint, config=limits)
        except (BotoCoreError, ValueError) as failure:
            raise _unavailable(failure) from failure
        self._taken: list[str] = []

    def receive(self, timeout_s: float) -> list[bytes | str]:
        try:
            # Deleted one call after they were received: a mirror that dies in between gets them again.
            if self._taken:
                entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(self._taken)]
                self._taken = []
                self._client.delete_message_batch(QueueUrl=self._queue_url, Entries=entries)
            found = self._client.receive_message(
                QueueUrl=self._queue_url, MaxNumberOfMessages=_MOST, WaitTimeSeconds=min(_WAIT_S, int(timeout_s))
            ).get("Messages", [])
        except (BotoCoreError, ClientError) as failure:
            raise _unavailable(failure) from failure
        self._taken = [message["ReceiptHandle"] for message in found]
        return [message["Body"] for message in found]

    def close(self) -> None:
        self._client.close()


def _unavailable(failure: Exception) -> NotificationsUnavailable:
    return NotificationsUnavailable(
        f"the queue of notifications: {failure}", expected="a queue that this process may read", remedy="retry"
    )
