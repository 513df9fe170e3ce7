"""Positions of consumer groups: how far a group has processed each table, as records of a compacted topic.

The key of a record is a JSON list of group and table uid, its value the sequence in decimal digits. If the key has "start" as
third item, the value is the sequence that the table had when the group began; the record with an empty uid says that it has begun.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tideline_events.record import Record
from tideline_events.topics import POSITIONS

_START = "start"


def position_record(group: str, table_uid: str, sequence: int) -> Record:
    """Return the record that says that `group` has processed the transitions of a table up to `sequence`."""
    return Record(POSITIONS.name, json.dumps([group, table_uid]).encode(), str(sequence).encode())


def start_record(group: str, table_uid: str, sequence: int) -> Record:
    """Return the record that says that a table had come to `sequence` when `group` began."""
    return Record(POSITIONS.name, json.dumps([group, table_uid, _START]).encode(), str(sequence).encode())


def positions_in(records: Iterable[Record], group: str) -> dict[str, int]:
    """Return the sequences of a group by table uid. Records that are no positions are skipped."""
    return {table_uid: sequence for (named, table_uid, *rest), sequence in _read(records) if named == group and not rest}


def starts_in(records: Iterable[Record], group: str) -> dict[str, int]:
    """Return the sequences at which a group began, by table uid; of a group that has begun at least that of the empty uid."""
    return {table_uid: sequence for (named, table_uid, *rest), sequence in _read(records) if named == group and rest == [_START]}


def is_ahead(record: Record, present: Iterable[Record]) -> bool:
    """Return whether the record of a position is ahead of the `present` ones of its key."""
    return all(sequence > known for _, sequence in _read([record]) for _, known in _read(present))


def _read(records: Iterable[Record]) -> Iterator[tuple[list[str], int]]:
    """Yield key and sequence of each record that has both."""
    for record in records:
        try:
            key, sequence = json.loads(record.key or b""), int(record.value or b"")
        except (ValueError, TypeError):
            continue
        if isinstance(key, list) and len(key) > 1:
            yield [str(item) for item in key], sequence
