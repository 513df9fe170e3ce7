"""The port of notifications of an object store."""

from __future__ import annotations

from typing import Protocol

from tideline_table.errors import StorageError

SETTING = "mirror.notifications"


class NotificationsUnavailable(StorageError):
    """The queue does not answer, or does not exist. The mirror asks storage meanwhile."""


class NotificationSource(Protocol):
    """Messages of an object store. Used by one thread."""

    def receive(self, timeout_s: float) -> list[bytes | str]:
        """Wait for messages at most this long, and return them; the messages of the call before count as dealt with.

        Messages may come twice, late, in any order or never. Raises `NotificationsUnavailable`.
        """
        ...

    def close(self) -> None:
        """End the connection."""
        ...
