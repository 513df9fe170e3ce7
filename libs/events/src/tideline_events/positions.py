"""Positions of consumer groups: how far a group has processed each table, as records of a compacted topic.

The key of a record is a JSON list of group and table uid, its value the sequence in decimal digits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tideline_events.record import Record
from tideline_events.topics import POSITIONS


def position_record(group: str, table_uid: str, sequence: int) -> Record:
    """Return the record that says that `group` has processed the transitions of a table up to `sequence`."""
    return Record(POSITIONS.name, json.dumps([group, table_uid]).encode(), str(sequence).encode())


def positions_in(records: Iterable[Record], group: str) -> dict[str, int]:
    """Return the sequences of a group by table uid. Records that are no positions are skipped."""
    found = {}
    for record in records:
        try:
            named, table_uid = json.loads(record.key or b"")
            sequence = int(record.value or b"")
        except (ValueError, TypeError):
            continue
        if named == group:
            found[str(table_uid)] = sequence
    return found


def is_ahead(record: Record, present: Iterable[Record]) -> bool:
    """Return whether the record of a position is ahead of the `present` ones of its key."""
    group, _ = json.loads(record.key or b"")
    (sequence,) = positions_in([record], group).values()
    return all(sequence > known for known in positions_in(present, group).values())
