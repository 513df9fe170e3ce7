"""A record of the event log as it lies on the wire: topic, key, value, headers."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RECORD_BYTES = 1_000_000
"""Largest value of a record; Kafka's default limit is 1 MiB including headers."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. A None `value` deletes the key from a compacted topic.

    `partition` and `offset` say where it lies once it was read; -1 before that. Offsets grow within a partition, not always by one.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    offset: int = -1

    def header(self, name: str) -> str | None:
        """Text of the last header of that name; None if it is absent or no UTF-8. Lets a consumer skip records unread."""
        for header, value in reversed(self.headers):
            if header == name and value is not None:
                try:
                    return value.decode()
                except UnicodeDecodeError:
                    return None
        return None
