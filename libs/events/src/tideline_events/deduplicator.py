"""What a consumer knows of each table: the last sequence, which tells duplicates and gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class Deduplicator:
    """The last sequence seen of each table, which identifies duplicates and gaps.

    Each transition of a table has its own sequence.
    """

    def __init__(self, seen: Mapping[str, int] | None = None) -> None:
        self._seen = dict(seen or {})

    @property
    def seen(self) -> Mapping[str, int]:
        """Last sequence by table uid."""
        return dict(self._seen)

    def is_duplicate(self, table_uid: str, sequence: int) -> bool:
        """Return whether the last sequence seen of the table is `sequence` or a greater one."""
        return sequence <= self._seen.get(table_uid, -1)

    def known(self, table_uid: str) -> int | None:
        """Return the last sequence seen of the table, None if none was."""
        return self._seen.get(table_uid)

    def last(self, table_uid: str) -> int:
        """Return the last sequence seen of the table, 0 if none was."""
        return self._seen.get(table_uid, 0)

    def mark(self, table_uid: str, sequence: int) -> None:
        """Record that all transitions of the table up to `sequence` were seen."""
        self._seen[table_uid] = max(sequence, self._seen.get(table_uid, -1))


@dataclass(frozen=True, slots=True)
class ConsumerCounts:
    """Numbers of events since a consumer was created. `missing`: transitions of gaps that the table log did not hold either."""

    delivered: int = 0
    duplicates: int = 0
    backfilled: int = 0
    missing: int = 0
    unknown: int = 0
    dead: int = 0
