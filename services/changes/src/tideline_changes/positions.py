"""How far the row changes of each table are published, as records of a compacted topic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tideline_events import CHANGES_POSITIONS, Record

SNAPSHOT = "snapshot"
WRITE = "write"


@dataclass(frozen=True, slots=True)
class Unit:
    """A snapshot, or the changes of one write, that are published in part."""

    kind: str
    sequence: int
    instant: str
    part: int = 0
    """How many parts are published as a whole."""
    rows: int = 0
    """How many rows of the next part are published."""
    row: int = 0
    """How many rows of all parts are published: `source.row` of the next one."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a table's changes. `fleet` and `table_uid` are the key of its record."""

    fleet: str
    table_uid: str
    base_path: str
    topic: str
    key_columns: tuple[str, ...]
    topic_id: str = ""
    """See `EventLog.topic_ids`: of a topic with another id nothing is published."""
    snapshot: int = 0
    """The setting `snapshot` of the last snapshot."""
    sequence: int = -1
    """The changes up to this sequence of the table's log are published; -1: none are, the topic is only claimed."""
    unit: Unit | None = None
    """What is published in part."""
    published_ms: int = 0
    """All changes that the table's log had at this time are published: no older ones come. 0 while nothing is complete."""
    format: str = "json"
    """The setting `format` of the last snapshot: keys of two formats would not be equal."""

    @property
    def is_begun(self) -> bool:
        """Whether anything was published, so that the topic is known to be this table's."""
        return self.sequence >= 0 or self.unit is not None

    @property
    def reached(self) -> int:
        """The last sequence of which anything is published."""
        return self.sequence if self.unit is None else self.unit.sequence

    def record(self) -> Record:
        """Return the record of this position."""
        fields = asdict(self)
        key = self.key(fields.pop("fleet"), fields.pop("table_uid"))
        return Record(CHANGES_POSITIONS.name, key, json.dumps(fields, separators=(",", ":")).encode())

    def removal(self) -> Record:
        """Return the record that deletes this position."""
        return Record(CHANGES_POSITIONS.name, self.key(self.fleet, self.table_uid), None)

    @staticmethod
    def key(fleet: str, table_uid: str) -> bytes:
        """Return the key of the record of a table's position."""
        return json.dumps([fleet, table_uid], separators=(",", ":")).encode()


def positions_of(records: Iterable[Record]) -> dict[tuple[str, str], Position]:
    """Return the positions in records by fleet and table uid. Records that hold no position are skipped: a snapshot follows."""
    found = {}
    for record in records:
        try:
            fleet, table_uid = json.loads(record.key or b"")
            fields: dict[str, Any] = json.loads(record.value or b"")
            unit, columns = fields.pop("unit"), tuple(fields.pop("key_columns"))
            position = Position(fleet, table_uid, key_columns=columns, unit=Unit(**unit) if unit else None, **fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        found[fleet, table_uid] = position
    return found
