"""A record of the event log in its wire form: topic, key, value, headers."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RECORD_BYTES = 1_000_000
"""Largest value of a record; Kafka's default limit is 1 MiB including headers."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. A None `value` deletes the key from a compacted topic.

    `partition` and `offset` are the position of a record that was read, else -1. Offsets grow within a partition, not always by 1.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    offset: int = -1

    def header(self, name: str) -> str | None:
        """Return the text of the last header of that name; None if absent or not UTF-8.

        A consumer can skip a record by its headers.
        """
        for header, value in reversed(self.headers):
            if header == name and value is not None:
                try:
                    return value.decode()
                except UnicodeDecodeError:
                    return None
        return None
